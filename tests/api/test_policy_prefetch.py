"""A policy that loads inputs of waiting requests, and drops objects, through Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas.scheduling.decisions import Decision, Evict, Prefetch
from kaas.scheduling.events import Event, RequestArrived, Residency, WorkerReady
from kaas.scheduling.policies.fcfs import FirstComeFirstServed
from kaas.wire.status.stats import TierStats
from tests.api.conftest import DEVICE_BYTES, add_task, numbers, scale_task, spin_task

pytestmark = pytest.mark.ray

UNLIKED_BYTES = 256
STEPS = 1_000_000_000


class LooksAhead(FirstComeFirstServed):
    """Prefetches the inputs of every request; evicts small objects as soon as they are loaded."""

    small: frozenset[bytes | None] = frozenset()
    worker: int | None = None

    def handle(self, event: Event) -> list[Decision]:
        decisions = super().handle(event)
        match event:
            case WorkerReady(worker=worker):
                self.worker = worker
            case RequestArrived() if self.worker is not None:
                keys = tuple(use.key for use in event.inputs if use.key is not None)
                if not keys:
                    return decisions
                self.small = frozenset(use.key for use in event.inputs if use.nbytes <= UNLIKED_BYTES)
                decisions.append(Prefetch(self.worker, keys))
            case Residency(loaded=loaded) if unliked := tuple(key for key in loaded if key in self.small):
                decisions.append(Evict(event.worker, unliked))
        return decisions


@pytest.fixture(scope="module", autouse=True)
def pool_that_looks_ahead(start: Callable[..., bool]) -> None:
    start(config=kaas.Config((kaas.Device("software", DEVICE_BYTES),), policy=LooksAhead))


def until(reached: Callable[[], bool]) -> None:
    while not reached():
        pass


def blocked() -> Any:
    """The only slot is taken, for some time."""
    blocks = kaas.invoke(spin_task(), {}, scalars={"steps": STEPS})
    until(lambda: kaas.status().running == 1)
    return blocks


def loads(function: str) -> list[TierStats]:
    return [tier for tier in kaas.stats().tiers if tier.function == function and tier.tier == "device"]


@pytest.mark.full
def test_inputs_of_a_waiting_request_are_loaded_while_another_runs() -> None:
    weights, large = numbers(1000), kaas.put(numbers(1000, seed=1))
    ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 1}))
    add = kaas.register(add_task(1000), constants={"a": weights})
    kaas.stats(reset=True)
    blocks = blocked()
    ahead = kaas.invoke(kaas.KTask(add.task.kernels, add.task.outputs, name="ahead"), {"a": large, "b": large})
    until(lambda: bool(loads("")))
    assert not ray.wait([blocks], timeout=0)[0]
    np.testing.assert_allclose(ray.get(ahead), 2 * numbers(1000, seed=1))
    (device,) = loads("ahead")
    assert (device.objects, device.misses) == (1, 0)


def test_constants_are_loaded_ahead_and_unliked_objects_are_evicted() -> None:
    x = kaas.put(numbers(UNLIKED_BYTES // 4))
    n = UNLIKED_BYTES // 4
    task = add_task(n)
    add = kaas.register(kaas.KTask(task.kernels, task.outputs, name="ahead"), constants={"a": numbers(n)})
    kaas.stats(reset=True)
    blocks = blocked()
    first = add.remote(b=x)
    until(lambda: bool(loads("")))
    assert not ray.wait([blocks], timeout=0)[0]
    (prefetched,) = loads("")
    assert prefetched.compulsory == 2
    np.testing.assert_allclose(ray.get(first), 2 * numbers(n))
    (device,) = loads("ahead")
    assert (device.objects, device.misses) == (0, 2)  # both had been evicted, which is no miss for want of room
    assert device.capacity == 0
    assert ray.get(blocks)
