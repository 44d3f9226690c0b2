"""Two slots share a device whose kernels leave half of it idle: the throughput of two slots over that of one.

Kernels are modelled as 5 ms on half of the device; on a GPU they spin on a few of its multiprocessors. The objects of
each request are on the device. With `--pool` the same is measured through a pool on Ray too, on a software GPU.
"""

from __future__ import annotations

import os
from statistics import median
from time import perf_counter

import numpy as np

import kaas
import softgpu
from benchmarks.report import parser, report
from benchmarks.station import N, Station, open_station, reader, send

KERNEL_S = 5e-3
SHARE = 0.5
OBJECT_BYTES = 4 << 10
SOFTWARE_BYTES = 64 << 20
REQUESTS = 60
REPEATS = 5
WARM_UP = 8


def main() -> None:
    options = parser(__doc__.partition("\n")[0] if __doc__ else "")
    options.add_argument("--pool", action="store_true", help="measure a pool on Ray too")
    given = options.parse_args()
    station = open_station(SOFTWARE_BYTES, OBJECT_BYTES, KERNEL_S, SHARE)
    one, two = measure(station)
    detail = {
        "device": station.name,
        "kernel_ms": station.kernel_s * 1e3,
        "one_slot_requests_per_s": one,
        "two_slots_requests_per_s": two,
    }
    if given.pool:
        rates = [through_pool(slots) for slots in (1, 2)]
        detail |= {"one_slot_of_a_pool_requests_per_s": rates[0], "two_slots_of_a_pool_requests_per_s": rates[1]}
    report("slots", {"two_slots_over_one": (two / one, ">=", 1.7)}, detail, given.json)


def measure(station: Station) -> tuple[float, float]:
    """Return the requests a second with one slot and with two."""
    requests = station.requests(2, OBJECT_BYTES) * (REQUESTS // 2)
    executors = {slots: station.executor(slots=slots, cache_bytes=SOFTWARE_BYTES // 4) for slots in (1, 2)}
    rates: dict[int, list[float]] = {slots: [] for slots in executors}
    for repeat in range(REPEATS + 1):
        for slots, executor in executors.items():
            seconds, _ = send(executor, requests, slots)
            if repeat:
                rates[slots].append(REQUESTS / seconds)
    for executor in executors.values():
        executor.close()
    return median(rates[1]), median(rates[2])


def through_pool(slots: int) -> float:
    """Return the requests a second of a pool that gets all requests at once."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported
    import ray

    model = softgpu.Model(kernels={"step": softgpu.Takes(KERNEL_S, SHARE)})
    device = kaas.Device("software", SOFTWARE_BYTES, model=model)
    kaas.init(config=kaas.Config(devices=(device,), slots=slots))
    try:
        function = kaas.register(reader(OBJECT_BYTES, 1), {"w": np.zeros(OBJECT_BYTES // 4, np.float32)})
        x = np.ones(N, np.float32)
        ray.get([function.remote(x=x) for _ in range(WARM_UP)])
        rates = []
        for _ in range(REPEATS):
            began = perf_counter()
            ray.get([function.remote(x=x) for _ in range(REQUESTS)])
            rates.append(REQUESTS / (perf_counter() - began))
    finally:
        kaas.shutdown()
    return median(rates)


if __name__ == "__main__":
    main()
