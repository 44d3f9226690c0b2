"""The free device for a request, under every policy that shares executors: these events, these decisions."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.scheduling.decisions import PolicyFactory
from kaas.scheduling.events import ObjectUse, Outcome
from kaas.scheduling.policies import locality
from kaas.scheduling.policies.cfs_affinity import CfsAffinity
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.scheduling.policies.locality import Locality
from kaas.scheduling.policies.state import QueuedRequest, Rank, WorkerGroup, WorkerState
from kaas.scheduling.policies.static import Static
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import ETASK, World

POLICIES: dict[str, PolicyFactory] = {
    "fcfs": FirstComeFirstServed,
    "cfs_affinity": CfsAffinity,
    "static": lambda devices: Static(devices, shares={"c": len(devices)}),
}
MEMORY_BYTES = 64


@pytest.fixture(params=POLICIES)
def factory(request: pytest.FixtureRequest) -> PolicyFactory:
    return POLICIES[request.param]


def idle(factory: PolicyFactory, *, devices: int = 3, slots: int = 1, speeds: tuple[float, ...] = ()) -> World:
    """Executors that are up on every device, with empty caches."""
    world = World(factory, devices, slots, speeds=speeds, memory_bytes=MEMORY_BYTES)
    world.tick()
    for worker in sorted(world.starting):
        world.up(worker)
    return world


def reads(sizes: dict[str, int]) -> tuple[ObjectUse, ...]:
    return tuple(ObjectUse(name.encode(), nbytes) for name, nbytes in sizes.items())


def run(world: World, sizes: dict[str, int], *, evicted: tuple[bytes, ...] = (), loads: bool = True) -> int:
    """Run a request from its arrival to its end, and return its device."""
    request = world.arrive(inputs=reads(sizes))
    worker = world.running[request][0]
    if loads:
        world.resident(worker, tuple(name.encode() for name in sizes), evicted)
    world.finish(request, 1.0)
    return worker


def test_a_new_object_is_loaded_where_it_evicts_nothing(factory: PolicyFactory) -> None:
    world = idle(factory)
    homes = {name: run(world, {name: 40}) for name in "abc"}
    assert sorted(homes.values()) == [0, 1, 2]
    for _ in range(2):
        for name, device in homes.items():
            assert run(world, {name: 40}) == device


def test_of_full_devices_the_one_with_the_oldest_data_is_used(factory: PolicyFactory) -> None:
    """All devices are full: each new function drives out what was used longest ago, and none of the new ones."""
    world = idle(factory)
    old = [run(world, {name: 60}) for name in "xyz"]
    homes = []
    for number, name in enumerate("abc"):
        homes.append(run(world, {name: 40}, evicted=("xyz"[number].encode(),)))
    assert homes == old


def test_objects_that_a_running_request_loads_count_as_cached(factory: PolicyFactory) -> None:
    world = idle(factory, devices=2, slots=2)
    first, second = (world.arrive(inputs=reads({name: 40})) for name in "ab")
    assert {world.running[first][0], world.running[second][0]} == {0, 1}
    third = world.arrive(inputs=reads({"b": 40}))
    assert world.running[third][0] == world.running[second][0], "elsewhere it would drive something out"


def test_an_idle_device_is_used_before_a_second_slot_if_nothing_is_lost(factory: PolicyFactory) -> None:
    world = idle(factory, devices=2, slots=2)
    requests = [world.arrive(inputs=reads({"a": 40})) for _ in range(2)]
    assert {world.running[request][0] for request in requests} == {0, 1}


def test_objects_of_a_failed_request_do_not_count_as_cached(factory: PolicyFactory) -> None:
    """A request that fails has loaded nothing: its device is as empty as the others, and near to no client."""
    world = idle(factory)
    request = world.arrive(inputs=reads({"a": 40}))
    failed_on = world.running[request][0]
    world.finish(request, 0.0, Outcome.FAILED)
    assert world.raw._holdings.memories[failed_on].free_bytes == MEMORY_BYTES  # type: ignore[attr-defined]
    assert not world.raw._holdings._holders  # type: ignore[attr-defined]


def test_a_small_object_that_all_share_attracts_no_request(factory: PolicyFactory) -> None:
    world = idle(factory)
    assert sorted(run(world, {"shared": 1, name: 40}) for name in "abc") == [0, 1, 2]


def test_a_large_cached_part_counts_unless_the_rest_evicts_objects_in_use(factory: PolicyFactory) -> None:
    """Two functions share 36 of their 60 bytes: on one device each would drive out the other's rest for ever."""
    world = idle(factory)
    homes = [run(world, {"shared": 36, name: 24}) for name in "ab"]
    assert len(set(homes)) == 2
    small = idle(factory)
    assert len({run(small, {"shared": 36, name: 4}) for name in "ab"}) == 1


def test_a_request_that_no_device_can_hold_runs_somewhere(factory: PolicyFactory) -> None:
    world = idle(factory)
    run(world, {"a": MEMORY_BYTES + 1}, loads=False)


def test_the_cache_of_an_executor_ends_with_it(factory: PolicyFactory) -> None:
    world = idle(factory)
    home = run(world, {"a": 40})
    world.gone(next(worker for worker, start in world.workers.items() if start.device == home))
    world.up(max(world.starting))
    assert not world.raw._holdings._holders  # type: ignore[attr-defined]


