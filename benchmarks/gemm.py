"""The BLAS library's matrix products: their rate over NumPy's on the software GPU, over cuBLAS's on a GPU.

    python -m benchmarks.gemm [--json] [--device gpu] [--rounds 9] [--only s_1024 c_1024]

On the software GPU (SIMT kernels), the seconds of a product's kernels, each between two events, are compared with
NumPy's `@` and its own number of threads. On a GPU, several products in one CUDA graph, between two events, are
compared with as many calls of cuBLAS through CuPy, with TF32 off. Both sides take turns, medians are compared, results
checked.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any

os.environ["CUPY_TF32"] = "0"  # CuPy reads it when it is imported

import numpy as np

import cutlass_blas
import kaas
from benchmarks.report import Bar, parser, positive, report
from kaas.config import Device
from kaas.errors import DeviceUnavailable
from kaas.executor.local import executor_for, run

Side = Callable[[], float]
"""A measurement: the seconds of one product."""

WARM_UP = 2
IN_A_ROW = 5
"""NumPy's products in a turn. Their median counts, since the first one wakes NumPy's threads."""
SPINNING_S = 0.2
"""The time for which OpenBLAS's threads may spin after a product, on cores that our turn needs."""
TOLERANCE = {"float32": 1e-4, "complex64": 1e-4, "float16": 1e-2}
"""The largest allowed difference, as a share of the largest element."""


@dataclass(frozen=True, slots=True)
class Case:
    """A product of m×k by k×n, row-major.

    Fields:
        least: the bar: the least rate over that of the other side. repeats: products between two events.
    """

    dtype: str
    m: int
    n: int
    k: int
    least: float
    repeats: int = 1

    @property
    def operations(self) -> int:
        return (8 if self.dtype.startswith("complex") else 2) * self.m * self.n * self.k

    def task(self, arch: str | None = None) -> kaas.KTask:
        """Return the kTask, inputs "a" and "b", output "c", with the kernel that is chosen for such devices."""
        a, b, c = (
            kaas.Buffer(name, shape, self.dtype)
            for name, shape in (("a", (self.m, self.k)), ("b", (self.k, self.n)), ("c", (self.m, self.n)))
        )
        return kaas.KTask(cutlass_blas.gemm(a, b, c, arch=arch) * self.repeats, [c])


CASES: dict[str, dict[str, Case]] = {
    "software": {
        "sgemm_512": Case("float32", 512, 512, 512, 0.02),
        "cgemm_256": Case("complex64", 256, 256, 256, 0.02),
    },
    "gpu": {
        "s_1024": Case("float32", 1024, 1024, 1024, 0.9, 50),
        "s_4096": Case("float32", 4096, 4096, 4096, 0.9, 5),
        "c_1024": Case("complex64", 1024, 1024, 1024, 0.9, 20),
        "c_4096": Case("complex64", 4096, 4096, 4096, 0.9, 2),
        "cgemm_paper": Case("complex64", 100, 25000, 10000, 0.9, 5),
        "h_4096": Case("float16", 4096, 4096, 4096, 0.55, 20),
    },
}


def over_numpy(case: Case, task: kaas.KTask) -> tuple[Side, Side]:
    """Return the measurements of ours on the software GPU, and of NumPy's."""
    rng = np.random.default_rng(1)
    a, b = (_random(rng, case.dtype, shape) for shape in ((case.m, case.k), (case.k, case.n)))
    device = Device("software")
    _check(case, run(task, {"a": a, "b": b}, device=device).outputs["c"], a @ b)

    def ours() -> float:
        kernels = run(task, {"a": a, "b": b}, device=device, profile=True).stats.kernels
        return sum(kernel.seconds for kernel in kernels)

    def numpys() -> float:
        seconds = []
        for _ in range(IN_A_ROW):
            began = perf_counter()
            a @ b
            seconds.append(perf_counter() - began)
        sleep(SPINNING_S)
        return median(seconds)

    return ours, numpys


