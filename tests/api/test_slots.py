"""Several requests at a time on one device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas import errors
from tests.api.conftest import DEVICE_BYTES, both_task, crash_task, numbers, scale_task, spin_task

pytestmark = pytest.mark.ray

SLOTS = 3


@pytest.fixture(scope="module", autouse=True)
def pool_with_slots(start: Callable[..., bool]) -> None:
    start(config=kaas.Config((kaas.Device("software", DEVICE_BYTES),), slots=SLOTS))


def test_the_pool_knows_the_slots_of_its_executors() -> None:
    scale = kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2})
    np.testing.assert_allclose(ray.get(scale), numbers() * 2)
    (device,) = kaas.status().devices
    assert device.info is not None
    assert device.info.slots == SLOTS


def spinning(steps: int, **options: Any) -> Any:
    """Start a request of about so many nanoseconds; return it once it runs."""
    spin = kaas.invoke(spin_task(), {}, scalars={"steps": steps}, **options)
    while not kaas.status().running:
        pass
    return spin


def test_a_short_request_overtakes_a_long_one_in_another_slot() -> None:
    x = kaas.put(numbers())
    long = spinning(1_000_000_000)
    ray.get(kaas.prefetch(x))
    results = [kaas.invoke(scale_task(), {"x": x}, scalars={"factor": factor}) for factor in range(10)]
    for factor, result in enumerate(results):
        np.testing.assert_allclose(ray.get(result), numbers() * np.float32(factor))
    assert not ray.wait([long], timeout=0)[0]
    assert len(kaas.status().devices[0].running) == 1
    assert ray.get(long)


@pytest.mark.full
def test_a_request_in_parallel_with_a_fault_runs_again_alone() -> None:
    (before,) = kaas.status().devices
    innocent = spinning(1_000_000_000)
    with pytest.raises(errors.DeviceLost):  # its own fault, as it shows when it runs alone
        ray.get(kaas.invoke(crash_task(), {}, retries=0))
    assert ray.get(innocent)
    (after,) = kaas.status().devices
    assert after.worker != before.worker
    with pytest.raises(errors.DeviceLost):
        ray.get(kaas.invoke(crash_task(), {}))
    with pytest.raises(errors.Quarantined, match="ended 2 devices"):
        ray.get(kaas.invoke(crash_task(), {}))
    (held,) = kaas.status().quarantined
    assert (held.function, held.faults) == (crash_task().label, 2)
    assert kaas.pardon(crash_task())
    assert not kaas.status().quarantined


def test_functions_that_meet_the_executor_in_several_slots_at_once() -> None:
    sizes = range(100, 130)
    refs = [kaas.invoke(both_task(n), {"x": numbers(n, seed)}) for n in sizes for seed in range(4)]
    expected = [numbers(n, seed) * 4 for n in sizes for seed in range(4)]
    for ref, values in zip(refs, expected, strict=True):
        np.testing.assert_allclose(ray.get(ref.quadruple), values)
        np.testing.assert_allclose(ray.get(ref.double), values / 2)
