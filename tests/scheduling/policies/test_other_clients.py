"""What one client cannot do to another, under all policies that share devices and under the fair ones."""

from __future__ import annotations

from functools import partial

import pytest

from kaas.scheduling.decisions import Decision, PolicyFactory
from kaas.scheduling.events import ClientKnown, Event, FunctionKnown, ObjectUse, Outcome, RequestDone
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.policies.adaptive import Adaptive
from kaas.scheduling.simulation.scenario_file import read
from kaas.scheduling.simulation.simulator import simulate
from tests.scheduling.policies.world import World

SHARING = {name: made for name, made in POLICIES.items() if name not in ("exclusive", "static")}
FAIR: dict[str, PolicyFactory] = {
    "cfs_affinity": POLICIES["cfs_affinity"],
    "mqfq_sticky": POLICIES["mqfq_sticky"],
    "adaptive": Adaptive,
    "adaptive of a server": partial(Adaptive, T=0.02),
}


def idle(factory: PolicyFactory, devices: int = 1) -> World:
    world = World(factory, devices)
    world.tick()
    for worker in sorted(world.starting):
        world.up(worker)
    return world


def end(world: World, took_s: float, outcome: Outcome = Outcome.SUCCEEDED) -> str:
    """End the oldest run, and let its client's next request arrive. Return the client."""
    request = next(iter(world.running))
    told = world.arrivals[request]
    world.arrive(told.client, told.function)
    world.time_s += took_s
    worker, slot = world.running.pop(request)
    world.feed(RequestDone(world.time_s, request, worker, slot, outcome, took_s, took_s))
    return told.client


@pytest.mark.parametrize("name", SHARING)
def test_a_worker_that_a_held_request_gives_up_goes_to_an_older_one_that_must_run_alone(name: str) -> None:
    world = idle(SHARING[name], 2)
    world.known("a", max_share=0.1)
    first, other = world.arrive("c"), world.arrive("a")
    world.arrive("a", alone=True)  # keeps the worker of `first`
    world.time_s = 1.0
    world.gone(world.running[first][0], again=1, alone=True)  # `first` keeps the worker of `other`
    world.time_s = 2.0
    world.finish(other, 50.0)
    assert first in world.running


@pytest.mark.parametrize("name", FAIR)
def test_a_larger_weight_counts_from_the_next_run_on(name: str) -> None:
    world = idle(FAIR[name])
    world.known("a")
    world.known("b", weight=0.001)
    for _ in range(3):
        world.arrive("a", "fa")
        world.arrive("b", "fb")
    for _ in range(60):
        end(world, 1.0)
    world.feed(ClientKnown(world.time_s, "b", weight=100.0, charged_s=None))
    assert "b" in [end(world, 1.0) for _ in range(20)]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ABANDONED])
@pytest.mark.parametrize("name", FAIR)
def test_runs_that_fail_are_no_free_ride(name: str, outcome: Outcome) -> None:
    """20 short runs succeed; then all take a second, and those of a end in another way."""
    world = idle(FAIR[name])
    had_s = {"a": 0.0, "b": 0.0}
    for client in "ab":
        for _ in range(20):
            world.arrive(client, f"f{client}")
            request = next(iter(world.running))
            took_s = 0.01 if client == "a" else 1.0
            world.time_s += took_s
            worker, slot = world.running.pop(request)
            world.feed(RequestDone(world.time_s, request, worker, slot, Outcome.SUCCEEDED, took_s, took_s))
    for _ in range(5):
        world.arrive("a", "fa")
        world.arrive("b", "fb")
    for _ in range(300):
        client = world.arrivals[next(iter(world.running))].client
        had_s[client] += 1.0
        end(world, 1.0, outcome if client == "a" else Outcome.SUCCEEDED)
    assert had_s["a"] < had_s["b"] + 4 * 10  # the bound of the default T