def over_cublas(case: Case, task: kaas.KTask) -> tuple[Side, Side]:
    """Return the measurements of ours on the GPU, and of cuBLAS's through CuPy; both read the same arrays."""
    import cupy

    rng = np.random.default_rng(1)
    a, b = (cupy.asarray(_random(rng, case.dtype, shape)) for shape in ((case.m, case.k), (case.k, case.n)))
    c = cupy.empty((case.m, case.n), case.dtype)
    device = Device("gpu")
    cupy.matmul(a, b, out=c)
    _check(case, run(task, {"a": a, "b": b}, device=device).outputs["c"], c.get())
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()

    def ours() -> float:
        return run(task, {"a": a, "b": b}, device=device).stats.device_s / case.repeats

    def cublas() -> float:
        begin.record()
        for _ in range(case.repeats):
            cupy.matmul(a, b, out=c)
        end.record()
        end.synchronize()
        milliseconds: float = cupy.cuda.get_elapsed_time(begin, end)
        return milliseconds / 1e3 / case.repeats

    return ours, cublas


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
    real = rng.random(shape, np.float32) - np.float32(0.5)
    if not dtype.startswith("complex"):
        return real.astype(dtype)
    return real + np.complex64(1j) * (rng.random(shape, np.float32) - np.float32(0.5))


def _check(case: Case, given: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> None:
    kind = np.float32 if case.dtype == "float16" else expected.dtype
    wrong = np.abs(given.astype(kind) - expected.astype(kind)).max() / np.abs(expected).max()
    if not wrong < TOLERANCE[case.dtype]:
        raise SystemExit(f"{case}: the two results differ by {wrong:.2g} of the largest element")


def in_turns(sides: tuple[Side, Side], rounds: int) -> list[float]:
    """Return the median seconds of each."""
    times: list[list[float]] = [[] for _ in sides]
    for turn in range(WARM_UP + rounds):
        for side, seconds in zip(sides, times, strict=True):
            took_s = side()
            if turn >= WARM_UP:
                seconds.append(took_s)
    return [median(seconds) for seconds in times]


def main() -> int:
    made = parser((__doc__ or "").partition("\n")[0])
    made.add_argument("--device", choices=tuple(CASES), default="software")
    made.add_argument("--rounds", type=positive, default=9)
    made.add_argument("--only", nargs="+", choices=[name for cases in CASES.values() for name in cases])
    options = made.parse_args()
    cases = {name: case for name, case in CASES[options.device].items() if not options.only or name in options.only}
    if not cases:
        made.error(f"on this device there are only {', '.join(CASES[options.device])}")
    if options.device == "gpu" and importlib.util.find_spec("cupy") is None:
        print("needs CuPy, which is not installed: pip install cupy-cuda13x", file=sys.stderr)
        return 2
    other, sides = ("numpy", over_numpy) if options.device == "software" else ("cublas", over_cublas)
    try:
        info = executor_for(Device(options.device)).device.info()
    except DeviceUnavailable as error:
        print(f"needs a GPU: {error}", file=sys.stderr)
        return 2
    arch = "sm_{}{}".format(*info.compute_capability) if options.device == "gpu" else None
    bars: dict[str, Bar] = {}
    detail: dict[str, Any] = {"device": info.name}
    for name, case in cases.items():
        task = case.task(arch)
        ours_s, other_s = in_turns(sides(case, task), options.rounds)
        bars[name] = (other_s / ours_s, ">=", case.least)
        detail[f"{name}_kernels"] = ", ".join(dict.fromkeys(kernel.symbol for kernel in task.kernels))
        detail[f"{name}_ms"], detail[f"{name}_{other}_ms"] = 1e3 * ours_s, 1e3 * other_s
        detail[f"{name}_gflops"] = case.operations / ours_s / 1e9
        detail[f"{name}_{other}_gflops"] = case.operations / other_s / 1e9
    report("gemm", bars, detail, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
