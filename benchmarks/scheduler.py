"""The time of one decision in a large pool: a request ends, and its worker gets the next one, with all checks.

    python -m benchmarks.scheduler [--json] [--policy NAME]

Under each policy that shares devices: 1,000 devices, 10,000 functions of 10,000 clients, 100,000 waiting requests. A
device holds some 10 functions. decision_over_heap is the median time of handling a RequestDone, under the slowest
policy, over a push and a pop on a heap of 100,000 entries. growth_devices is over the same with 10 devices, and
growth_waiting over 100 waiting requests of 16 clients; both are of the policy that grows most. The sizes and the heap
take turns, so that a slow moment of the machine affects all, and memory is on huge pages, as a pool's is. The detail
also has `adaptive` with the lead of `kaas serve` on four devices: two clients with 64 or 2,000 functions together, and
five waiting requests of each function.
"""

from __future__ import annotations

import heapq
from itertools import count
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.report import parser, report
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import Dispatch, Evict, Prefetch, StartWorker
from kaas.scheduling.events import (
    ObjectUse,
    Ordered,
    Outcome,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    Tick,
    WorkerReady,
)
from kaas.scheduling.policies import POLICIES
from kaas.server.config.pool_settings import LEAD_S
from kaas.worker.huge_pages import use_huge_pages

SHARING = tuple(name for name in POLICIES if name not in ("exclusive", "static"))
DEVICES, CLIENTS, WAITING = 1000, 10_000, 100_000
FUNCTION_BYTES = 1 << 30
DEVICE_BYTES = 10 * FUNCTION_BYTES
WARM_UP = 10
"""Requests of each device before the measurement: a batch of a function, and more, so that devices are out of step."""
MEASURED, HEAP_STEPS, TURNS = 2000, 20_000, 40


class Pool:
    """Devices that are always busy under a policy, and a queue that keeps its length. devices: their number."""

    def __init__(
        self, policy: str, devices: int, functions: int, waiting: int, clients: int | None = None, **options: Any
    ) -> None:
        self.devices = devices
        physical = [PhysicalDevice(index, "gpu", DEVICE_BYTES, slots=1) for index in range(devices)]
        self._policy = CheckedPolicy(POLICIES[policy](physical, **options), physical, name=policy)
        self._random = Random(0)
        self._functions, self._clients = functions, clients or functions
        self._ids = count()
        self._now_s = 0.0
        self._running: dict[int, tuple[int, bytes]] = {}  # request: its worker, and what it reads
        self._held: dict[int, dict[bytes, None]] = {}
        self._keys: dict[int, bytes] = {}
        for start in [each for each in self._handle(Tick(0.0)) if isinstance(each, StartWorker)]:
            self._held[start.worker] = {}
            self._handle(WorkerReady(0.0, start.worker, start.kind, start.device, 1, DEVICE_BYTES))
        for _ in range(devices + waiting):
            self._arrive()

    def _handle(self, event: Any) -> list[Any]:
        decisions = self._policy.handle(event)
        self._carry_out(decisions)
        return decisions

    def _carry_out(self, decisions: list[Any]) -> None:
        for decision in decisions:
            match decision:
                case Dispatch(request=request, worker=worker):
                    self._running[request] = worker, self._keys.pop(request)
                case Prefetch(worker=worker, order=order) | Evict(worker=worker, order=order):
                    self._policy.handle(Ordered(self._now_s, worker, order, (), decision.keys))

    def _arrive(self) -> None:
        self._now_s += 0.001
        number, request = self._random.randrange(self._functions), next(self._ids)
        self._keys[request] = key = number.to_bytes(4, "big")
        uses = (ObjectUse(key, FUNCTION_BYTES, constant=True),)
        self._handle(RequestArrived(self._now_s, request, f"c{number % self._clients}", f"f{number}", uses))

    def step(self) -> float:
        """End a request, and let another one arrive. Return the seconds of the end."""
        request = self._random.choice(list(self._running)) if len(self._running) < 32 else next(iter(self._running))
        worker, key = self._running.pop(request)
        self._now_s += 0.01
        held = self._held[worker]
        loaded = key not in held
        held.pop(key, None)
        held[key] = None
        if loaded:
            gone = next(iter(held)) if len(held) > DEVICE_BYTES // FUNCTION_BYTES else None
            if gone is not None:
                del held[gone]
            self._handle(Residency(self._now_s, worker, (key,), () if gone is None else (gone,)))
        done = RequestDone(
            self._now_s, request, worker, 0, Outcome.SUCCEEDED, 1.5, 1.0, 0.5 * loaded, FUNCTION_BYTES * loaded
        )
        began = perf_counter()
        decisions = self._policy.handle(done)
        took_s = perf_counter() - began
        self._carry_out(decisions)
        self._arrive()
        return took_s


class Heap:
    """A heap that keeps its length. It is for one measurement: by and by only the greatest keys are left."""

    def __init__(self, entries: int = WAITING) -> None:
        self._random, self._ids = Random(0), count(entries)
        self._entries = [(self._random.random(), number) for number in range(entries)]
        heapq.heapify(self._entries)

    def step(self) -> float:
        """Return the seconds of a push and a pop."""
        entry = self._random.random(), next(self._ids)
        began = perf_counter()
        heapq.heappush(self._entries, entry)
        heapq.heappop(self._entries)
        return perf_counter() - began


def medians_s(*pools: Pool) -> list[float]:
    """Return the median seconds of a step of a new heap, and of a RequestDone with its dispatch in each pool."""
    for pool in pools:
        for _ in range(WARM_UP * pool.devices):
            pool.step()
    use_huge_pages()
    measured: list[tuple[Heap | Pool, int]] = [(Heap(), HEAP_STEPS), *((pool, MEASURED) for pool in pools)]
    took: list[list[float]] = [[] for _ in measured]
    for _ in range(TURNS):
        for (each, steps), own in zip(measured, took, strict=True):
            own += [each.step() for _ in range(steps // TURNS)]
    return list(map(median, took))


def main() -> None:
    """Measure, and report."""
    options = parser((__doc__ or "").partition("\n")[0])
    options.add_argument("--policy", choices=SHARING)
    chosen = options.parse_args()
    policies = SHARING if chosen.policy is None else (chosen.policy,)
    detail: dict[str, Any] = {}
    over_heap, by_devices, by_waiting = [], [], []
    for policy in policies:
        sizes = (DEVICES, CLIENTS, WAITING), (10, CLIENTS, WAITING), (16, 16, 100)
        unit, large, few, short = medians_s(*(Pool(policy, *size) for size in sizes))
        over_heap.append(large / unit)
        by_devices.append(large / few)
        by_waiting.append(large / short)
        detail[f"{policy}_us"] = round(large * 1e6, 1)
        detail[f"{policy}_10_devices_us"] = round(few * 1e6, 1)
        detail[f"{policy}_100_waiting_us"] = round(short * 1e6, 1)
        detail[f"{policy}_heap_us"] = round(unit * 1e6, 2)
    for functions in (64, 2000) if "adaptive" in policies else ():
        _, crossing_s = medians_s(Pool("adaptive", 4, functions, 5 * functions, clients=2, T=LEAD_S))
        detail[f"adaptive_2_clients_{functions}_functions_us"] = round(crossing_s * 1e6, 1)
    bars = {
        "decision_over_heap": (max(over_heap), "<=", 50),
        "growth_devices": (max(by_devices), "<=", 2),
        "growth_waiting": (max(by_waiting), "<=", 3),
    }
    report("scheduler", bars, detail, chosen.json)


if __name__ == "__main__":
    main()
