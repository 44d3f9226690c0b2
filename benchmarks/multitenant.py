"""More clients than devices: kTasks, which share devices, over eTasks, which take a device each for their own process.

    python -m benchmarks.multitenant [--json]

There are four software devices, whose kernel is modelled as 5 ms of device time. Every request runs that kernel on 4 KB
of its own and on 4 KB of its client's, and its output is checked. kTasks run under `cfs_affinity`, with two slots a
device, eTasks under `exclusive`. The relay is an asyncio actor before four empty actors, with as many slots, that hold
a lock for 5 ms: a device runs one such kernel at a time. The relay passes on an array and a reference, as a kTask's
request has them, and takes turns with kTasks, so that both see the same machine. If an open loop gets fewer replies
than it sends requests, the bar of latencies is "unstable": their ratio would only show the length of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.queueing import UNSTABLE, is_stable
from benchmarks.report import Bar, arguments, report

os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # Ray reads it when it is imported

import ray

import kaas
import softgpu
from kaas.executor.device import software

PTX = Path(__file__).parent / "kernels" / "launch.ptx"
KERNEL_S = 5e-3
DEVICES, SLOTS = 4, 2
FEW, MANY = 4, 16
N = 1024
ROUNDS = 1
"""The rounds of the kernel's own work: its time is modelled."""
DEVICE = kaas.Device("software", 64 << 20, model=softgpu.Model(kernels={"step": softgpu.Takes(KERNEL_S)}))
SHARED, EXCLUSIVE = "cfs_affinity", "exclusive"

COLD_STARTS = 4
SHARED_ROUNDS, SHARED_ROUND_S = 5, 1.2
EXCLUSIVE_FEW_S, EXCLUSIVE_MANY_S = 3.0, 12.0
OPEN_SHARED_S, OPEN_EXCLUSIVE_S = 8.0, 12.0
FEWEST = 8
"""The number of requests of an open loop."""
OPEN_LOAD = 0.8
"""The load of an open loop, as a share of the eTasks' peak."""


@dataclass(frozen=True, slots=True)
class Load:
    """Functions that send a request of a client, by its number, and check the result."""

    send: Callable[[int], Any]
    check: Callable[[int, Any], None]

    async def ask(self, client: int) -> None:
        self.check(client, await self.send(client))