@pytest.mark.parametrize("name", SHARING)
def test_a_request_of_higher_priority_goes_before_those_that_wait_for_one_device(name: str) -> None:
    """200 requests wait for the memory on device 0, whose load takes 5 s; one of higher priority waits for one run."""
    functions = {
        "A": {"memory_mb": 8, "load_s": 5, "run_s": 0.1, "client": "low"},
        "V": {"run_s": 0.01, "client": "high"},
    }
    told = [{"at_s": 1, "function": "A"}] * 200 + [{"at_s": 1.001, "function": "V"}]
    devices = [{"memory_mb": 10, "cached": ["A"]}, {"memory_mb": 10}]
    scenario = read({"policy": {"name": name}, "devices": devices, "functions": functions, "requests": told})

    class Ranked:
        def __init__(self, places: object) -> None:
            self.policy = scenario.make_policy(places)  # type: ignore[arg-type]
            self.utilisation_every_s = getattr(self.policy, "utilisation_every_s", None)
            self.decided = self.policy.handle(ClientKnown(0.0, "high", priority=10))

        def handle(self, event: Event) -> list[Decision]:
            before, self.decided = self.decided, []
            return [*before, *self.policy.handle(event)]

    dispatches = simulate(scenario, Ranked).dispatches
    (high,) = [each.at_s for each in dispatches if each.request == 200]
    assert high < 1.2


def test_under_a_batch_a_request_of_higher_priority_waits_for_one_run() -> None:
    world = idle(POLICIES["batch"])
    world.known("high", priority=5)
    for _ in range(8):
        world.arrive("low")
    world.finish(0)
    high = world.arrive("high")
    world.finish(1)
    assert high in world.running


def test_beside_a_burst_for_the_memory_on_one_device_a_client_waits_no_longer_than_t() -> None:
    functions = {
        "A": {"memory_mb": 8, "load_s": 5, "run_s": 0.1, "client": "a"},
        "V": {"run_s": 0.01, "client": "v"},
    }
    told = [{"at_s": 1, "function": "A"}] * 2000
    told += [{"at_s": 1.001 + 0.37 * number, "function": "V"} for number in range(20)]
    devices = [{"memory_mb": 10, "cached": ["A"]}, {"memory_mb": 10}]
    policy = {"name": "adaptive", "T": 0.02}
    result = simulate(read({"policy": policy, "devices": devices, "functions": functions, "requests": told}))
    starts = {each.request: each.at_s for each in result.dispatches}
    assert max(starts[2000 + number] - (1.001 + 0.37 * number) for number in range(20)) < 0.15


def test_a_promise_to_a_device_that_hangs_ends_where_devices_differ() -> None:
    told = [{"at_s": 6 * number, "function": "A", "run_s": 5} for number in range(20)]
    told += [{"at_s": 150, "function": "V"}, {"at_s": 200, "function": "A", "run_s": 1000}]
    told += [{"at_s": 201, "function": "V"}]
    functions = {"A": {"run_s": 5, "client": "a"}, "V": {"run_s": 2, "client": "v"}}
    devices = [{"speed": 4}, {"speed": 1}]
    told.sort(key=lambda each: each["at_s"])  # type: ignore[arg-type, return-value]
    scenario = {"policy": {"name": "adaptive"}, "profiles": False, "devices": devices, "functions": functions}
    result = simulate(read({**scenario, "requests": told}))
    assert max(each.at_s for each in result.dispatches) < 210


def test_calls_that_are_cancelled_before_they_run_keep_no_memory() -> None:
    """On a device for one function beside U and V in turns: A is called a thousand times, and never runs again."""
    memory = {name: (ObjectUse(name.encode(), 6 if name == "A" else 4, constant=True),) for name in "AUV"}
    world = World(Adaptive, memory_bytes=10)
    world.tick()
    world.up(0)
    for name in "AUV":
        world.feed(FunctionKnown(0.0, name, "software", 0.1, 1.0, memory[name][0].nbytes, 20))

    def run(client: str, function: str) -> tuple[bytes, ...]:
        request = world.arrive(client, function, inputs=memory[function])
        victims = world.dispatched[-1].victims
        world.time_s += 1.0
        world.resident(0, (function.encode(),), victims)
        world.finish(request, 0.1)
        return victims

    run("a", "A")
    run("v", "U")
    for _ in range(100):
        world.time_s += 0.01
        world.cancel(world.arrive("a", "A", inputs=memory["A"], ready=False))
    for _ in range(3):
        world.time_s += 1.0
        world.cancel(world.arrive("a", "A", inputs=memory["A"], ready=False))
        run("v", "U")
    assert run("v", "V") == (b"A",)
