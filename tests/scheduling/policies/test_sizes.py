"""Devices of different memory: a request goes only where it fits, and keeps no other request from a smaller device."""

from __future__ import annotations

from typing import Any

import pytest

from kaas.scheduling.events import ObjectUse, WorkerKind
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulated import Simulated
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import World

SMALL, LARGE = 0, 1
Told = dict[str, Any]


def run(policy: str, slots: int, functions: Told, *calls: tuple[float, str], devices: Any = ()) -> Simulated:
    told = {
        "policy": {"name": policy},
        "devices": [*devices] or [{"memory_mb": 2, "slots": slots}, {"memory_mb": 8, "slots": slots}],
        "functions": functions,
        "requests": [{"at_s": at_s, "function": function} for at_s, function in calls],
    }
    return simulate(read(told))


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_runs_on_a_device_that_it_fits_although_a_smaller_one_is_free(policy: str, slots: int) -> None:
    functions = {"large": {"memory_mb": 4, "load_s": 1, "run_s": 1}, "small": {"memory_mb": 1, "load_s": 1, "run_s": 1}}
    calls = [(number * 0.3, "large" if number % 3 else "small") for number in range(30)]
    result = run(policy, slots, functions, *calls)
    assert not result.rejected
    where = {each.request: each.device for each in result.dispatches}
    assert {where[number] for number in range(30) if number % 3} == {LARGE}


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in ("exclusive", "static")])
def test_small_requests_use_the_small_device_while_large_ones_wait(policy: str) -> None:
    """All are of one client: a large one that waits holds up no small one behind it."""
    functions = {"large": {"memory_mb": 4, "run_s": 10}, "small": {"memory_mb": 1, "run_s": 1}}
    result = run(policy, 1, functions, (0, "large"), (0.1, "large"), (0.2, "small"), (0.3, "small"))
    began = {each.request: (each.at_s, each.device) for each in result.dispatches}
    assert began[0][1] == began[1][1] == LARGE
    assert began[2][1] == SMALL
    assert max(began[2][0], began[3][0]) <= 3
    assert began[1][0] == 10


@pytest.mark.parametrize("policy", ["cfs_affinity", "mqfq_sticky"])
def test_a_large_request_does_not_wait_for_a_flood_of_another_client(policy: str) -> None:
    """While the large device is busy, requests leave the order one by one; each client has its turn still."""
    functions = {
        "flood": {"memory_mb": 4, "run_s": 1, "client": "flooder"},
        "modest": {"memory_mb": 4, "run_s": 1, "client": "modest"},
    }
    calls = [*((0, "flood") for _ in range(40)), (0.5, "modest")]
    result = run(policy, 1, functions, *calls)
    (began_s,) = [each.at_s for each in result.dispatches if each.request == 40]
    assert began_s <= 12


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_that_fits_no_device_fails_and_one_whose_device_comes_back_waits(policy: str) -> None:
    functions = {"huge": {"memory_mb": 9, "run_s": 1}, "large": {"memory_mb": 4, "run_s": 1}}
    result = run(policy, 1, functions, (0, "huge"), (0.1, "large"))
    assert [each.reason for each in result.rejected] == ["memory"]
    assert [each.device for each in result.dispatches] == [LARGE]


def test_a_request_for_a_larger_device_ends_although_an_etask_made_the_last_attempt_to_start_there() -> None:
    """The eTask's worker fails on the device that the request waits for: the request then fails on the small one."""
    world = World(Adaptive, 2)
    world.tick()
    world.up(0)
    world.gone(1, "no driver")
    etask = world.arrive(kind=WorkerKind.ETASK, ready=False)
    large = world.arrive(inputs=(ObjectUse(b"a", 2, constant=True),))
    world.inputs(etask)
    while large in world.queued and world.starting:
        world.gone(min(world.starting), "no driver")
    assert large in world.running
    world.settle(lambda _: 0)
