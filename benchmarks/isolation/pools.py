"""Pools with each level of isolation, in turns: four clients on one device, whose kernels are modelled.

Each request runs a kernel on 4 KB of its own and on 4 KB of its client's, and its output is checked. A pool has one
slot: where clients have executors of their own, the policy still runs one request at a time on the device.

Then such clients call one model, whose constants are 64 MB: the figures `model_*` are of those after the first. Last,
more clients call than a device has executors for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import kaas
import softgpu
from benchmarks.isolation.memory import memory_mb
from benchmarks.served import descendants
from kaas.errors import KaasError

LEVELS = ("none", "fence", "process")
PTX = (Path(__file__).parent.parent / "kernels" / "launch.ptx").read_text()
TAKES_S = {"200us": 2e-4, "1ms": 1e-3, "5ms": 5e-3, "20ms": 2e-2}
"""The modelled times of the kernel, by the ends of the names that it has for each."""
USUAL = "5ms"
"""The time of the kernel where nothing else is said."""
CLIENTS, SINGLE, MEASURED_S, CROWDED_S = 4, 100, 1.5, 6.0
N = 1024
MODEL_FLOATS = 16 << 20
START_LIMIT_S = 30.0
DEVICE = kaas.Device(
    "software",
    1 << 30,
    model=softgpu.Model(kernels={f"step_{name}": softgpu.Takes(takes_s) for name, takes_s in TAKES_S.items()}),
)


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


def step_of(weights: np.ndarray[Any, Any], takes: str = USUAL) -> Any:
    """Return a registered function of a kernel, whose constant is these numbers."""
    x, w, y = (kaas.Buffer(name, size, "float32") for name, size in (("x", N), ("w", weights.size), ("y", N)))
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(1)]
    code = kaas.Library.from_ptx(PTX.replace("step", f"step_{takes}"))
    task = kaas.KTask([kaas.Kernel(code, f"step_{takes}", N // 256, 256, args)], [y])
    return kaas.register(task, {"w": weights})


def clients_of(takes: str, count: int = CLIENTS) -> list[Client]:
    """Return so many clients, with a function each. Those of one number are the same client for all kernels."""
    return [Client(number, step_of(np.full(N, 10 * number, np.float32), takes)) for number in range(1, count + 1)]


@contextmanager
def pool(isolation: str) -> Iterator[None]:
    """A pool with one device, as this process's session."""
    kaas.init(
        ray=False,
        name=f"isolation {isolation} {os.getpid()}",
        config=kaas.Config(devices=(DEVICE,), isolation=isolation, client_executors=CLIENTS, policy="fcfs"),
    )
    try:
        yield
    finally:
        kaas.shutdown()


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


def rate(clients: Sequence[Client], seconds: float) -> float:
    """Return the requests a second of clients that each send the next request when the last one is answered."""
    counts = [0] * len(clients)
    for client in clients:
        client.ask()
    until_s = perf_counter() + seconds

    def load(number: int) -> None:
        while perf_counter() < until_s:
            clients[number].ask()
            counts[number] += 1

    threads = [threading.Thread(target=load, args=(number,)) for number in range(len(clients))]
    began_s = perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (perf_counter() - began_s)


def pool_memory_mb(isolation: str) -> float:
    """Return the memory of all processes of the pool: its own, executors, compilers, and the holder of constants."""
    spare_is_ready(isolation)
    return memory_mb([*descendants(os.getpid())])


def turn(isolation: str) -> dict[str, float]:
    """Start a pool, and return what it does."""
    with pool(isolation):
        began_s = perf_counter()
        clients = clients_of(USUAL)
        clients[0].ask()
        found = {"start_ms": 1e3 * (perf_counter() - began_s)}
        found["first_ms"] = 1e3 * median(first_answers(isolation, clients[1:-1]))
        found["next_ms"] = 1e3 * clients[-1].ask()  # the one before has just taken the spare executor
        found["latency_ms"] = 1e3 * median(clients[0].ask() for _ in range(SINGLE))
        for takes in TAKES_S:
            found[f"rate_{takes}"] = rate(clients if takes == USUAL else clients_of(takes), MEASURED_S)
        found["processes_mb"] = pool_memory_mb(isolation)
    return found


def model_turn(isolation: str) -> dict[str, float]:
    """Start a pool whose clients call one model, and return what it does."""
    with pool(isolation):
        model = step_of(np.arange(MODEL_FLOATS, dtype=np.float32))
        clients = [Client(number, model) for number in range(1, CLIENTS + 1)]
        first = first_answers(isolation, clients)
        latency_s = median(clients[-1].ask() for _ in range(SINGLE))
        memory = pool_memory_mb(isolation)
    return {
        "model_first_ms": 1e3 * median(first[1:]),
        "model_latency_ms": 1e3 * latency_s,
        "model_processes_mb": memory,
    }


def first_answers(isolation: str, clients: Sequence[Client]) -> list[float]:
    """Return the seconds of the first request of each client, one after the other."""
    taken = []
    for client in clients:
        spare_is_ready(isolation)
        taken.append(client.ask())
    return taken


def crowded_rate(isolation: str) -> float:
    """Return the requests a second of one client more than the device has executors for."""
    with pool(isolation):
        return rate(clients_of(USUAL, CLIENTS + 1), CROWDED_S)


def compare(rounds: int) -> dict[str, dict[str, float]]:
    """Return the medians over so many rounds, by level."""
    taken: dict[str, list[dict[str, float]]] = {level: [] for level in LEVELS}
    for _ in range(rounds):
        for level in LEVELS:
            taken[level].append(turn(level) | model_turn(level))
    found = {level: {name: median(each[name] for each in turns) for name in turns[0]} for level, turns in taken.items()}
    for level, figures in found.items():
        figures["crowded_rate"] = crowded_rate(level)
    return found
