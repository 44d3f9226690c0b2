"""Software devices of a pool that are described: their time and their faults."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import ray

import kaas
import softgpu
from kaas import errors
from tests.api.conftest import DEVICE_BYTES, numbers, scale_task

pytestmark = pytest.mark.ray

KERNEL_S = 0.02
DEVICE = kaas.Device(
    "software",
    DEVICE_BYTES,
    model=softgpu.Model(kernels={"scale": softgpu.Takes(KERNEL_S)}),
    faults=(softgpu.Fault("ecc", at=2),),
    strict=1,
    memcheck=True,
)


@pytest.fixture(scope="module", autouse=True)
def pool_of_one(start: Callable[..., bool]) -> None:
    start(devices=[DEVICE])


@pytest.mark.full
def test_every_executor_of_a_device_is_as_described() -> None:
    for _ in range(2):
        kaas.stats(reset=True)
        scale = kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2})
        np.testing.assert_allclose(ray.get(scale), numbers() * 2)
        (kernels,) = [entry for entry in kaas.stats().stages if entry.stage == "kernels"]
        assert kernels.total_s >= KERNEL_S
        with pytest.raises(errors.DeviceLost) as caught:
            ray.get(kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2}, retries=0))
        assert caught.value.code_name == "CUDA_ERROR_ECC_UNCORRECTABLE"


def test_another_description_is_another_configuration() -> None:
    assert not kaas.init(devices=[DEVICE])
    with pytest.raises(errors.ConfigMismatch) as caught:
        kaas.init(devices=[kaas.Device("software", DEVICE_BYTES)])
    assert caught.value.differences == ("devices",)
    with pytest.raises(errors.InvalidConfig):
        kaas.init(devices=[kaas.Device(model="fast")])  # type: ignore[arg-type]