def test_the_faster_of_two_empty_devices() -> None:
    world = idle(FirstComeFirstServed, speeds=(1.0, 2.0, 1.0))
    assert run(world, {"a": 4}) == 1


def test_cfs_counts_no_penalty_for_data_that_lies_nowhere() -> None:
    """a has had less, and its data is on no device: it goes before b, whose data is on the device that is free."""
    world = idle(CfsAffinity, devices=1)
    world.known("a", charged_s=1.0, mean_s=1.0, present=True)
    world.known("b", charged_s=2.0, mean_s=1.0, present=True)
    world.resident(0, (b"b",))
    blocker = world.arrive("blocker")
    near, far = world.arrive("b", inputs=reads({"b": 4})), world.arrive("a", inputs=reads({"a": 4}))
    world.finish(blocker)
    assert world.dispatched[-1].request == far
    world.finish(far, 1.0)
    assert world.dispatched[-1].request == near


@pytest.mark.parametrize(("queueing", "first"), [(False, "away"), (True, "here")])
def test_the_penalty_includes_queueing_if_so_configured(queueing: bool, first: str) -> None:
    """Away from its data a client counts 10 x 0.1 s of device time, or 10 x 5 s of which most is queueing."""
    world = idle(partial(CfsAffinity, queueing=queueing), devices=2)
    world.resident(0, (b"a",))
    waited = world.arrive("away", inputs=reads({"a": 4}))
    world.time_s += 5.0
    world.finish(waited, 0.1)
    world.known("here", charged_s=20.0, mean_s=0.1)
    world.resident(1, (b"h",))
    blockers = [world.arrive("blocker") for _ in range(2)]
    world.arrive("away", inputs=reads({"a": 4}))
    world.arrive("here", inputs=reads({"h": 4}))
    world.finish(next(each for each in blockers if world.running[each][0] == 1))
    assert world.arrivals[world.dispatched[-1].request].client == first


def test_an_etask_does_not_share_a_device_for_the_sake_of_cached_objects(factory: PolicyFactory) -> None:
    """The device that has what it reads is taken by another function's eTask: it runs on the device that is free."""
    world = World(factory, 2, etask_workers=2, memory_bytes=MEMORY_BYTES)
    world.tick()
    for worker in sorted(world.starting):
        world.up(worker)
    read = reads({"a": MEMORY_BYTES + 1})
    first, second = (world.arrive("c", "f", ETASK, inputs=read) for _ in range(2))
    settle_workers(world)
    world.gone(1)
    settle_workers(world)
    world.resident(world.running[first][0], (b"a",))
    world.finish(first)
    world.finish(second)
    other = world.arrive("c", "g", ETASK)
    settle_workers(world)
    last = world.arrive("c", "f", ETASK, inputs=read)
    assert [world.workers[world.running[request][0]].device for request in (other, last)] == [0, 1]


def settle_workers(world: World) -> None:
    """Workers that are to stop end, those that are to start are up."""
    while world.starting or world.stopping:
        for worker in world.stopped():
            world.gone(worker, "stopped")
        for worker in sorted(set(world.starting) - world.stopping):
            world.up(worker)


def one_by_one(
    self: Locality, request: QueuedRequest, group: WorkerGroup, best: WorkerState, rank: Rank
) -> WorkerState:
    """The rule of `Locality.choose`, by comparing each worker with all its figures."""
    least, near, whole = len(best.running), request.reads.near, request.reads.whole
    idle = [worker for worker in group.open.values() if len(worker.running) == least and not worker.gated]
    compared = idle[: locality.COMPARED]
    if len(compared) == locality.COMPARED:
        close = [worker for worker in group.free_on(near) if len(worker.running) == least]
        compared += close[: locality.COMPARED]
    memories = self._holdings.memories

    def order(worker: WorkerState) -> tuple[float, ...]:
        device = worker.device.index
        _, slowness, last = rank(worker)
        return *self.suits(request, device), slowness, -memories[device].free_bytes, last

    holders = list(group.free_on(whole))[: locality.HOLDERS] if group.one_each else []
    if holders and all(memories[worker.device.index].free_bytes >= 0 for worker in holders):
        return min(holders, key=order)
    found = min(compared, key=order)
    if near and found.device.index not in near and self._evicts(request, found.device.index):
        return min(group.free_on(near), key=rank, default=found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "cfs_affinity", "sjf"])
@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("compared", [2, 64])
@given(seed=st.integers(0, 2**32))
def test_the_device_is_that_of_a_comparison_of_all_one_by_one(
    policy: str, slots: int, compared: int, seed: int
) -> None:
    draws = Random(seed)
    functions = {
        f"f{number}": {"memory_mb": draws.randint(1, 6), "load_s": draws.choice((0, 1)), "run_s": draws.random()}
        for number in range(8)
    }
    told = {
        "policy": {"name": policy},
        "devices": [
            {"memory_mb": draws.randint(6, 14), "slots": slots, "speed": draws.choice((1, 2))} for _ in "12345"
        ],
        "functions": functions,
        "requests": [{"function": draws.choice([*functions]), "at_s": 6 * draws.random()} for _ in range(40)],
    }
    chosen = Locality.choose

    def both(*given: Any) -> WorkerState:
        found = chosen(*given)
        assert found is one_by_one(*given)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locality, "COMPARED", compared)
        patch.setattr(locality, "HOLDERS", compared)
        patch.setattr(Locality, "choose", both)
        simulate(read(told))
