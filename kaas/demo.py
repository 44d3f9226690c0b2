"""`kaas demo`: several clients search several graphs on the pool's devices, checked against NumPy.

The kTask is the N-nearest-neighbours search of the KaaS paper (Algorithm 1, Figure 4): a large constant adjacency
matrix, small inputs, three kernels repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import kaas
from kaas.kernels import library
from kaas.pool.stats import Stats
from kaas.pool.status import Status

Matrix = NDArray[np.float32]
CLIENTS = ("ann", "bob", "cy", "dee")
STAGES = {
    "queue": "queue",
    "fetch": "fetch",
    "copy_in": "in",
    "kernels": "kernels",
    "copy_out": "out",
    "request": "all",
}
"""The stages that are shown, and what their columns are called."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large the demonstration is. requests: of each client; in_flight: how many of them at a time."""

    vertices: int = 1024
    searches: int = 32
    iterations: int = 5
    requests: int = 25
    in_flight: int = 2


def build(size: Size) -> kaas.KTask:
    """Each iteration: X ← A·(X − V), V ← V + X."""
    n, k, count = size.vertices, size.searches, size.vertices * size.searches
    kernels = library("nearest_neighbours")
    a = kaas.Buffer("A", (n, n), "float32")
    x = kaas.Buffer("X", (n, k), "float32")
    v = kaas.Buffer("V", (n, k), "float32", init="zero")
    step = kaas.Buffer("step", (n, k), "float32")
    blocks, tiles = math.ceil(count / 256), (math.ceil(k / 32), math.ceil(n / 32))
    vsub = kaas.Kernel(kernels, "vsub", blocks, 256, [kaas.In(x), kaas.In(v), kaas.Out(step), kaas.u32(count)])
    vadd = kaas.Kernel(kernels, "vadd", blocks, 256, [kaas.InOut(v), kaas.In(x), kaas.u32(count)])
    shape = [kaas.u32(n), kaas.u32(k), kaas.u32(n)]
    matmul = kaas.Kernel(kernels, "matmul", tiles, (32, 8), [kaas.In(a), kaas.In(step), kaas.Out(x), *shape])
    return kaas.KTask([vsub, vadd, matmul], outputs=[v], iterations=size.iterations, name="nearest_neighbours")


def reference(a: Matrix, x: Matrix, iterations: int) -> Matrix:
    """The same in NumPy."""
    v = np.zeros_like(x)
    for _ in range(iterations):
        x, v = a @ (x - v), v + x
    return v


def run(size: Size | None = None, console: Console | None = None) -> bool:
    """Run the demonstration on the default devices and print what happened; whether every result was right."""
    size, console = size or Size(), console or Console()
    began = perf_counter()
    with console.status("starting Ray and the pool"):
        opened = kaas.init()
    try:
        started_s = perf_counter() - began
        wrong = _run_clients(size, console)
        status, stats = kaas.status(), kaas.stats()
    finally:
        if opened:
            kaas.shutdown()
    console.print(_stage_table(stats), _cache_table(stats, status))
    total = len(CLIENTS) * size.requests
    verdict = f"[red]{wrong} wrong[/]" if wrong else "[green]all equal to NumPy's[/]"
    console.print(f"{total} results, {verdict}; start {started_s:.1f} s, in all {perf_counter() - began:.1f} s")
    return wrong == 0


def _run_clients(size: Size, console: Console) -> int:
    """All clients at once, each in a thread as if it were a program of its own; the number of wrong results."""
    columns = (TextColumn("{task.description:>5}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(len(CLIENTS)) as threads:
        bars = [progress.add_task(client, total=size.requests) for client in CLIENTS]

        def follow(client: str, seed: int, bar: Any) -> int:
            wrong = 0
            for right in _one_client(client, seed, size):
                wrong += not right
                progress.advance(bar)
            return wrong

        return sum(threads.map(follow, CLIENTS, range(len(CLIENTS)), bars))


def _one_client(client: str, seed: int, size: Size) -> Iterator[bool]:
    """Search a graph of one's own from random vertices, some requests in flight; whether each result is right."""
    rng = np.random.default_rng(seed)
    a = (rng.random((size.vertices, size.vertices)) < 8 / size.vertices).astype(np.float32)
    a /= max(1.0, float(a.sum(axis=1).max()))
    search = kaas.register(build(size), constants={"A": a}).options(client=client)
    flying: dict[Future[Any], Matrix] = {}
    for _ in range(size.requests):
        if len(flying) == size.in_flight:
            yield from _land(flying, a, size)
        x = np.zeros((size.vertices, size.searches), np.float32)
        x[rng.integers(0, size.vertices, size.searches), np.arange(size.searches)] = 1
        flying[search.remote(X=x).future()] = x
    while flying:
        yield from _land(flying, a, size)


def _land(flying: dict[Future[Any], Matrix], a: Matrix, size: Size) -> Iterator[bool]:
    done, _ = wait(flying, return_when=FIRST_COMPLETED)
    for result in done:
        expected = reference(a, flying.pop(result), size.iterations)
        yield bool(np.allclose(result.result(), expected, rtol=1e-3, atol=1e-5))


def _stage_table(stats: Stats) -> Table:
    table = Table(title="median time of a request by stage, milliseconds", title_justify="left")
    table.add_column("client")
    table.add_column("requests", justify="right")
    for title in STAGES.values():
        table.add_column(title, justify="right")
    for client in CLIENTS:
        found = {entry.stage: entry for entry in stats.stages if entry.client == client}
        medians = (f"{found[stage].p50_s * 1e3:.2f}" if stage in found else "-" for stage in STAGES)
        table.add_row(client, str(found["request"].count if "request" in found else 0), *medians)
    return table


def _cache_table(stats: Stats, status: Status) -> Table:
    table = Table(title="cached constants by device: hits / lookups", title_justify="left")
    table.add_column("client")
    for device in status.devices:
        name = device.info.device_name if device.info else device.state
        table.add_column(f"{device.index}: {name}", justify="right")
    for client in CLIENTS:
        cells = []
        for device in status.devices:
            found = [tier for tier in stats.tiers if (tier.client, tier.device) == (client, device.index)]
            hits = sum(tier.objects for tier in found if tier.tier == "device")
            cells.append(f"{hits} / {sum(tier.objects for tier in found)}")
        table.add_row(client, *cells)
    return table
