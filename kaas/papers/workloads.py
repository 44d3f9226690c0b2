"""The workloads of the KaaS paper (Table 1, §5.2), as kTasks of modelled kernels on a scaled-down machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kaas.ktask.arguments import Buffer, In, InOut, Out
from kaas.ktask.graph import KTask
from kaas.ktask.library import Kernel, Library
from kaas.papers.paper_kernels import ITERATION, LAYER, ptx

if TYPE_CHECKING:
    import numpy as np

MB, GB = 10**6, 10**9
ELEMENTS = 256
"""The elements of a buffer that a kernel touches, whatever the buffer's size: a kernel's time is modelled."""


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
    def symbol(self) -> str:
        """The workload's kernel."""
        return f"{self.name}_{'iteration' if self.iterations > 1 else 'layer'}"

    @property
    def kernel_s(self) -> float:
        """The time of each launch."""
        return self.gpu_s / (self.launches * self.iterations)

    @property
    def steps(self) -> bool:
        """True if a cTask runs before the device's work, and another after it."""
        return self.cpu_s > 0


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


@dataclass(frozen=True, slots=True)
class Scale:
    """A machine for the experiments, with the ratios of the paper's: a p3.8xlarge with four V100 (§5.1).

    Fields:
        shrink: what bytes and rates of copies are divided by, so that memory to device memory, and copy time to kernel
            time, stay those of Table 1.
        slow: what all modelled times are multiplied by: two cores have to keep four devices busy. The start of a
            process is real: where it takes so many times the paper's 400 ms, a cold request is as long as it is there,
            counted in warm ones; longer starts are kinder to kTasks, shorter ones to eTasks.
    """

    shrink: int = 64
    slow: float = 4.0
    devices: int = 4
    device_bytes: int = 16 * GB
    copy_bytes_per_s: float = 12e9

    def gpu_s(self, workload: Workload) -> float:
        """Return the time of a request on one of these devices."""
        return workload.gpu_s * self.slow

    def copy_rate(self) -> float:
        """Return the bytes a second of each direction between host and device."""
        return self.copy_bytes_per_s / self.shrink / self.slow

    def bytes(self, size: int) -> int:
        """Return a size on this machine: whole elements, as many as a kernel touches at least."""
        return max(size // self.shrink, 4 * ELEMENTS) // 4 * 4


SMALL = Scale()


def constants(workload: Workload, scale: Scale, value: float) -> dict[str, np.ndarray[Any, Any]]:
    """Return the constants of a replica, filled with its own value: no replica's results fit another.

    No two have the same contents, since a cache keeps these once: each ends with its number, which no kernel reads.
    """
    import numpy as np

    made = {f"w{k}": np.full(_constant(workload, scale), value, np.float32) for k in range(workload.constants)}
    for number, array in enumerate(made.values()):
        array[-1] = number
    return made


def ktask(workload: Workload, scale: Scale) -> KTask:
    """Return the kTask of a workload: a chain of launches through two temporaries, or an iteration."""
    x, y = _buffer("x", scale.bytes(workload.input_bytes)), _buffer("y", scale.bytes(workload.output_bytes))
    library = Library.from_ptx(ptx(workload.symbol, ITERATION if workload.iterations > 1 else LAYER))
    if workload.iterations > 1:
        y = replace(y, init="zero")
        iteration = Kernel(library, workload.symbol, 1, ELEMENTS, [In(x), InOut(y)])
        return KTask([iteration], [y], iterations=workload.iterations, name=workload.name)
    dynamic_bytes = workload.dynamic_bytes - workload.input_bytes - workload.output_bytes
    temporaries = [_buffer(f"t{k}", scale.bytes(max(0, dynamic_bytes) // 2)) for k in range(2)]
    weights = [Buffer(f"w{k}", _constant(workload, scale), "float32") for k in range(workload.constants)]
    kernels, before = list[Kernel](), x
    for launch in range(workload.launches):
        after = y if launch == workload.launches - 1 else temporaries[launch % 2]
        pair = (weights[(launch + turn * workload.launches) % len(weights)] for turn in range(2))
        args = [In(before), *(In(each) for each in pair), Out(after)]
        kernels.append(Kernel(library, workload.symbol, 1, ELEMENTS, args))
        before = after
    return KTask(kernels, [y], name=workload.name)


def answer(workload: Workload, value: float) -> float:
    """Return each element that the kernels write, for an input of ones and a replica's constants."""
    if workload.iterations > 1:
        return 2.0  # y = y / 2 + 1, until it stays
    return 2 * value + (1 - 2 * value) * 0.5**workload.launches


def _constant(workload: Workload, scale: Scale) -> int:
    return scale.bytes(workload.constant_bytes // workload.constants) // 4


def _buffer(name: str, nbytes: int) -> Buffer:
    return Buffer(name, nbytes // 4, "float32")
