"""The workloads of the KaaS paper (Table 1, §5.2)."""

from __future__ import annotations

from dataclasses import dataclass

MB, GB = 10**6, 10**9


@dataclass(frozen=True, slots=True)
class Workload:
    """A column of Table 1.

    Fields:
        launches: kernel launches of a request, each iteration's for Jacobi. constants: the number of constant buffers.
        dynamic_bytes: inputs, outputs and temporaries together. gpu_s, cpu_s: times of a request on the device, and in
            the steps before and after it.
    """

    name: str
    launches: int
    constants: int
    constant_bytes: int
    dynamic_bytes: int
    input_bytes: int
    output_bytes: int
    gpu_s: float
    cpu_s: float
    iterations: int = 1

    @property
    def steps(self) -> bool:
        """True if a cTask runs before the device's work, and another after it."""
        return self.cpu_s > 0

    def step(self, end: str) -> str:
        """Return the name of the step "before" or "after" the device's work; "" without one."""
        return f"{self.name}_{end}" if self.steps else ""


WORKLOADS = {
    each.name: each
    for each in (
        Workload("resnet50", 90, 108, 129 * MB, 6 * MB, 602_112, 4_000, 4e-3, 10e-3),
        Workload("bert", 781, 391, 1300 * MB, 6 * MB, 9_216, 3_072, 92e-3, 132e-3),
        Workload("cgemm", 2, 1, 2 * GB, 8 * MB, 4 * MB, 4 * MB, 39e-3, 0.0),
        Workload("jacobi", 1, 0, 0, 1 * MB, 1 * MB, 4_096, 52e-3, 0.0, iterations=3000),
        Workload("micro", 3, 3, 3 * 4 * MB, 2 * 4 * MB, 4 * MB, 4 * MB, 3 * 0.2e-3, 0.0),
    )
}
"""By name. Kernels and constants are those of the paper's prototype; the sizes of inputs and outputs follow from the
workloads' shapes; the rest is Table 1. The micro-benchmark's kernels take what a V100 takes for 1024³ in float32."""
MOST_REPLICAS = 32
BEFORE_SHARE = 0.7
"""The part of the CPU time before the device's work; the paper has only the sum."""
