"""A policy that asks for the utilisation of devices hears it in a pool: high under load, 0 when the load has ended."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import kaas
from kaas.scheduling.events import Utilisation
from kaas.scheduling.policies.mqfq_sticky import MqfqSticky
from kaas.scheduling.recording import read, replay
from softgpu import Model, Takes
from tests.api.conftest import DEVICE_BYTES
from tests.api.without_ray import another, executors, runtime, spin
from tests.timeouts import TIMEOUT_S, until

__all__ = ["another", "runtime"]

pytestmark = pytest.mark.processes

DEVICE = kaas.Device("software", DEVICE_BYTES, Model(kernels={"spin": Takes(0.5)}))
"""Its kernels wait, so that a busy machine makes it no slower."""


def heard(record: Path) -> list[Utilisation]:
    return [entry[0] for _, entry in read(record) if isinstance(entry, tuple) and isinstance(entry[0], Utilisation)]


def test_mqfq_sticky_by_utilisation_hears_how_busy_the_devices_are(
    another: Callable[..., bool], tmp_path: Path
) -> None:
    record = tmp_path / "run.jsonl"
    policy = partial(MqfqSticky, D="utilisation", limit=0.9)
    another(config=kaas.Config(slots=2), devices=[DEVICE] * 2, policy=policy, record=str(record))
    executors()
    assert heard(record) == []  # nothing has asked an idle pool yet
    answers = {int(each.result(TIMEOUT_S)[0]) for each in [spin(1) for _ in range(4)]}
    assert len(answers) == 1
    until(lambda: {each.device: each.busy for each in heard(record)} == {0: 0.0, 1: 0.0})
    shares = [each.busy for each in heard(record)]
    assert all(0 <= share <= 1 for share in shares)
    for device in (0, 1):
        assert max(each.busy for each in heard(record) if each.device == device) > 0.5
    kaas.shutdown()
    assert replay(record).difference is None
