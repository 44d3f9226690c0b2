"""`kaas demo`: three clients of weights 1, 1 and 2 share four devices, and one executor is killed meanwhile.

The kTask is the N-nearest-neighbours search of the KaaS paper (Algorithm 1, Figure 4): a large constant adjacency
matrix, small inputs, three kernels repeated. Every result is compared with NumPy's.
"""

from __future__ import annotations

import math
import os
import signal
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from secrets import token_hex
from threading import Event
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

import kaas
import softgpu
from kaas.code.kernels import library
from kaas.executor.device.device import gpu_count
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status

Matrix = NDArray[np.float32]
WEIGHTS = {"ann": 1, "bob": 1, "cy": 2}
SOFTWARE_DEVICES = 4
DEVICE_BYTES = 256 << 20
MODEL = softgpu.Model(kernels={"matmul": softgpu.Takes(3e-3)})
"""Kernels run on software devices. `matmul` also waits for a GPU's time, so that two cores can act as four devices."""
SHOWN_EVERY_S = 0.25
COLUMNS = {"queue": "queue", "copy_in": "in", "kernels": "kernels", "copy_out": "out", "request": "all"}
"""The stages that are shown, and the titles of their columns."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the demonstration.

    Fields:
        seconds: duration of the competition. searches: number of different searches of each client.
        in_flight: requests of each client at a time, enough that each client always has waiting requests.
    """

    seconds: float = 8.0
    vertices: int = 256
    width: int = 32
    iterations: int = 5
    searches: int = 4
    in_flight: int = 8


@dataclass(slots=True)
class Tally:
    """The number of right and wrong results, by client."""

    right: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))
    wrong: dict[str, int] = field(default_factory=lambda: dict.fromkeys(WEIGHTS, 0))


def demo(
    seconds: Annotated[float, typer.Option(min=0.5, help="duration of the competition")] = 8.0,
    vertices: Annotated[int, typer.Option(min=32, help="size of each client's graph")] = 256,
    ray: Annotated[bool, typer.Option("--ray/--no-ray", help="a pool on Ray, or one of plain processes")] = True,
) -> None:
    """Let three clients of weights 1, 1 and 2 share four devices, kill one executor, and check results with NumPy."""
    if not run(Size(seconds, vertices), Console(emoji=False), ray=ray):
        raise typer.Exit(1)


def build(size: Size) -> kaas.KTask:
    """Return the kTask. Each iteration: X ← A·(X − V), V ← V + X."""
    n, k, count = size.vertices, size.width, size.vertices * size.width
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
    """Return the output of the kTask, computed by NumPy."""
    v = np.zeros_like(x)
    for _ in range(iterations):
        x, v = a @ (x - v), v + x
    return v


def run(size: Size | None = None, console: Console | None = None, *, ray: bool = True) -> bool:
    """Run the demonstration, and print its results. Return True if all were right. ray: the pool runs on Ray."""
    size, console = size or Size(), console or Console(emoji=False)
    began = perf_counter()
    with console.status("starting Ray and the pool" if ray else "starting the pool"):
        kaas.init(config=_config(), ray=ray, name=f"demo {token_hex(4)}")  # an own pool, which it may shut down again
    try:
        started_s = perf_counter() - began
        console.print(_announcement(size, ray))
        tally, stats, status = _compete(size, console)
    finally:
        kaas.shutdown()
    console.print(_stage_table(stats), _cache_table(stats, status))
    total, wrong = sum(tally.right.values()) + sum(tally.wrong.values()), sum(tally.wrong.values())
    verdict = f"[red]{wrong} wrong[/]" if wrong else "[green]all equal to NumPy's[/]"
    console.print(f"{total} results, {verdict} (the tables count those of the competition; the rest ended after it)")
    console.print(f"start {started_s:.1f} s, in all {perf_counter() - began:.1f} s")
    return total > 0 and wrong == 0


def _announcement(size: Size, ray: bool) -> str:
    killed = f"about {size.seconds / 2:g} s from now an executor gets SIGKILL"
    return f"{killed}; what Ray prints then, of a worker that died, is about that one" if ray else killed


def _config() -> kaas.Config:
    clients = {client: kaas.ClientSettings(weight=weight) for client, weight in WEIGHTS.items()}
    software = (kaas.Device("software", DEVICE_BYTES, model=MODEL),) * SOFTWARE_DEVICES
    return kaas.Config(None if gpu_count() else software, policy="cfs_affinity", clients=clients)


def _compete(size: Size, console: Console) -> tuple[Tally, Stats, Status]:
    """Run all clients at once, each in a thread like a separate program, and kill an executor after half of the time.

    The figures are of the time in which all clients competed.
    """
    tally, over = Tally(), Event()
    with ThreadPoolExecutor(len(WEIGHTS)) as threads:
        searches = list(threads.map(lambda client: _Search.of(client, size), WEIGHTS))
        for search in searches:
            search.once()  # the first call prepares the function, and is not a part of the competition
        kaas.stats(reset=True)
        clients = [threads.submit(search.follow, tally, over) for search in searches]
        try:
            _watch(size.seconds, tally, console)
            stats, status = kaas.stats(), kaas.status()
        finally:
            over.set()
        for client in clients:
            client.result()
    return tally, stats, status


