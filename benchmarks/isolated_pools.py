"""Pools with each level of isolation, in turns: four clients on one device, whose kernel is modelled as 5 ms.

Each request runs the kernel on 4 KB of its own and on 4 KB of its client's, and its output is checked. A pool has one
slot: where clients have executors of their own, the policy still runs one request at a time on the device.

Then such clients call one model, whose constants are 64 MB: the figures `model_*` are of those after the first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import kaas
import softgpu
from kaas.errors import KaasError

LEVELS = ("none", "fence", "process")
PTX = Path(__file__).parent / "kernels" / "launch.ptx"
KERNEL_S = 5e-3
CLIENTS, SINGLE, MEASURED_S = 4, 100, 2.0
N = 1024
MODEL_FLOATS = 16 << 20
START_LIMIT_S = 30.0
DEVICE = kaas.Device("software", 1 << 30, model=softgpu.Model(kernels={"step": softgpu.Takes(KERNEL_S)}))


class Client:
    """A client of the pool that this process has now, with a function."""

    def __init__(self, number: int, function: Any) -> None:
        self.name = f"client {number}"
        self._x = np.full(N, number, np.float32)
        self._function = function
        self._expected: Any = None

    def ask(self) -> float:
        """Send a request, check its output, and return the seconds that it took."""
        began_s = perf_counter()
        output = np.asarray(kaas.call(self._function, {"x": self._x}, client=self.name).result())
        took_s = perf_counter() - began_s
        if self._expected is None:
            self._expected = output
        np.testing.assert_array_equal(output, self._expected)
        return took_s


def step_of(weights: np.ndarray[Any, Any]) -> Any:
    """Return a registered function of the kernel, whose constant is these numbers."""
    x, w, y = (kaas.Buffer(name, size, "float32") for name, size in (("x", N), ("w", weights.size), ("y", N)))
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(1)]
    task = kaas.KTask([kaas.Kernel(kaas.Library.from_file(PTX), "step", N // 256, 256, args)], [y])
    return kaas.register(task, {"w": weights})


@contextmanager
def pool(isolation: str) -> Iterator[None]:
    """A pool with one device, as this process's session."""
    kaas.init(
        ray=False,
        name=f"isolation {isolation}",
        config=kaas.Config(devices=(DEVICE,), isolation=isolation, client_executors=CLIENTS, policy="fcfs"),
    )
    try:
        yield
    finally:
        kaas.shutdown()


def processes() -> list[int]:
    """Return the processes of the pool's executors, without one that only starts."""
    (device,) = kaas.status().devices
    if device.executors:
        return [each.pid for each in device.executors if each.pid]
    assert device.info is not None, "it has started"
    return [device.info.pid]


def resident_mb(pid: int) -> float:
    """Return the memory of a process; what it shares with others counts by its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def spare_is_ready(isolation: str) -> None:
    """Wait until the next client finds an executor that has started.

    Raises:
        KaasError: none starts.
    """
    until_s = perf_counter() + START_LIMIT_S
    while isolation == "process" and not any(
        each.state == "idle" and not each.client for each in kaas.status().devices[0].executors
    ):
        if perf_counter() > until_s:
            raise KaasError("no spare executor starts")


def turn(isolation: str) -> dict[str, float]:
    """Start a pool, and return what it does."""
    with pool(isolation):
        clients = [Client(number, step_of(np.full(N, 10 * number, np.float32))) for number in range(1, CLIENTS + 1)]
        first = first_answers(isolation, clients)
        latency_s = median(clients[0].ask() for _ in range(SINGLE))
        counts = [0] * CLIENTS
        until_s = perf_counter() + MEASURED_S

        def load(number: int) -> None:
            while perf_counter() < until_s:
                clients[number].ask()
                counts[number] += 1

        threads = [threading.Thread(target=load, args=(number,)) for number in range(CLIENTS)]
        began_s = perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = sum(counts) / (perf_counter() - began_s)
        memory_mb = sum(map(resident_mb, processes()))
    return {"first_ms": 1e3 * median(first), "latency_ms": 1e3 * latency_s, "rate": rate, "memory_mb": memory_mb}


def model_turn(isolation: str) -> dict[str, float]:
    """Start a pool whose clients call one model, and return what it does."""
    with pool(isolation):
        model = step_of(np.arange(MODEL_FLOATS, dtype=np.float32))
        clients = [Client(number, model) for number in range(1, CLIENTS + 1)]
        first = first_answers(isolation, clients)
        latency_s = median(clients[-1].ask() for _ in range(SINGLE))
        memory_mb = sum(map(resident_mb, processes()))
    return {
        "model_first_ms": 1e3 * median(first[1:]),
        "model_latency_ms": 1e3 * latency_s,
        "model_memory_mb": memory_mb,
    }


def first_answers(isolation: str, clients: list[Client]) -> list[float]:
    """Return the seconds of the first request of each client, one after the other."""
    taken = []
    for client in clients:
        spare_is_ready(isolation)
        taken.append(client.ask())
    return taken


def compare(rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians over so many rounds, by level."""
    taken: dict[str, list[dict[str, float]]] = {level: [] for level in LEVELS}
    for _ in range(rounds):
        for level in LEVELS:
            taken[level].append(turn(level) | model_turn(level))
    return {level: {name: median(each[name] for each in turns) for name in turns[0]} for level, turns in taken.items()}
