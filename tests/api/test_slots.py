"""Several requests at a time on one device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import ray

import kaas
from tests.api.conftest import DEVICE_BYTES, both_task, numbers, scale_task

pytestmark = pytest.mark.ray

SLOTS = 3


@pytest.fixture(scope="module", autouse=True)
def pool_with_slots() -> Iterator[None]:
    kaas.init(config=kaas.Config((kaas.Device("software", DEVICE_BYTES),), slots=SLOTS))
    yield
    kaas.shutdown()
    ray.shutdown()


def test_the_pool_knows_the_slots_of_its_executors() -> None:
    scale = kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2})
    np.testing.assert_allclose(ray.get(scale), numbers() * 2)
    (device,) = kaas.status().devices
    assert device.info is not None
    assert device.info.slots == SLOTS


def test_functions_that_meet_the_executor_in_several_slots_at_once() -> None:
    sizes = range(100, 130)
    refs = [kaas.invoke(both_task(n), {"x": numbers(n, seed)}) for n in sizes for seed in range(4)]
    expected = [numbers(n, seed) * 4 for n in sizes for seed in range(4)]
    for ref, values in zip(refs, expected, strict=True):
        np.testing.assert_allclose(ray.get(ref.quadruple), values)
        np.testing.assert_allclose(ray.get(ref.double), values / 2)