def _watch(seconds: float, tally: Tally, console: Console) -> None:
    """Show the shares while the clients compete, and kill an executor in the middle.

    On a slow machine this goes on until another executor has replaced the killed one.
    """
    began, kill = perf_counter(), _Kill(seconds / 2)
    with Live(console=console, auto_refresh=False) as live:
        while (passed := perf_counter() - began) < seconds or not kill.over:
            kill.follow(passed)
            live.update(Group(_share_table(kaas.stats(), tally), kill.story), refresh=True)
            Event().wait(SHOWN_EVERY_S)
        live.update(Group(_share_table(kaas.stats(), tally), f"{kill.story}\n"), refresh=True)


@dataclass(slots=True)
class _Kill:
    """SIGKILL for an executor at some time, and the replacement of the executor.

    Fields:
        due_s: time of the signal. story: for the user. over: the executor was replaced, or cannot be.
    """

    due_s: float
    story: str = ""
    over: bool = False
    _device: int = 0
    _pid: int = 0

    def follow(self, passed_s: float) -> None:
        devices = kaas.status().devices
        if not self._pid and passed_s > self.due_s:
            *_, (self._device, self._pid) = ((each.index, each.info.pid) for each in devices if each.info is not None)
            os.kill(self._pid, signal.SIGKILL)
            self.story = f"after {passed_s:.1f} s: SIGKILL for the executor of device {self._device} (pid {self._pid})"
        elif self._pid and not self.over:
            now = devices[self._device]
            if now.info is not None and now.info.pid != self._pid:
                self.story += f"\nafter {passed_s:.1f} s: another one is there (pid {now.info.pid})"
                self.over = True
            elif now.state == "lost":
                self.story += f"\nafter {passed_s:.1f} s: no other can be started"
                self.over = True


@dataclass(frozen=True, slots=True)
class _Search:
    """One client's searches of its own graph. answers: NumPy's result of each start."""

    client: str
    function: kaas.Function
    starts: list[Matrix]
    answers: list[Matrix]
    in_flight: int

    @classmethod
    def of(cls, client: str, size: Size) -> _Search:
        rng = np.random.default_rng(list(client.encode()))
        a = (rng.random((size.vertices, size.vertices)) < 8 / size.vertices).astype(np.float32)
        a /= max(1.0, float(a.sum(axis=1).max()))
        function = kaas.register(build(size), constants={"A": a}).options(client=client)
        starts = []
        for _ in range(size.searches):
            x = np.zeros((size.vertices, size.width), np.float32)
            x[rng.integers(0, size.vertices, size.width), np.arange(size.width)] = 1
            starts.append(x)
        return cls(client, function, starts, [reference(a, x, size.iterations) for x in starts], size.in_flight)

    def once(self) -> None:
        self.function.call(X=self.starts[0]).result()

    def follow(self, tally: Tally, over: Event) -> None:
        """Keep `in_flight` requests in flight until the competition is over, and count the right and wrong results."""
        in_flight: deque[tuple[kaas.Future, Matrix]] = deque()
        numbers = iter(_endless(len(self.starts)))
        while in_flight or not over.is_set():
            while len(in_flight) < self.in_flight and not over.is_set():
                number = next(numbers)
                in_flight.append((self.function.call(X=self.starts[number]), self.answers[number]))
            if in_flight:
                call, answer = in_flight.popleft()
                right = bool(np.allclose(call.result(), answer, rtol=1e-3, atol=1e-5))
                (tally.right if right else tally.wrong)[self.client] += 1


def _endless(count: int) -> Iterator[int]:
    while True:
        yield from range(count)


def _share_table(stats: Stats, tally: Tally) -> Table:
    seconds = dict.fromkeys(WEIGHTS, 0.0)
    for stage in stats.stages:
        if stage.stage == "kernels" and stage.client in seconds:
            seconds[stage.client] += stage.total_s
    total = sum(seconds.values()) or 1.0
    table = Table("client", title="what each client gets of the devices", title_justify="left")
    for title in ("weight", "requests", "device seconds", "share", "due"):
        table.add_column(title, justify="right")
    for client, weight in WEIGHTS.items():
        due = weight / sum(WEIGHTS.values())
        done = str(tally.right[client] + tally.wrong[client])
        share = f"{seconds[client] / total:.0%}"
        table.add_row(client, str(weight), done, f"{seconds[client]:.2f}", share, f"{due:.0%}")
    return table


def _stage_table(stats: Stats) -> Table:
    table = Table("client", title="median time of a request by stage, milliseconds", title_justify="left")
    for title in COLUMNS.values():
        table.add_column(title, justify="right")
    for client in WEIGHTS:
        found = {entry.stage: entry for entry in stats.stages if entry.client == client}
        table.add_row(client, *(f"{found[stage].p50_s * 1e3:.2f}" if stage in found else "-" for stage in COLUMNS))
    return table


def _cache_table(stats: Stats, status: Status) -> Table:
    table = Table("client", title="cached constants by device: hits / lookups", title_justify="left")
    for device in status.devices:
        table.add_column(f"{device.index}: {device.kind}", justify="right")
    for client in WEIGHTS:
        cells = []
        for device in status.devices:
            found = [tier for tier in stats.tiers if (tier.client, tier.device) == (client, device.index)]
            hits = sum(tier.objects for tier in found if tier.tier == "device")
            cells.append(f"{hits} / {sum(tier.objects for tier in found)}")
        table.add_row(client, *cells)
    return table
