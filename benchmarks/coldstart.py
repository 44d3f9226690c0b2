"""The stages of a cold and a warm request, as in Figure 8 of the paper, and the cost of a cold kTask over a plain copy.

    python -m benchmarks.coldstart [--json]

Cold is the first request of a fresh pool: its executor has started and has never seen the function, a library, an
object or a request; compiled code is on disk. Two functions are measured: one kernel that reads 64 MB, which gives the
ratio, and the paper's three chained products. The cost of the cold request is its time less the median warm time, at
the caller. It is compared with a fresh Ray actor that gets the same object from the store and copies it to its own
device. Both are repeated in turn with new processes; figures are medians.

The categories are the paper's. Kernel Init: checking the kTask, loading its code, making its graph. GPU Malloc: memory
on the device, with waits for it. GPU Copy: copies to the device and back. Data Layer: getting objects from the store
and into host memory. Overheads: everything else between the call and its value, mostly Ray and the pool.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.report import parser, report

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray
from cuda.bindings import driver

import kaas
from benchmarks.station import N, reader
from examples import chained_matmul
from kaas.executor.device.device import open_device
from kaas.executor.device.driver_errors import call
from kaas.pool.on_ray.cluster import SOFTWARE_RESOURCE
from kaas.wire.status.stats import Stats

OBJECT_BYTES = 64 << 20
SIDE = 256
"""The side of the products' matrices; 1024 in the paper, which would take seconds on a CPU."""
WARM = 30
REPEATS = 7
SOFTWARE_BYTES = 256 << 20

CATEGORIES = ("Kernel Run", "Kernel Init", "GPU Malloc", "GPU Copy", "Data Layer", "Overheads")

Times = dict[str, float]
"""Seconds by category, and "total"."""


class Plain:
    """An actor that only gets an object and copies it to a device."""

    def __init__(self) -> None:
        self._device = open_device("software", memory_bytes=SOFTWARE_BYTES)

    def seconds(self, refs: list[Any]) -> float:
        with self._device.context:
            address = call(driver.cuMemAlloc, OBJECT_BYTES)
            began = perf_counter()
            value = ray.get(refs[0])
            call(driver.cuMemcpyHtoD, address, value, OBJECT_BYTES)
            return perf_counter() - began


def main() -> None:
    options = parser(__doc__.partition("\n\n")[0] if __doc__ else "").parse_args()
    ray.init(resources={SOFTWARE_RESOURCE: 1}, log_to_driver=False)
    try:
        rounds = [measure(plain_first=bool(number % 2)) for number in range(REPEATS + 1)][1:]  # the first compiles
    finally:
        ray.shutdown()
    plain_s = median(one[0] for one in rounds)
    names = list(rounds[0][1])
    table = {name: {column: middle([one[1][name][column] for one in rounds]) for column in COLUMNS} for name in names}
    reading = table["reads 64 MB"]
    added_s = reading["cold"]["total"] - reading["warm"]["total"]
    if not options.json:
        print_categories(table)
    detail: dict[str, Any] = {
        f"{name}, {column}, ms": {part: round(1e3 * seconds, 2) for part, seconds in times.items()}
        for name, columns in table.items()
        for column, times in columns.items()
    }
    detail |= {"plain_get_and_copy_ms": plain_s * 1e3, "cold_adds_ms": added_s * 1e3}
    report("coldstart", {"ktask_cold_over_copy": (added_s / plain_s, "<=", 4.0)}, detail, options.json)


COLUMNS = ("cold", "warm")


def measure(*, plain_first: bool) -> tuple[float, dict[str, dict[str, Times]]]:
    """Return the seconds of a plain get and copy, and the times of both functions, in new processes."""
    numbers = np.random.default_rng(0)
    big = ray.put(numbers.random(OBJECT_BYTES // 4, np.float32))
    x = np.ones(N, np.float32)
    matrices = {name: numbers.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for name in "XABC"}
    plain_s = plain(big) if plain_first else 0.0
    kaas.init(devices=[kaas.Device("software", SOFTWARE_BYTES)])
    try:
        read = kaas.register(reader(OBJECT_BYTES, 1), {"w": big})
        chain = kaas.register(chained_matmul.build(SIDE), {name: matrices[name] for name in "ABC"})
        kaas.flush()  # nothing to drop yet, but the reply shows that the executor has started
        kaas.stats(reset=True)
        times = {
            "reads 64 MB": cold_and_warm(lambda: read.remote(x=x)),
            f"3 products, {SIDE}²": cold_and_warm(lambda: chain.remote(X=matrices["X"])),
        }
    finally:
        kaas.shutdown()
    return (plain_s if plain_first else plain(big)), times


def plain(ref: Any) -> float:
    actor_class: Any = ray.remote(num_cpus=0)(Plain)
    actor = actor_class.remote()
    seconds: float = ray.get(actor.seconds.remote([ref]))
    ray.kill(actor)
    return seconds


def cold_and_warm(send: Callable[[], Any]) -> dict[str, Times]:
    """Return the first request's times and the medians of the later ones, by category."""
    cold = timed(send)
    return {"cold": cold, "warm": middle([timed(send) for _ in range(WARM)])}


def timed(send: Callable[[], Any]) -> Times:
    """Run one request, and return its whole time at the caller and the executor's stages from the pool."""
    began = perf_counter()
    ray.get(send())
    total_s = perf_counter() - began
    return categories(kaas.stats(reset=True), total_s)


def categories(stats: Stats, total_s: float) -> Times:
    """Return the seconds by category; `stats` are those of one request."""
    stages = {stage.stage: stage.total_s for stage in stats.stages}
    hosting_s = sum(tier.seconds for tier in stats.tiers if tier.tier == "host")  # a part of copying in
    known = (
        stages["kernels"],
        stages["plan"],
        stages["memory"],
        stages["copy_in"] + stages["copy_out"] - hosting_s,
        stages["fetch"] + hosting_s,
    )
    return dict(zip(CATEGORIES, (*known, total_s - sum(known)), strict=True)) | {"total": total_s}


def middle(samples: list[Times]) -> Times:
    return {name: median(sample[name] for sample in samples) for name in samples[0]}


def print_categories(table: Mapping[str, Mapping[str, Times]]) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table(title="milliseconds of a request", title_justify="left")
    shown.add_column("category")
    for name, columns in table.items():
        for column in columns:
            shown.add_column(f"{name}\n{column}", justify="right")
    for part in (*CATEGORIES, "total"):
        cells = [f"{1e3 * times[part]:.2f}" for columns in table.values() for times in columns.values()]
        shown.add_row(part, *cells)
    Console().print(shown)


if __name__ == "__main__":
    main()
