"""Records of pools on Ray, one of whose executors is killed: a replay decides the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import kaas
from kaas.errors import InvalidConfig
from kaas.scheduling.recording import replay
from kaas.wire.status.status import DeviceStatus
from tests.api.conftest import DEVICE_BYTES, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("shared_ray")]

REQUESTS = 40
LONG = 300_000_000


@pytest.mark.full
@pytest.mark.parametrize("policy", ["fcfs", "cfs_affinity"])
def test_the_record_of_a_pool_with_a_killed_executor_can_be_replayed(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the record is where this program is, not where the pool's process is
    kaas.init(devices=[kaas.Device("software", DEVICE_BYTES)] * 2, policy=policy, record="run.jsonl", name=policy)
    try:
        ray.get([kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2}) for _ in range(REQUESTS)])
        long = [kaas.invoke(spin_task(), {}, scalars={"steps": LONG}) for _ in range(4)]
        device = next(device for device in iter_devices() if device.running)
        assert device.info is not None
        os.kill(device.info.pid, signal.SIGKILL)
        assert len({int(value[0]) for value in ray.get(long, timeout=TIMEOUT_S)}) == 1
        stats = kaas.stats()
        assert 0 < stats.policy_s < stats.since_s
        assert stats.policy_events >= 2 * REQUESTS
    finally:
        kaas.shutdown()
    replayed = replay(tmp_path / "run.jsonl")
    assert (replayed.epochs, replayed.difference) == (1, None)
    text = (tmp_path / "run.jsonl").read_text()
    assert f'"policy":"{policy}"' in text
    assert '["WorkerGone"' in text
    assert '"attempt":2' in text
    assert text.count('["Dispatch"') >= REQUESTS + 5


def iter_devices() -> Iterator[DeviceStatus]:
    """Yield the pool's devices again and again, until the caller stops."""
    while True:
        yield from kaas.status().devices


def test_a_record_that_cannot_be_written(tmp_path: Path) -> None:
    devices = [kaas.Device("software", DEVICE_BYTES)]
    with pytest.raises(InvalidConfig, match=r"record: .*none/run\.jsonl cannot be written"):
        kaas.init(devices=devices, record=str(tmp_path / "none" / "run.jsonl"))
    assert kaas.init(devices=devices * 2)  # the name is free
    kaas.shutdown()
