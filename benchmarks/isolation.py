"""What each level of isolation costs, and what it stops.

    python -m benchmarks.isolation [--json] [--rounds 15] [--turns 3] [--device software]

Kernels: two executors, each with a software device, take turns with the same request, whose constants stay on both. A
ratio is the median over the rounds of the device seconds of the kernels, with fences over without. fence_over_none is
the geometric mean of ResNet-50, a GEMM and nearest neighbours, fence_worst the largest. With --device gpu both are on
the first GPU, and that is all; ResNet-50 is left out where TVM or onnx is not installed.

Pools: each level in turns, as `isolated_pools.py` says. process_over_none is the rate of four clients without
isolation over that with executors of each client.

Escapes: the attacks of `escaping.py` that read or changed something of another client, under fences and processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from statistics import geometric_mean, median
from typing import Any

import numpy as np

import cutlass_blas
import kaas
import softgpu
from benchmarks.escaping import escapes
from benchmarks.isolated_pools import compare
from benchmarks.models import MODELS
from benchmarks.report import Bar, parser, positive, report
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.kernels import library

WARM_UP = 2
SIDE, VERTICES, SEARCHES, STEPS = 512, 512, 32, 6
MEMORY_BYTES = 1 << 30


def gemm() -> RunRequest:
    """Return a product of square matrices in float32."""
    a, b, c = (kaas.Buffer(name, (SIDE, SIDE), "float32") for name in "abc")
    inputs = {name: _constant(name, _random(SIDE, SIDE)) for name in "ab"}
    return RunRequest(kaas.KTask(cutlass_blas.gemm(a, b, c), [c]), inputs, {})


def nearest_neighbours() -> RunRequest:
    """Return the searches of examples/nearest_neighbours.py."""
    code = library("nearest_neighbours")
    a = kaas.Buffer("A", (VERTICES, VERTICES), "float32")
    x, v, difference = (
        kaas.Buffer(name, (VERTICES, SEARCHES), "float32", init=init)
        for name, init in (("X", None), ("V", "zero"), ("difference", None))
    )
    n, k, count = kaas.u32(VERTICES), kaas.u32(SEARCHES), kaas.u32(VERTICES * SEARCHES)
    blocks, tiles = math.ceil(VERTICES * SEARCHES / 256), (math.ceil(SEARCHES / 32), math.ceil(VERTICES / 32))
    kernels = [
        kaas.Kernel(code, "vsub", blocks, 256, [kaas.In(x), kaas.In(v), kaas.Out(difference), count]),
        kaas.Kernel(code, "vadd", blocks, 256, [kaas.InOut(v), kaas.In(x), count]),
        kaas.Kernel(code, "matmul", tiles, (32, 8), [kaas.In(a), kaas.In(difference), kaas.Out(x), n, k, n]),
    ]
    inputs = {"A": _constant("A", _random(VERTICES, VERTICES)), "X": InputSource(_random(VERTICES, SEARCHES))}
    return RunRequest(kaas.KTask(kernels, outputs=[v], iterations=STEPS), inputs, {})


def resnet50() -> RunRequest:
    """Return an inference with a picture."""
    model = MODELS["resnet50"]
    variant = (compiled := model.compiled()).variants[0]
    constants = {buffer.name: _constant(buffer.name, compiled.constants[buffer.name]) for buffer in variant.constants}
    pictures = {name: InputSource(value) for name, value in model.inputs().items()}
    return RunRequest(variant.task, {**constants, **pictures}, {})


WORKLOADS: Mapping[str, Callable[[], RunRequest]] = {
    "resnet50": resnet50,
    "gemm": gemm,
    "nearest_neighbours": nearest_neighbours,
}
NEEDED = {"resnet50": ("tvm", "tvm_backend", "onnx")}
"""Packages that a workload needs."""


def _random(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).random(shape, np.float32)


def _constant(name: str, value: np.ndarray[Any, Any]) -> InputSource:
    return InputSource(value, key=name.encode(), constants=b"constants")


def seconds(executors: Mapping[str, Executor], request: RunRequest, rounds: int) -> dict[str, list[float]]:
    """Return the device seconds of the kernels in each round, by isolation. The results are compared."""
    taken: dict[str, list[float]] = {isolation: [] for isolation in executors}
    for number in range(WARM_UP + rounds):
        results = {isolation: executor.run(request) for isolation, executor in executors.items()}
        for name, output in results["none"].outputs.items():
            np.testing.assert_array_equal(results["fence"].outputs[name], output)
        if number >= WARM_UP:
            for isolation, result in results.items():
                taken[isolation].append(result.stats.device_s)
    return taken


def fences(kind: str, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the ratios of the kernels' times by workload, and the figures behind them."""
    levels = ("none", "fence")
    ratios: dict[str, float] = {}
    detail: dict[str, float] = {}
    for name, make in WORKLOADS.items():
        if kind == "gpu" and any(find_spec(package) is None for package in NEEDED.get(name, ())):
            continue
        executors = {
            level: Executor(open_device(kind, ordinal if kind == "software" else 0), isolation=level)  # type: ignore[arg-type]
            for ordinal, level in enumerate(levels)
        }
        taken = seconds(executors, make(), rounds)
        for executor in executors.values():
            executor.close()
        ratios[name] = median(with_ / without for without, with_ in zip(taken["none"], taken["fence"], strict=True))
        detail |= {f"{name}_{level}_ms": 1e3 * median(taken[level]) for level in levels}
        detail[f"{name}_fence_over_none"] = ratios[name]
    return ratios, detail


def main() -> None:
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--rounds", type=positive, default=15)
    options.add_argument("--turns", type=positive, default=3, help="pools of each level")
    options.add_argument("--device", choices=("software", "gpu"), default="software")
    chosen = options.parse_args()
    if chosen.device == "software":
        softgpu.load([MEMORY_BYTES] * 2)
    ratios, detail = fences(chosen.device, chosen.rounds)
    bars: dict[str, Bar] = {
        "fence_over_none": (geometric_mean(ratios.values()), "<=", 1.05),
        "fence_worst": (max(ratios.values()), "<=", 1.15),
    }
    if chosen.device == "software":
        pools = compare(chosen.turns)
        attacks = {level: escapes(level) for level in ("fence", "process")}
        bars["process_over_none"] = (pools["none"]["rate"] / pools["process"]["rate"], "<=", 1.3)
        bars["attacks"] = (min(tried for tried, _, _ in attacks.values()), ">=", 100)
        bars["escapes"] = (sum(escaped for _, _, escaped in attacks.values()), "<=", 0)
        detail |= {f"pool_{level}_{name}": value for level, figures in pools.items() for name, value in figures.items()}
        for level, (tried, faulted, _) in attacks.items():
            detail |= {f"{level}_attacks": tried, f"{level}_attacks_that_faulted": faulted}
    report("isolation", bars, detail, chosen.json)


if __name__ == "__main__":
    main()
