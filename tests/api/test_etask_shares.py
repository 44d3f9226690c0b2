"""An eTask with a share has a part of its device's SMs, as long as its process lives."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import ray

import kaas
from kaas import errors
from tests.api.conftest import DEVICE_BYTES
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray

SMS = 132


class _Seen:
    """Tells the multiprocessors that this process sees."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __call__(self) -> tuple[str, int]:
        from cuda.core import Device

        return self.name, int(Device(0).properties.multiprocessor_count)


@pytest.fixture(scope="module", autouse=True)
def a_pool(start: Callable[..., bool]) -> None:
    devices = (kaas.Device("software", DEVICE_BYTES, sms=SMS),)
    start(config=kaas.Config(devices=devices, policy="exclusive", etask_workers=3))


def seen(etask: Any) -> Any:
    return ray.get(etask.remote(), timeout=TIMEOUT_S)


def test_an_etask_sees_its_part_of_the_sms() -> None:
    whole, quarter = kaas.etask(_Seen), kaas.etask(share=kaas.Share(sms=0.25))(_Seen)
    assert seen(whole) == ("", SMS)
    assert seen(quarter) == ("", SMS // 4)
    assert seen(whole) == ("", SMS)
    named = pickle.loads(pickle.dumps(quarter.bind("mine").options(client="alice")))
    assert seen(named) == ("mine", SMS // 4)


def test_shares_that_an_etask_cannot_have() -> None:
    with pytest.raises(errors.InvalidShare, match="quota"):
        kaas.etask(share=kaas.Share(sms=0.5, quota=(0.1, 0.5)))
    with pytest.raises(errors.InvalidShare, match="memory_bytes"):
        kaas.etask(share=kaas.Share(sms=0.5, memory_bytes=1))
    with pytest.raises(errors.InvalidRequest):
        kaas.etask(_Seen, share=0.5)  # type: ignore[call-overload]
    assert isinstance(kaas.etask(num_gpus=1, share=None)(_Seen), kaas.ETask)
