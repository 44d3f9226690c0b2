"""Two slots share a device whose kernels leave half of it idle: throughput of two over that of one.

Kernels are modelled as 5 ms on half of the device; on a GPU they spin on a few of its multiprocessors. Each request
finds what it reads on the device.
"""

from __future__ import annotations

from statistics import median

from benchmarks.report import arguments, report
from benchmarks.station import open_station, send

KERNEL_S = 5e-3
SHARE = 0.5
OBJECT_BYTES = 4 << 10
REQUESTS = 60
REPEATS = 5


def main() -> None:
    options = arguments(__doc__ or "")
    station = open_station(64 << 20, OBJECT_BYTES, KERNEL_S, SHARE)
    requests = station.requests(2, OBJECT_BYTES) * (REQUESTS // 2)
    executors = {slots: station.executor(slots=slots, cache_bytes=16 << 20) for slots in (1, 2)}
    rates: dict[int, list[float]] = {slots: [] for slots in executors}
    for repeat in range(REPEATS + 1):
        for slots, executor in executors.items():
            seconds, _ = send(executor, requests, slots)
            if repeat:
                rates[slots].append(REQUESTS / seconds)
    for executor in executors.values():
        executor.close()
    one, two = median(rates[1]), median(rates[2])
    detail = {
        "device": station.name,
        "kernel_ms": station.kernel_s * 1e3,
        "one_slot_requests_per_s": one,
        "two_slots_requests_per_s": two,
    }
    report("slots", {"two_slots_over_one": (two / one, ">=", 1.7)}, detail, options.json)


if __name__ == "__main__":
    main()
