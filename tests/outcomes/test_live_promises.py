"""A promise of latency in a running pool: it measures the function, grants it a part of the device, and says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import kaas
from kaas.errors import AdmissionRefused, InvalidRequest, InvalidShare
from kaas.scheduling.recording import replay
from kaas.wire.status.status import PromiseStatus
from softgpu import Model, Takes
from tests.outcomes.test_shares import BLOCKS, SMS, task_of
from tests.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("pool")]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[None]:
    """A pool with one device, on which kernels f and g fill a quarter for 4 ms."""
    model = Model(sms=SMS, blocks_per_sm=1, kernels={name: Takes(0.004) for name in "fg"})
    record = tmp_path / "record"
    config = kaas.Config(devices=(kaas.Device(model=model),), slots=4, policy="fcfs", record=str(record))
    kaas.init(ray=False, config=config, name=f"promises-{tmp_path.name}-{id(config)}")
    yield
    kaas.shutdown()
    assert replay(record).difference is None


def call(function: kaas.Function, times: int = 1) -> None:
    for _ in range(times):
        assert int(function.call().result(TIMEOUT_S)[0]) == 0


def promise() -> PromiseStatus:
    (share,) = kaas.status().shares
    assert share.promise is not None
    return share.promise


def test_a_function_is_measured_and_granted_a_part_that_keeps_its_promise() -> None:
    function = kaas.register(task_of("f"), share="auto", slo_s=10.0)
    assert promise().trial_sms == 1.0
    call(function, 40)
    now = promise()
    assert now.trial_sms is None
    (((device, sms, quota),),) = (now.instances,)
    assert device == 0
    assert sms <= BLOCKS / SMS, "the function fills a quarter: more is of no use"
    assert quota <= 1
    assert (now.kept, now.late, now.best_effort, now.refused) == (40, 0, 0, 0)
    assert "promises" in str(kaas.status())
    future = function.call()
    future.result(TIMEOUT_S)
    assert not future.best_effort
    kaas.set_share(function, None)
    call(function)
    assert kaas.status().shares == ()


def test_what_cannot_be_in_time_is_refused_or_runs_late_as_the_function_chose() -> None:
    function = kaas.register(task_of("f"), share="auto", slo_s=0.001, best_effort=False)
    with pytest.raises(AdmissionRefused, match=r"0\.001 s are promised") as refused:
        call(function, 40)
    assert refused.value.expected_s > refused.value.slo_s == 0.001
    assert promise().refused == 1
    kaas.set_share(function, "auto", slo_s=0.001)
    call(function, 40)
    future = function.call()
    assert int(future.result(TIMEOUT_S)[0]) == 0
    assert future.best_effort
    assert promise().best_effort > 0
    assert promise().refused == 0


def test_a_promise_survives_the_death_of_its_executor() -> None:
    function = kaas.register(task_of("f"), share="auto", slo_s=10.0)
    call(function, 40)
    granted = promise().instances
    info = kaas.status().devices[0].info
    assert info is not None
    os.kill(info.pid, signal.SIGKILL)
    call(function, 3)
    assert [device for device, _, _ in promise().instances] == [device for device, _, _ in granted] == [0]


@pytest.mark.parametrize(
    ("share", "slo_s"), [("auto", None), (kaas.Share(), 1.0), (None, 1.0), ("all", 1.0), ("auto", 0), ("auto", "1 s")]
)
def test_what_is_no_promise_is_refused(share: object, slo_s: object) -> None:
    with pytest.raises(InvalidRequest):
        kaas.register(task_of("f"), share=share, slo_s=slo_s)  # type: ignore[arg-type]


def test_clients_have_no_promises() -> None:
    with pytest.raises(InvalidShare, match="for a function"):
        kaas.set_share("alice", "auto", slo_s=1.0)
