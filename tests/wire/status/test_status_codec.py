"""Status and statistics of a pool without Ray arrive unchanged."""

from __future__ import annotations

from functools import partial

import pytest

import softgpu
from kaas.config import ClientSettings, Config, Device
from kaas.pool.observing.ledger import Ledger, LedgerEntry
from kaas.wire.status import status_codec
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import DeviceStatus, ExecutorStatus, PinStatus, QuarantineStatus, Status, WorkerInfo

MODEL = softgpu.Model(copy_bytes_per_s=1e9, kernels={"add": softgpu.Takes(1e-3, 0.5)})
DEVICE = Device(model=MODEL, faults=(softgpu.Fault("slow_copy", at=2, seconds=0.1),), strict=3)
WORKER = WorkerInfo(17, "here", "software", 1 << 30, (8, 0), 2)


def status(config: Config) -> Status:
    device = DeviceStatus(0, "software", "busy", 3, WORKER, (1, 2), (PinStatus("f", "lost", "no room"),), "executor")
    quarantined = (QuarantineStatus("f", "00ff", 2, "it hung"),)
    return Status("kaas", config, (device,), 1, 2, 3, ("f", "g"), None, 99, quarantined)


def policy(devices: object, *, patience: int) -> None:
    """A policy, in place of a program's own."""


def test_a_status_arrives_unchanged() -> None:
    sent = status(Config(devices=(DEVICE,), clients={"a": ClientSettings(weight=2.0)}, record="here"))
    assert status_codec.decode(status_codec.encode(sent), Status) == sent


def test_code_in_a_configuration_is_sent_as_its_name() -> None:
    sent = status(Config(devices=(DEVICE,), policy=partial(policy, patience=3)))
    seen = status_codec.decode(status_codec.encode(sent), Status)
    assert seen.config.policy == f"partial({__name__}.policy, patience=3)"


def test_statistics_arrive_as_they_were() -> None:
    ledger = Ledger(0.0)
    ledger.write(LedgerEntry("f", "a", 0, "succeeded", {"queue": 0.1, "total": 0.2}))
    sent = ledger.read(1.5)
    assert status_codec.decode(status_codec.encode(sent), Stats) == sent
    assert status_codec.decode(status_codec.encode(WORKER), WorkerInfo) == WORKER


def test_a_value_of_another_class_is_refused() -> None:
    with pytest.raises(TypeError, match="Status"):
        status_codec.decode(status_codec.encode(WORKER), Status)


def test_a_configuration_is_compared_with_the_description_of_a_running_one() -> None:
    running = Config(devices=(DEVICE,), policy=partial(policy, patience=3)).resolved(0)
    described = running.described()
    assert Config(devices=(DEVICE,), policy=partial(policy, patience=3)).differences_from(described) == ()
    assert Config(policy=partial(policy, patience=3)).differences_from(described) == ()
    other = Config(devices=(Device(),), policy=partial(policy, patience=4), slots=2)
    assert set(other.differences_from(described)) == {"devices", "policy", "slots"}
    assert set(other.differences(running)) == {"devices", "policy", "slots"}


def test_the_sandbox_of_an_executor_in_words() -> None:
    known = (), (True,), (True, ("signals", "namespaces"))
    shown = [ExecutorStatus(1, "idle", 2, "alice", *each) for each in known]
    assert [each.sandbox for each in shown] == ["no", "yes", "yes, without signals, namespaces"]
