"""What too little device memory costs: throughput falls gradually, and a request that finds all it reads costs no more
than its kernels.

Requests read one of 32 objects, drawn at random, on a software GPU on which copying an object takes as long as the
kernel that reads it. All objects are in host memory; the device has room for a part of them.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import kaas
from benchmarks.report import arguments, report
from kaas import softgpu
from kaas.executor.device import open_device
from kaas.executor.executor import Executor, Request, RunStats, Source

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
OBJECTS = 32
OBJECT_BYTES = 16 << 20
COPY_BYTES_PER_S = 2e9
COPY_S = OBJECT_BYTES / COPY_BYTES_PER_S
STEPS = 8
LEAST, MOST = 0.25, 1.5
"""Room on the device, over what all objects take together."""
REQUESTS = 200
WARM_UP = 32
ARENA_BYTES = 64 << 10
N = 1024
"""Elements that the kernel reads and writes: its time is modelled, not worked."""


def main() -> None:
    options = arguments(__doc__ or "")
    model = softgpu.Model(copy_bytes_per_s=COPY_BYTES_PER_S, kernels={"step": softgpu.Takes(COPY_S)})
    all_bytes = OBJECTS * OBJECT_BYTES
    device_bytes = int(all_bytes * MOST) + (64 << 20)
    softgpu.load([softgpu.Device(device_bytes, model)], force=True)
    requests = make_requests(kaas.Library.from_file(PTX))
    rooms = [LEAST + (MOST - LEAST) * step / (STEPS - 1) for step in range(STEPS)]
    rates: list[float] = []
    hit_shares: list[float] = []
    for room in rooms:
        seconds, stats = measure(requests, int(all_bytes * room) + ARENA_BYTES, all_bytes)
        rates.append(REQUESTS / seconds)
        hit_shares.append(sum(one.hits for one in stats) / REQUESTS)
    hits = [one for one in stats if not one.misses]
    hit_over_kernels = median(one.stages["total"] for one in hits) / median(one.device_s for one in hits)
    worst = max(max(a / b, b / a) for a, b in pairwise(rates))
    bars = {"worst_step": (worst, "<=", 2.0), "hit_over_kernels": (hit_over_kernels, "<=", 1.1)}
    detail = {
        "copy_ms": COPY_S * 1e3,
        "room": [round(room, 3) for room in rooms],
        "requests_per_s": [round(rate, 1) for rate in rates],
        "hit_share": hit_shares,
        "least_over_most": rates[0] / rates[-1],
    }
    report("cache", bars, detail, options.json)


def make_requests(library: kaas.Library) -> list[Request]:
    """One for each object, which its kernel reads where it is cached."""
    x, y = kaas.Buffer("x", N, "float32"), kaas.Buffer("y", N, "float32")
    w = kaas.Buffer("w", OBJECT_BYTES // 4, "float32")
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(1)]
    task = kaas.KTask([kaas.Kernel(library, "step", N // 256, 256, args)], [y])
    ones = Source(np.ones(N, np.float32))
    objects = [np.full(OBJECT_BYTES // 4, k, np.float32) for k in range(OBJECTS)]
    return [Request(task, {"x": ones, "w": Source(value, key=b"object-%d" % k)}, {}) for k, value in enumerate(objects)]


def measure(requests: list[Request], cache_bytes: int, host_bytes: int) -> tuple[float, list[RunStats]]:
    """Seconds of REQUESTS requests, one after the other, and what they did."""
    executor = Executor(open_device("software", 0), cache_bytes=cache_bytes, host_cache_bytes=host_bytes)
    draw = random.Random(0)
    for request in requests:
        executor.run(request)
    for _ in range(WARM_UP):
        executor.run(requests[draw.randrange(OBJECTS)])
    began = perf_counter()
    stats = [executor.run(requests[draw.randrange(OBJECTS)]).stats for _ in range(REQUESTS)]
    seconds = perf_counter() - began
    executor.close()
    return seconds, stats


if __name__ == "__main__":
    main()
