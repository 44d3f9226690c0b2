"""The cost of too little device memory: throughput falls gradually, and a request that hits costs its kernels only.

Requests read one of 32 objects, drawn at random, on a device on which copying an object takes as long as the kernel
that reads it. All objects are in host memory; the device has room for a part of them.
"""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median
from time import perf_counter

from benchmarks.report import arguments, report
from benchmarks.station import Station, check, open_station
from kaas.executor.executor import RunRequest, RunStats

OBJECTS = 32
OBJECT_BYTES = 16 << 20
STEPS = 8
LEAST, MOST = 0.25, 1.5
"""Device memory for objects, over the size of all objects together."""
REQUESTS = 200
WARM_UP = 32
ARENA_BYTES = 64 << 10
HITS_SHORT = 0.1
"""The largest distance of the share of hits below the share of objects that fit: few drawings make it inexact."""


def main() -> None:
    options = arguments(__doc__ or "")
    all_bytes = OBJECTS * OBJECT_BYTES
    station = open_station(int(all_bytes * MOST) + (64 << 20), OBJECT_BYTES)
    requests = station.requests(OBJECTS, OBJECT_BYTES)
    rooms = [LEAST + (MOST - LEAST) * step / (STEPS - 1) for step in range(STEPS)]
    rates: list[float] = []
    hit_shares: list[float] = []
    for room in rooms:
        seconds, stats = measure(station, requests, int(all_bytes * room) + ARENA_BYTES, all_bytes)
        rates.append(REQUESTS / seconds)
        hit_shares.append(sum(one.hits for one in stats) / REQUESTS)
        require_hits(hit_shares[-1], room)
    hits = [one for one in stats if not one.misses]
    hit_over_kernels = median(one.stages["total"] for one in hits) / median(one.device_s for one in hits)
    worst = max(max(a / b, b / a) for a, b in pairwise(rates))
    bars = {"worst_step": (worst, "<=", 2.0), "hit_over_kernels": (hit_over_kernels, "<=", 1.1)}
    detail = {
        "device": station.name,
        "copy_ms": OBJECT_BYTES / station.copy_bytes_per_s * 1e3,
        "kernel_ms": station.kernel_s * 1e3,
        "room": [round(room, 3) for room in rooms],
        "requests_per_s": [round(rate, 1) for rate in rates],
        "hit_share": hit_shares,
        "least_over_most": rates[0] / rates[-1],
    }
    report("cache", bars, detail, options.json)


def measure(
    station: Station, requests: list[RunRequest], cache_bytes: int, host_bytes: int
) -> tuple[float, list[RunStats]]:
    """Return the seconds of REQUESTS requests, one after the other, and their results."""
    executor = station.executor(cache_bytes=cache_bytes, host_cache_bytes=host_bytes)
    draw = random.Random(0)
    for request in requests:
        executor.run(request)
    for _ in range(WARM_UP):
        executor.run(requests[draw.randrange(OBJECTS)])
    drawn = [requests[draw.randrange(OBJECTS)] for _ in range(REQUESTS)]
    began = perf_counter()
    results = [executor.run(request) for request in drawn]
    seconds = perf_counter() - began
    executor.close()
    for request, result in zip(drawn, results, strict=True):
        check(request, result)
    return seconds, [result.stats for result in results]


def require_hits(share: float, room: float) -> None:
    """Check by the share of hits that a full device stays full.

    The bar of a step cannot show that: throughput is at most halved from all hits to none.
    """
    expected = min(1.0, int(room * OBJECTS) / OBJECTS)
    if share < expected - HITS_SHORT:
        raise SystemExit(f"{share:.3f} of the requests hit with room for {expected:.3f} of the objects")


if __name__ == "__main__":
    main()
