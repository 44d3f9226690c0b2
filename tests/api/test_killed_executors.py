"""An executor is killed under load: each policy answers all requests, and a replay of its record decides the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kaas
from kaas.scheduling.policies import POLICIES
from kaas.scheduling.recording import replay
from kaas.wire.status.status import DeviceStatus
from tests.api.conftest import numbers
from tests.api.without_ray import DEVICES, another, runtime, scaled, spin, until
from tests.lanes import spread
from tests.timeouts import TIMEOUT_S

__all__ = ["another", "runtime"]

pytestmark = pytest.mark.processes

CLIENTS = 3
REQUESTS = 300


def busy(device: DeviceStatus) -> bool:
    return bool(device.info and device.running)


@pytest.mark.parametrize("policy", spread(reversed(POLICIES), 1))
def test_all_answers_are_right_and_the_record_can_be_replayed(
    policy: str, another: Callable[..., bool], tmp_path: Path
) -> None:
    record = tmp_path / "run.jsonl"
    another(devices=DEVICES, policy=policy, record=str(record), name=policy)
    spins = [spin(client=f"c{number % CLIENTS}") for number in range(4)]
    device = next(filter(busy, until(lambda status: any(map(busy, status.devices))).devices))
    assert device.info is not None
    x = numbers()
    calls = [scaled(x, 1.0 + number, client=f"c{number % CLIENTS}") for number in range(REQUESTS)]
    os.kill(device.info.pid, signal.SIGKILL)
    assert len({int(each.result(TIMEOUT_S)[0]) for each in spins}) == 1
    for number, each in enumerate(calls):
        np.testing.assert_array_equal(each.result(TIMEOUT_S), x * np.float32(1.0 + number))
    kaas.shutdown()
    replayed = replay(record)
    assert (replayed.epochs, replayed.difference) == (1, None)
    assert replayed.events > 2 * REQUESTS
    text = record.read_text()
    assert '["WorkerGone"' in text
    assert '"attempt":2' in text
