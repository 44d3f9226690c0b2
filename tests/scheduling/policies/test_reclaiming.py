"""Devices that change hands between groups: kTasks of some clients and eTasks of others, on fewer devices."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import Dispatch, PolicyFactory, StartWorker, StopWorker, WakeAt
from kaas.scheduling.events import WorkerKind
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.reclaiming import TURN
from kaas.scheduling.policies.state import Serves
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import ETASK, EXECUTOR, World

CONSERVING = [name for name in POLICIES if name != "exclusive"]
SOME = ["fcfs", "cfs_affinity", "mqfq_sticky", "adaptive"]
START_S = 3.0
TURN_S = TURN * START_S


@dataclass(frozen=True)
class Loop:
    """A client that sends its next call `pause_s` after a reply, with so many calls open at once."""

    client: str
    kind: WorkerKind
    run_s: float
    at_once: int = 1
    pause_s: float = 0.0

    @property
    def group(self) -> str:
        """The client of an eTask, "" for all kTasks."""
        return self.client if self.kind is ETASK else ""


class Hands:
    """A pool in virtual time, whose workers take START_S to start.

    Fields:
        ended: ended calls of each client. waits_s: the longest time between two dispatches of a group, and since the
            last one of each. starts: of workers.
    """

    def __init__(self, factory: PolicyFactory, devices: int, loops: list[Loop], **weights: float) -> None:
        self.world = World(factory, devices)
        self.ended: Counter[str] = Counter()
        self.last_s = dict.fromkeys((loop.group for loop in loops), START_S)
        self.waits_s = dict.fromkeys(self.last_s, 0.0)
        self.starts = 0
        self._seen = 0
        self._calls: dict[int, Loop] = {}
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._entries = count()
        for client, weight in weights.items():
            self.world.known(client, weight=weight)
        self.world.tick()
        self._take_in()
        for loop in loops:
            for _ in range(loop.at_once):
                self._after(START_S, partial(self._call, loop))

    def until(self, time_s: float) -> Hands:
        """Let all that comes before a time happen."""
        while self._later and self._later[0][0] <= time_s:
            at_s, _, happen = heapq.heappop(self._later)
            self.world.time_s = max(self.world.time_s, at_s)
            happen()
            self._take_in()
        for group, last_s in self.last_s.items():
            self.waits_s[group] = max(self.waits_s[group], time_s - last_s)
        return self

    def _after(self, wait_s: float, happen: Callable[[], object]) -> None:
        heapq.heappush(self._later, (self.world.time_s + wait_s, next(self._entries), happen))

    def _call(self, loop: Loop) -> None:
        self._calls[self.world.next_request] = loop
        self.world.arrive(loop.client, "f", loop.kind)

    def _take_in(self) -> None:
        world, placement = self.world, self._placement
        new, self._seen = world.decided[self._seen :], len(world.decided)
        given: set[tuple[Serves, Serves]] = set()
        for decision in new:
            match decision:
                case StartWorker(worker=worker):
                    self.starts += 1
                    self._after(START_S, partial(self._up, worker))
                case StopWorker(worker=worker):
                    stopped = world.workers.get(worker) or world.starting[worker]
                    to = placement.devices[stopped.device].reservation
                    given.add((Serves(stopped.kind, stopped.client, stopped.function), to.serves))
                    self._after(0.0, partial(self._end, worker))
                case Dispatch(request=request):
                    loop = self._calls[request]
                    waited_s = world.time_s - self.last_s[loop.group]
                    self.waits_s[loop.group] = max(self.waits_s[loop.group], waited_s)
                    self.last_s[loop.group] = world.time_s
                    self._after(loop.run_s, partial(self._finish, request))
                case WakeAt(time_s=time_s):
                    self._after(time_s - world.time_s, world.tick)
        assert not {(to, of) for of, to in given} & given, f"two groups swap devices at {world.time_s} s"

    @property
    def _placement(self) -> Any:
        return self.world.raw._placement  # type: ignore[attr-defined]

    def _up(self, worker: int) -> None:
        if worker in self.world.starting and worker not in self.world.stopping:
            self.world.up(worker)

    def _end(self, worker: int) -> None:
        if worker in self.world.stopped():
            self.world.gone(worker, "stopped")

    def _finish(self, request: int) -> None:
        worker, _ = self.world.running[request]
        loop = self._calls.pop(request)
        self.ended[loop.client] += 1
        self.world.finish(request, loop.run_s)
        self._after(loop.pause_s, partial(self._call, loop))
        self._after(0.0, partial(self._end, worker))


FLOOD = [Loop("a", EXECUTOR, 0.1, at_once=20), Loop("b", EXECUTOR, 0.1, at_once=20)]


@pytest.mark.parametrize("name", CONSERVING)
def test_calls_of_an_etask_beside_ktasks_of_two_clients_find_their_worker(name: str) -> None:
    """For about 24 device-seconds of runs on each of two devices."""
    functions: dict[str, Any] = {each: {"run_s": 0.05, "client": each} for each in "ab"}
    functions["e"] = {"kind": "etask", "cold_s": START_S, "run_s": 0.2, "client": "e"}
    requests = [{"function": each} for each in "ab"] * 400 + [{"function": "e", "at_s": n / 4} for n in range(40)]
    told = {"policy": {"name": name}, "worker_start_s": START_S, "devices": [{}, {}], "functions": functions}
    summary = simulate(read({**told, "requests": requests})).summary
    assert summary.colds == 1
    assert summary.mean_latency_s < 20


@pytest.mark.parametrize("name", CONSERVING)
@pytest.mark.parametrize("devices", [1, 2])
def test_an_etask_in_a_loop_keeps_its_worker_between_its_calls(name: str, devices: int) -> None:
    """A turn has some fifty calls, each of which would be a cold start."""
    pool = Hands(POLICIES[name], devices, [*FLOOD, Loop("e", ETASK, 0.2, pause_s=0.05)]).until(150.0)
    assert pool.ended["e"] > 150
    assert pool.ended["a"] + pool.ended["b"] > 500


@pytest.mark.parametrize("name", CONSERVING)
def test_an_idle_worker_keeps_its_device_for_as_long_as_its_start_took(name: str) -> None:
    pool = Hands(POLICIES[name], 1, [*FLOOD, Loop("e", ETASK, 0.2, pause_s=1000.0)]).until(3 * START_S)
    assert pool.ended["e"] == 1
    before = pool.ended.total()
    assert pool.until(4 * START_S).ended.total() == before
    assert pool.until(5.5 * START_S).ended.total() > before


@pytest.mark.parametrize("name", SOME)
def test_executors_that_are_not_needed_go_at_once(name: str) -> None:
    pool = Hands(POLICIES[name], 2, [Loop("a", EXECUTOR, 0.1, pause_s=1000.0)]).until(START_S + 0.2)
    pool.world.arrive("e", "f", ETASK)
    assert len(pool.world.stopping) == 1


@pytest.mark.parametrize("name", ["cfs_affinity", "adaptive"])
@given(data=st.data(), devices=st.integers(1, 3), clients=st.integers(0, 3), etasks=st.integers(1, 4))
def test_groups_that_always_wait_take_turns(
    name: str, data: st.DataObject, devices: int, clients: int, etasks: int
) -> None:
    """Starts take a small share of the time, no group swaps a device for another, and none waits for long."""
    runs, weights = st.sampled_from([1.0, 2.0, 8.0]), st.sampled_from([0.1, 1.0, 1.0, 3.0])
    loops = [Loop(f"k{n}", EXECUTOR, data.draw(runs), at_once=6) for n in range(clients)]
    loops += [Loop(f"e{n}", ETASK, data.draw(runs), at_once=6) for n in range(etasks)]
    weights_of = {loop.client: data.draw(weights) for loop in loops}
    pool = Hands(POLICIES[name], devices, loops, **weights_of).until(100.0)
    turns = devices * (100.0 / (START_S + TURN_S) + 1)
    assert pool.starts <= turns + devices, pool.world.decided
    groups = len(pool.waits_s)
    assert max(pool.waits_s.values()) <= 2 * groups * (START_S + TURN_S + 8.0)