def reader() -> kaas.KTask:
    x, w, y = (kaas.Buffer(name, N, "float32") for name in "xwy")
    args: list[Any] = [kaas.In(x), kaas.In(w), kaas.Out(y), kaas.i32(N), kaas.i32(ROUNDS)]
    return kaas.KTask([kaas.Kernel(kaas.Library.from_file(PTX), "step", N // 256, 256, args)], [y])


class Step:
    """The work of an eTask or an actor: the same kernel, by the CUDA driver of its own process."""

    def __init__(self, w: np.ndarray[Any, Any]) -> None:
        self.w = w
        self.task = reader()

    def __call__(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return kaas.run_local(self.task, {"x": x, "w": self.w})["y"]


class Plain(Step):
    """An ordinary actor with the work of an eTask's worker."""

    def first(self, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0"
        software.load(DEVICE)
        return self(x)


X = np.ones(N, np.float32)
WEIGHTS = [np.full(N, k + 1, np.float32) for k in range(MANY)]


def check(client: int, y: np.ndarray[Any, Any]) -> None:
    """Check that the kernel has read this client's object: a fast pool may be a wrong one."""
    w = float(WEIGHTS[client][0])
    expected = 2 * w + (1 - 2 * w) * 0.5**ROUNDS  # from x = 1
    if abs(y[0] - expected) > 1e-3 or abs(y[-1] - expected) > 1e-3:
        raise SystemExit(f"client {client} got {y[0]}, not {expected}: this measured something else")


# --- load


async def closed(load: Load, clients: int, seconds: float) -> float:
    """Return the requests a second of so many clients in closed loops, from the first reply to the last."""
    answered: list[float] = []
    under_way: dict[int, Any] = {}

    async def client(number: int) -> None:
        while True:
            under_way[number] = load.send(number)
            load.check(number, await under_way[number])
            answered.append(perf_counter())

    tasks = [asyncio.ensure_future(client(number)) for number in range(clients)]
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        task.cancel()
    for ref in under_way.values():
        ray.cancel(ref)
    await asyncio.gather(*(task for task in tasks if task not in done), return_exceptions=True)
    for task in done:
        task.result()
    if len(answered) < 2:
        raise SystemExit(f"{len(answered)} answers in {seconds} s: nothing to measure")
    return (len(answered) - 1) / (answered[-1] - answered[0])


async def opened(load: Load, clients: int, rate: float, seconds: float) -> list[float]:
    """Return the latencies of random arrivals, so many a second, each of another client than the last."""
    chance = np.random.default_rng(0)
    gaps = chance.exponential(1 / rate, max(FEWEST, round(rate * seconds)))

    async def request(number: int, at: float) -> float:
        await asyncio.sleep(max(0.0, at - perf_counter()))
        await load.ask(number % clients)
        return perf_counter() - at

    times = perf_counter() + np.cumsum(gaps)
    return list(await asyncio.gather(*(request(number, at) for number, at in enumerate(times))))


# --- the compared sides


@contextmanager
def pool(policy: Any) -> Iterator[None]:
    kaas.init(config=kaas.Config((DEVICE,) * DEVICES, policy, slots=SLOTS))
    try:
        yield
    finally:
        kaas.shutdown()


def ktasks() -> Load:
    task = reader()
    functions = [kaas.register(task, {"w": w}).options(client=f"client-{k}") for k, w in enumerate(WEIGHTS)]
    return Load(lambda client: functions[client].remote(x=X), check)


def etasks() -> Load:
    step: Any = kaas.etask(Step)
    handles = [step.bind(w).options(client=f"client-{k}") for k, w in enumerate(WEIGHTS)]
    return Load(lambda client: handles[client].remote(X), check)


class Empty:
    """An empty executor."""

    def __init__(self) -> None:
        self._device = threading.Lock()

    def run(self, data: Any, _: list[Any]) -> Any:
        with self._device:
            time.sleep(KERNEL_S)
        return data


class Relay:
    """An empty pool: the first request in its queue gets the next free slot."""

    def __init__(self, executors: list[Any]) -> None:
        self._free: asyncio.Queue[Any] = asyncio.Queue()
        for executor in executors * SLOTS:
            self._free.put_nowait(executor)

    async def run(self, data: Any, refs: list[Any]) -> Any:
        executor = await self._free.get()
        try:
            return await executor.run.remote(data, refs)
        finally:
            self._free.put_nowait(executor)


@contextmanager
def relay() -> Iterator[Load]:
    remote: Any = ray.remote  # Any: Ray's types lack concurrency
    actor = remote(num_cpus=0, max_concurrency=SLOTS)(Empty)
    between = remote(num_cpus=0, max_concurrency=1000)(Relay)
    executors = [actor.remote() for _ in range(DEVICES)]
    relayed = between.remote(executors)

    refs = [[ray.put(w)] for w in WEIGHTS]
    ray.get([relayed.run.remote(X, ref) for ref in refs])
    try:
        yield Load(lambda client: relayed.run.remote(X, refs[client]), lambda *_: None)
    finally:
        for each in (relayed, *executors):
            ray.kill(each)


# --- measurements


def cold_starts() -> tuple[list[float], list[float]]:
    """Return the seconds to the first result of a new eTask, on a device without a worker, and of a new actor."""
    plain: Any = ray.remote(num_cpus=0)(Plain)

    def of_etask(k: int) -> None:
        step: Any = kaas.etask(Step)
        check(k, ray.get(step.bind(WEIGHTS[k]).options(client=f"cold-{k}").remote(X)))

    def of_actor(k: int) -> None:
        actor = plain.remote(WEIGHTS[k])
        check(k, ray.get(actor.first.remote(X)))
        ray.kill(actor)

    ways = {"etask": of_etask, "actor": of_actor}
    of_actor(0)  # the first one compiles the kernel
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for k in range(COLD_STARTS):
        for name in sorted(ways, reverse=bool(k % 2)):
            began = perf_counter()
            ways[name](k)
            seconds[name].append(perf_counter() - began)
    return seconds["etask"], seconds["actor"]


async def measure_exclusive() -> dict[str, Any]:
    load = etasks()
    await asyncio.gather(*map(load.ask, range(FEW)))
    few = await closed(load, FEW, EXCLUSIVE_FEW_S)
    many = await closed(load, MANY, EXCLUSIVE_MANY_S)
    latency = await opened(load, MANY, OPEN_LOAD * many, OPEN_EXCLUSIVE_S)
    return {"few": few, "many": many, "latency": latency}


async def measure_shared(rate: float) -> dict[str, Any]:
    load = ktasks()
    await asyncio.gather(*map(load.ask, list(range(MANY)) * 4))
    rates: dict[str, list[float]] = {"few": [], "many": [], "relay": []}
    with relay() as empty:
        for _ in range(SHARED_ROUNDS):
            rates["many"].append(await closed(load, MANY, SHARED_ROUND_S))
            rates["relay"].append(await closed(empty, MANY, SHARED_ROUND_S))
            rates["few"].append(await closed(load, FEW, SHARED_ROUND_S / 2))
    latency = await opened(load, MANY, OPEN_LOAD * rate, OPEN_SHARED_S)
    efficiency = median(ktask / empty for ktask, empty in zip(rates["many"], rates["relay"], strict=True))
    return {name: median(each) for name, each in rates.items()} | {"latency": latency, "efficiency": efficiency}


def main() -> None:
    options = arguments(__doc__.partition("\n")[0] if __doc__ else "")
    ray.init(logging_level=logging.WARNING)  # this Ray outlives the pools
    with pool(EXCLUSIVE):
        etask_s, actor_s = cold_starts()
        exclusive = asyncio.run(measure_exclusive())
    with pool(SHARED):
        shared = asyncio.run(measure_shared(exclusive["many"]))
    ray.shutdown()
    p50 = {"etask": median(exclusive["latency"]), "ktask": median(shared["latency"])}
    stable = {
        "etask": is_stable(exclusive["latency"], OPEN_EXCLUSIVE_S),
        "ktask": is_stable(shared["latency"], OPEN_SHARED_S),
    }
    latency = p50["etask"] / p50["ktask"] if all(stable.values()) else UNSTABLE
    bars: dict[str, Bar] = {
        f"throughput_{MANY}": (shared["many"] / exclusive["many"], ">=", 50.0),
        f"latency_{MANY}": (latency, ">=", 16.0),
        f"throughput_{FEW}": (shared["few"] / exclusive["few"], ">=", 0.9),
        f"efficiency_{MANY}": (shared["efficiency"], ">=", 0.8),
        "etask_cold_over_actor": (median(etask_s) / median(actor_s), "<=", 1.3),
    }
    detail = {
        "devices": DEVICES,
        "slots": SLOTS,
        "kernel_ms": KERNEL_S * 1e3,
        f"ktask_{MANY}_per_s": shared["many"],
        f"relay_{MANY}_per_s": shared["relay"],
        f"etask_{MANY}_per_s": exclusive["many"],
        f"ktask_{FEW}_per_s": shared["few"],
        f"etask_{FEW}_per_s": exclusive["few"],
        "open_loop_per_s": OPEN_LOAD * exclusive["many"],
        "ktask_p50_ms": p50["ktask"] * 1e3,
        "etask_p50_ms": p50["etask"] * 1e3,
        **{f"{name}_open_loop": "stable" if is_so else UNSTABLE for name, is_so in stable.items()},
        "etask_cold_ms": median(etask_s) * 1e3,
        "actor_cold_ms": median(actor_s) * 1e3,
    }
    report("multitenant", bars, detail, options.json)


if __name__ == "__main__":
    main()
