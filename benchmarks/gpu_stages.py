"""The stages of a cold and a warm request on a GPU: the paper's Figure 8 for KaaS, without Ray."""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import numpy as np

import kaas
from benchmarks.report import arguments, report
from kaas.config import Device
from kaas.errors import DeviceUnavailable
from kaas.executor.local import run
from kaas.kernels import library

WARM_RUNS = 50
TILE, WARPS = 32, 8


def chain(n: int) -> kaas.KTask:
    """Return the kTask of the paper's micro-benchmark: Y = ((X·A)·B)·C in float32."""
    x, a, b, c, xa, xab, y = (kaas.Buffer(name, (n, n), "float32") for name in ("X", "A", "B", "C", "XA", "XAB", "Y"))

    def product(left: kaas.Buffer, right: kaas.Buffer, result: kaas.Buffer) -> kaas.Kernel:
        tiles, size = n // TILE, kaas.u32(n)
        return kaas.Kernel(
            library("nearest_neighbours"),
            "matmul",
            grid=(tiles, tiles),
            block=(TILE, WARPS),
            args=[kaas.In(left), kaas.In(right), kaas.Out(result), size, size, size],
        )

    return kaas.KTask([product(x, a, xa), product(xa, b, xab), product(xab, c, y)], [y])


def tiny() -> kaas.KTask:
    """Return a kTask of one launch over 4 KiB, whose time is overheads only."""
    x, v, out = (kaas.Buffer(name, 1024, "float32") for name in ("X", "V", "out"))
    kernels = library("nearest_neighbours")
    vsub = kaas.Kernel(kernels, "vsub", 4, 256, [kaas.In(x), kaas.In(v), kaas.Out(out), kaas.u32(1024)])
    return kaas.KTask([vsub], [out])


def measure(task: kaas.KTask, device: Device) -> dict[str, Any]:
    """Return the milliseconds of the first request and of the median warm request, by stage."""
    rng = np.random.default_rng(0)
    inputs = {buffer.name: rng.uniform(-1, 1, buffer.shape).astype(np.float32) for buffer in task.inputs}
    start = time.perf_counter()
    cold = run(task, inputs, device=device).stats
    cold_s = time.perf_counter() - start
    warm = [run(task, inputs, device=device).stats for _ in range(WARM_RUNS)]
    stages = {stage: 1e3 * statistics.median(stats.stages[stage] for stats in warm) for stage in cold.stages}
    return {
        "cold_call_ms": 1e3 * cold_s,
        "cold_stages_ms": {stage: 1e3 * seconds for stage, seconds in cold.stages.items()},
        "warm_stages_ms": stages,
        "warm_device_ms": 1e3 * statistics.median(stats.device_s for stats in warm),
    }


def main() -> int:
    options = arguments("Stage times of requests on a GPU.")
    device = Device("gpu")
    try:
        detail = {"one launch, 4 KiB": measure(tiny(), device), "3 products, 1024²": measure(chain(1024), device)}
    except DeviceUnavailable as error:
        print(f"needs a GPU: {error}", file=sys.stderr)
        return 2
    report("gpu_stages", {}, detail, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
