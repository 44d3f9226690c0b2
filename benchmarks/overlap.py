"""While a request computes, the next one's objects are copied: a stream of misses through two slots, over one slot.

Each request misses an object whose copy takes as long as the kernel that reads it. The objects are in page-locked host
memory, and are evicted before they are used again. On a GPU the copy rate is measured with plain copies first, and a
spinning kernel takes as long as such a copy.
"""

from __future__ import annotations

from itertools import islice
from statistics import median

from benchmarks.report import arguments, report
from benchmarks.station import open_station, send
from kaas.executor.executor import RunStats

OBJECTS = 12
OBJECT_BYTES = 16 << 20
ROOM = 4
"""The number of objects that fit on the device: two slots hold one each and have copied the next."""
ARENAS_BYTES = 1 << 20
REQUESTS = 48
REPEATS = 5


def main() -> None:
    options = arguments(__doc__ or "")
    station = open_station(3 * OBJECTS * OBJECT_BYTES, OBJECT_BYTES)
    room = {"cache_bytes": ROOM * OBJECT_BYTES + ARENAS_BYTES, "host_cache_bytes": OBJECTS * OBJECT_BYTES}
    requests = station.requests(OBJECTS, OBJECT_BYTES)
    stream = [requests[number % OBJECTS] for number in range(REQUESTS)]
    executors = {slots: station.executor(slots=slots, **room) for slots in (1, 2)}
    times: dict[int, list[float]] = {slots: [] for slots in executors}
    stats: list[RunStats] = []
    for slots, executor in executors.items():
        send(executor, islice(stream, 2 * OBJECTS), slots)
    for _ in range(REPEATS):
        for slots, executor in executors.items():
            seconds, done = send(executor, stream, slots)
            times[slots].append(seconds)
            stats += done
    for executor in executors.values():
        executor.close()
    misses = sum(one.misses for one in stats) / len(stats)
    if misses != 1:
        raise SystemExit(f"{misses:.3f} misses a request, where each was to miss once: this measured something else")
    serial_s, overlapped_s = median(times[1]), median(times[2])
    moved_per_s = REQUESTS * OBJECT_BYTES / overlapped_s
    bars = {
        "overlapped_over_serial": (overlapped_s / serial_s, "<=", 0.6),
        "copy_over_bandwidth": (moved_per_s / station.copy_bytes_per_s, ">=", 0.9),
    }
    detail = {
        "device": station.name,
        "copy_ms": OBJECT_BYTES / station.copy_bytes_per_s * 1e3,
        "kernel_ms": station.kernel_s * 1e3,
        "serial_ms_a_request": serial_s / REQUESTS * 1e3,
        "overlapped_ms_a_request": overlapped_s / REQUESTS * 1e3,
        "moved_gb_per_s": moved_per_s / 1e9,
    }
    report("overlap", bars, detail, options.json)


if __name__ == "__main__":
    main()
