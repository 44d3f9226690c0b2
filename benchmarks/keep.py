"""The gain of outputs that stay on the device: in a chain of kTasks, each reads the output of the one before.

The chains run through Ray and a pool of one device: a GPU if Ray finds one, else a software GPU with modelled copies. A
time is from the first invocation to the last one's array. Chains with and without `keep` take turns; figures are
medians.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import ray

import kaas
import softgpu
from benchmarks.report import arguments, report

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
LENGTH = 8
OBJECT_BYTES = 16 << 20
N = OBJECT_BYTES // 4
COPY_BYTES_PER_S = 2e9
KERNEL_S = 1e-3
WORKED = 1024
"""The number of elements that a kernel reads and writes: its time is modelled."""
CHAINS = 15
WARM_UP = 2


def main() -> None:
    options = arguments(__doc__ or "")
    ray.init()
    gpu = bool(ray.cluster_resources().get("GPU"))  # type: ignore[no-untyped-call]
    model = softgpu.Model(copy_bytes_per_s=COPY_BYTES_PER_S, kernels={"step": softgpu.Takes(KERNEL_S)})
    kaas.init(devices=[kaas.Device("gpu") if gpu else kaas.Device("software", 1 << 30, model)])
    buffers = [kaas.Buffer(name, N, "float32") for name in ("x", "w", "y")]
    x, w, y = buffers
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(WORKED), kaas.i32(1)]
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_file(PTX), "step", WORKED // 256, 256, args)], [y])
    function = kaas.register(task, {"w": np.ones(N, np.float32)})
    first = kaas.put(np.ones(N, np.float32))
    times: dict[bool, list[float]] = {True: [], False: []}
    store_bytes: dict[bool, int] = {}
    for turn in range(WARM_UP + CHAINS):
        for keep in times:
            kaas.stats(reset=True)
            began = perf_counter()
            chain(function, first, keep)
            if turn >= WARM_UP:
                times[keep].append(perf_counter() - began)
                store_bytes[keep] = sum(tier.nbytes for tier in kaas.stats().tiers if tier.tier == "store")
    kept_s, plain_s = median(times[True]), median(times[False])
    detail = {
        "device": kaas.status().devices[0].kind,
        "chain_kept_ms": kept_s * 1e3,
        "chain_ms": plain_s * 1e3,
        "fetched_kept_mb": store_bytes[True] / 1e6,
        "fetched_mb": store_bytes[False] / 1e6,
    }
    report("keep", {"kept_over_plain": (kept_s / plain_s, "<=", 0.4)}, detail, options.json)
    kaas.shutdown()
    ray.shutdown()


def chain(function: kaas.Function, first: Any, keep: bool) -> None:
    ref = first
    for _ in range(LENGTH):
        ref = kaas.invoke(function, {"x": ref}, keep=keep)
    np.asarray(ray.get(ref))


if __name__ == "__main__":
    main()
