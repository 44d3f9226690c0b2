"""Several eTask workers stay warm on one device, up to the limit, through Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import ray

import kaas
from tests.api.conftest import DEVICE_BYTES
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray


class Counter:
    def __init__(self, name: str) -> None:
        self.name = name
        self.calls = 0

    def __call__(self) -> tuple[str, int, int]:
        self.calls += 1
        return self.name, self.calls, os.getpid()


@pytest.fixture(scope="module", autouse=True)
def two_warm_workers(start: Callable[..., bool]) -> None:
    devices = (kaas.Device("software", DEVICE_BYTES),)
    start(config=kaas.Config(devices=devices, policy="exclusive", etask_workers=2))


def called(counter: Any) -> Any:
    return ray.get(counter.remote(), timeout=TIMEOUT_S)


@pytest.mark.full
def test_as_many_as_are_allowed_keep_their_state() -> None:
    counter: Any = kaas.etask(Counter)
    a, b, c = (counter.bind(name) for name in "abc")
    first = [called(a), called(b)]
    again = [called(a), called(b)]
    assert [(name, calls) for name, calls, _ in again] == [("a", 2), ("b", 2)]
    assert [pid for *_, pid in again] == [pid for *_, pid in first]
    (device,) = kaas.status().devices
    assert len(device.others) == 1  # besides the worker that is shown first
    assert called(c)[:2] == ("c", 1)
    assert called(b)[:2] == ("b", 3)  # a had been idle for longest, so it made room
    assert called(a)[:2] == ("a", 1)
