"""A pool and the simulator tell a policy the same story of one scenario: the same events but for their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

import kaas
from kaas.papers.small.kernels import LAYER, ptx
from kaas.scheduling.decisions import Decision, WakeAt
from kaas.scheduling.events import Event, PhysicalDevice, RequestArrived, Residency, Tick, WorkerReady
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.recording import read
from kaas.scheduling.simulation.scenario_file import read as parsed
from kaas.scheduling.simulation.simulator import simulate
from softgpu import Model, Takes
from tests.api.without_ray import another, executors, runtime
from tests.lanes import spread
from tests.timeouts import TIMEOUT_S

__all__ = ["another", "runtime"]

pytestmark = pytest.mark.processes

ELEMENTS = 256
WEIGHT_MB = 8
LOAD_S = 0.24
KERNEL_S = 0.03
ITERATIONS = {"a": 15, "b": 23, "c": 4, "d": 6, "e": 9}
"""Of the functions' kernel, which is the same: it is compiled once, before the first turn."""
MEMORY_MB = 20
"""Two functions' weights, and what requests read and write."""
TURNS = ("a", "b", "bd", "bac")
"""The functions that are called together; each turn's calls have ended when the next one's begin. With these, no two
requests end within 120 ms, and each policy loads, hits and evicts; adaptive and mqfq_sticky prefetch."""
DEVICE = kaas.Device(
    "software",
    128 << 20,
    Model(copy_bytes_per_s=(WEIGHT_MB << 20) / LOAD_S, kernels={"step": Takes(KERNEL_S)}),
)


def function(name: str) -> kaas.Function:
    """A function with weights of its own, whose kernel has its name and so its time."""
    x, y = kaas.Buffer("x", ELEMENTS, "float32"), kaas.Buffer("y", ELEMENTS, "float32")
    w = kaas.Buffer("w", WEIGHT_MB << 18, "float32")
    arguments = [kaas.In(x), kaas.In(w), kaas.In(w), kaas.Out(y)]
    kernel = kaas.Kernel(kaas.Library.from_ptx(ptx("step", LAYER)), "step", 1, ELEMENTS, arguments)
    task = kaas.KTask([kernel], [y], name=name, iterations=ITERATIONS[name])
    return kaas.register(task, {"w": np.full(WEIGHT_MB << 18, ord(name), np.float32)})


class Told(NamedTuple):
    """An event, and the policy's decisions about it."""

    event: Event
    decisions: Sequence[Decision]


def lived(policy: str, another: Callable[..., bool], record: Path) -> list[Told]:
    """Play the turns in a pool; return what its record says."""
    memory_bytes = MEMORY_MB << 20
    config = kaas.Config(policy=policy, record=str(record), cache_bytes=memory_bytes, host_cache_bytes=4 * memory_bytes)
    another(config=config, devices=[DEVICE] * 2)
    executors()
    functions = {name: function(name) for name in ITERATIONS}
    kaas.prefetch(functions["a"]).result(TIMEOUT_S)
    kaas.flush()
    x = np.ones(ELEMENTS, np.float32)
    for turn in TURNS:
        calls = [functions[name].call(x=x) for name in turn]
        for name, call in zip(turn, calls, strict=True):
            np.testing.assert_array_equal(call.result(TIMEOUT_S), 0.5 + ord(name))
    kaas.shutdown()
    story = [Told(entry[0], entry[1] or ()) for _, entry in read(record) if isinstance(entry, tuple)]
    first = next(place for place, told in enumerate(story) if isinstance(told.event, RequestArrived))
    return [told for told in story[:first] if not isinstance(told.event, Residency)] + story[first:]


class Listening:
    """A policy that keeps its events and decisions."""

    def __init__(self, policy: str, story: list[Told], devices: Sequence[PhysicalDevice]) -> None:
        self._policy = POLICIES[policy](devices)
        self._story = story

    def handle(self, event: Event) -> list[Decision]:
        decisions = self._policy.handle(event)
        self._story.append(Told(event, decisions))
        return decisions


def played(policy: str, live: Sequence[Told]) -> list[Told]:
    """Play the turns in the simulator: workers come up, and calls arrive, at the times of the pool's story."""
    began_s = live[0].event.time_s
    ready = {told.event.device: told.event.time_s for told in live if isinstance(told.event, WorkerReady)}
    arrived = [told.event.time_s for told in live if isinstance(told.event, RequestArrived)]
    scenario = parsed(
        {
            "policy": {"name": policy},
            "devices": [
                {"memory_mb": MEMORY_MB, "kind": "software", "busy_until_s": ready[device] - began_s}
                for device in range(2)
            ],
            "functions": {
                name: {"memory_mb": WEIGHT_MB, "load_s": LOAD_S, "run_s": KERNEL_S * count}
                for name, count in ITERATIONS.items()
            },
            "requests": [
                {"function": name, "at_s": at_s - began_s} for name, at_s in zip("".join(TURNS), arrived, strict=True)
            ],
            "profiles": False,
        }
    )
    story: list[Told] = []
    simulate(scenario, partial(Listening, policy, story))
    return story


def without_times(story: Sequence[Told]) -> list[str]:
    """Return a story's events and decisions with the functions' names for their keys, without times.

    Ticks are left out: a policy asks for them by times. Values that a request sends itself are in no cache, and the
    simulator has none of them.
    """
    names = dict[bytes, str](zip(dict.fromkeys(_weights(story)), dict.fromkeys("".join(TURNS)), strict=True))
    told = []
    for event, decisions in story:
        if isinstance(event, Tick):
            continue
        if isinstance(event, RequestArrived):
            uses = tuple(use for use in event.inputs if use.key is not None)
            event = msgspec.structs.replace(event, client="", function="", inputs=uses)
        made = [_plain(each, names) for each in decisions if not isinstance(each, WakeAt)]
        told.append(f"{_plain(event, names)} -> {made}")
    return told


def _weights(story: Sequence[Told]) -> Iterator[bytes]:
    for event, _ in story:
        if isinstance(event, RequestArrived):
            yield from (use.key for use in event.inputs if use.key is not None)


TIMES = {"time_s", "device_s", "run_s", "load_s", "seconds"}


def _plain(value: Any, names: Mapping[bytes, str]) -> dict[str, Any]:
    fields = msgspec.to_builtins(value, builtin_types=(bytes,))
    return {"type": type(value).__name__} | {
        name: _named(field, names) for name, field in fields.items() if name not in TIMES
    }


def _named(value: Any, names: Mapping[bytes, str]) -> Any:
    match value:
        case bytes():
            return names[value]
        case list() | tuple():
            return [_named(each, names) for each in value]
        case dict():
            return {name: _named(each, names) for name, each in value.items()}
    return value


@pytest.mark.parametrize("policy", spread(("mqfq_sticky", "adaptive", "lalbo3", "fcfs"), 1))
def test_a_pool_and_the_simulator_tell_the_same_story(
    policy: str, another: Callable[..., bool], tmp_path: Path
) -> None:
    live = lived(policy, another, tmp_path / "run.jsonl")
    assert without_times(live) == without_times(played(policy, live))
