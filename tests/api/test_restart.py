"""The pool's process is killed: another takes over its executors and functions, and every request gets its reply."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas import errors
from kaas.api.attached import current_session
from kaas.pool.on_ray.cluster import NAMESPACE
from kaas.store import FUNCTIONS, TASKS, SqliteStore
from tests.api.conftest import DEVICE_BYTES, add_task, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray

DEVICES = (kaas.Device("software", DEVICE_BYTES),) * 2
LARGE = 1 << 16


@pytest.fixture
def pool(start: Callable[..., bool]) -> None:
    start(devices=DEVICES)
    while not all(device.info for device in kaas.status().devices):
        pass


def executors() -> list[int]:
    """Return the processes of the executors, by device."""
    return [0 if device.info is None else device.info.pid for device in kaas.status().devices]


def kill_pool() -> int:
    """Kill the pool with SIGKILL; return its process id."""
    pid = kaas.status().pid
    os.kill(pid, signal.SIGKILL)
    return pid


def scaled(x: Any, factor: float = 2.0) -> Any:
    return kaas.invoke(scale_task(), {"x": x}, scalars={"factor": factor})


def spin(steps: int) -> Any:
    return kaas.invoke(spin_task(), {}, scalars={"steps": steps})


@pytest.mark.usefixtures("pool")
def test_running_and_waiting_requests_get_replies() -> None:
    known = kaas.register(add_task(), constants={"a": numbers()})
    expected = [int(ray.get(spin(steps))[0]) for steps in (20_000_000, 30_000_000)]
    before = executors()
    spins = [spin(20_000_000 + 10_000_000 * (number % 2)) for number in range(20)]
    sums = [known.remote(b=np.full(1000, number, np.float32)) for number in range(180)]
    while not (kaas.status().running == 2 and kaas.status().queued):
        pass
    killed = kill_pool()
    assert [int(value[0]) for value in ray.get(spins, timeout=TIMEOUT_S)] == expected * 10
    for number, value in enumerate(ray.get(sums, timeout=TIMEOUT_S)):
        np.testing.assert_array_equal(value, numbers() + np.float32(number))
    assert kaas.status().pid != killed
    assert executors() == before


@pytest.mark.usefixtures("pool")
def test_functions_are_known_and_caches_are_warm() -> None:
    function = kaas.register(add_task(), constants={"a": numbers()})
    b = kaas.put(numbers(seed=1))
    pending = function.remote(b=b)
    np.testing.assert_array_equal(ray.get(pending), numbers() + numbers(seed=1))
    labels = kaas.status().functions
    session = current_session()
    session.registered.clear()  # so that this driver cannot register its functions again
    kill_pool()
    assert kaas.status().functions == labels
    spread = [function.remote(b=b) for _ in range(8)]
    for value in ray.get(spread, timeout=TIMEOUT_S):
        np.testing.assert_array_equal(value, numbers() + numbers(seed=1))
    tiers = [tier for tier in kaas.stats().tiers if tier.function == add_task().label]
    assert [tier for tier in tiers if tier.tier == "device" and tier.objects]


@pytest.mark.usefixtures("pool")
def test_drivers_announce_functions_again_to_a_pool_that_lost_its_store() -> None:
    function = kaas.register(add_task(), constants={"a": numbers()})
    ray.get(function.remote(b=numbers()))
    node: Any = ray._private.worker._global_node
    store = SqliteStore(str(Path(node.get_session_dir_path(), "kaas", "kaas.sqlite")))
    store.open()
    assert add_task().key in store.read(TASKS)
    store.clear(FUNCTIONS, TASKS)
    store.close()
    kill_pool()
    np.testing.assert_array_equal(ray.get(function.remote(b=numbers()), timeout=TIMEOUT_S), numbers() * 2)


def lost_at_last(result: Any) -> Any:
    """How a result is lost; Ray notices the end of an owner a little later."""
    while True:
        try:
            ray.get(result, timeout=TIMEOUT_S)
        except errors.ResultLost as error:
            return error.cause  # type: ignore[attr-defined]  # Ray's


@ray.remote(num_cpus=0)
def first_of(value: Any) -> float:
    return float(value[0])


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_a_large_result_that_was_not_fetched_is_reported_as_lost() -> None:
    x = numbers(LARGE)
    results = [kaas.invoke(scale_task(LARGE), {"x": x}, scalars={"factor": 2}) for _ in range(4)]
    small = scaled(numbers())
    ray.wait([*results, small], num_returns=5)
    ray.get(small)
    killed = kill_pool()
    assert kaas.status().pid != killed
    lost = lost_at_last(results[0])
    assert type(lost) is errors.ResultLost
    assert "OwnerDiedError" in lost.reason

    async def awaited() -> None:
        await results[1]

    with pytest.raises(errors.ResultLost):
        asyncio.run(awaited())
    with pytest.raises(errors.ResultLost):
        ray.get(first_of.remote(results[2]), timeout=TIMEOUT_S)
    with pytest.raises(errors.InputFailed) as failed:
        ray.get(
            kaas.invoke(scale_task(LARGE), {"x": results[3]}, scalars={"factor": 2}),
            timeout=TIMEOUT_S,
        )
    assert isinstance(failed.value.cause.__cause__, errors.ResultLost)  # type: ignore[attr-defined]  # Ray's
    np.testing.assert_array_equal(ray.get(small), numbers() * np.float32(2))


@pytest.mark.usefixtures("pool")
def test_a_kept_output_is_reported_as_lost() -> None:
    x = numbers(LARGE)
    kept = kaas.invoke(scale_task(LARGE), {"x": x}, scalars={"factor": 2}, keep=True)
    resident = ray.get(kept)
    killed = kill_pool()
    assert kaas.status().pid != killed
    with pytest.raises(errors.ResultLost):
        resident.get()


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_requests_that_keep_their_outputs_run_where_they_have_run_before() -> None:
    x = numbers(LARGE)
    kept = [kaas.invoke(scale_task(LARGE), {"x": x}, scalars={"factor": n}, keep=True) for n in range(8)]
    os.kill(kaas.status().pid, signal.SIGKILL)  # some have ended; no caller has their replies yet
    for number, ref in enumerate(kept):
        resident = ray.get(ref, timeout=TIMEOUT_S)
        with contextlib.suppress(errors.ResultLost):  # its reply was sent already
            np.testing.assert_array_equal(resident.get(), x * np.float32(number))


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_calls_of_etasks_that_may_run_again_do(tmp_path: Path) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"

    @kaas.etask
    def wait(number: int) -> int:
        with log.open("a") as written:
            written.write(f"{number}")
        gate.open().close()
        return number

    os.mkfifo(gate)
    once = wait.remote(0)
    while not log.exists():
        pass
    again = wait.options(retries=1).remote(1)
    while not (kaas.status().queued or len(log.read_text()) == 2):
        pass
    kill_pool()
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(once, timeout=TIMEOUT_S)
    with gate.open("r+b", buffering=0):  # never waits, and lets all in that come meanwhile
        assert ray.get(again, timeout=TIMEOUT_S) == 1
    assert log.read_text().count("0") == 1


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_pins_are_sent_again() -> None:
    x = kaas.put(numbers())
    gone = kaas.put(numbers())
    for target in (x, gone):
        kaas.pin(target)
    kaas.unpin(gone)
    killed = kill_pool()
    while not all(device.pins for device in kaas.status().devices):
        pass
    status = kaas.status()
    assert status.pid != killed
    assert {(pin.target, pin.state) for device in status.devices for pin in device.pins} == {(x.hex(), "held")}
    kaas.unpin()
    assert not any(device.pins for device in kaas.status().devices)


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_a_run_of_the_killed_pool_holds_its_slot_until_it_ends() -> None:
    before = executors()
    long = [spin(2_000_000_000) for _ in range(2)]
    while kaas.status().running < 2:
        pass
    kill_pool()
    status = kaas.status()
    assert [device.state for device in status.devices] == ["busy", "busy"]
    assert status.running == 2
    assert len({int(value[0]) for value in ray.get(long, timeout=TIMEOUT_S)}) == 1
    assert executors() == before
    outcomes = kaas.stats().outcomes
    assert {entry.outcome for entry in outcomes} == {"succeeded"}
    assert sum(entry.count for entry in outcomes) == 2


@pytest.mark.usefixtures("pool")
def test_killed_again_and_again() -> None:
    before = executors()
    for round_ in range(3):
        results = [scaled(numbers(), number) for number in range(20)]
        killed = kill_pool()
        for number, value in enumerate(ray.get(results, timeout=TIMEOUT_S)):
            np.testing.assert_array_equal(value, numbers() * np.float32(number))
        assert kaas.status().pid != killed, round_
    assert executors() == before


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_an_executor_that_does_not_reply_is_replaced() -> None:
    stopped, kept = executors()
    os.kill(stopped, signal.SIGSTOP)
    kill_pool()
    values = ray.get([scaled(numbers(), number) for number in range(4)], timeout=TIMEOUT_S)
    for number, value in enumerate(values):
        np.testing.assert_array_equal(value, numbers() * np.float32(number))
    first, second = executors()
    assert (second, first == stopped) == (kept, False)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.usefixtures("pool")
@pytest.mark.full
def test_executors_end_with_a_pool_that_is_killed_for_good() -> None:
    left = executors()
    ray.kill(ray.get_actor("kaas", namespace=NAMESPACE))
    while any(map(exists, left)):
        pass
    kaas.shutdown()


@pytest.mark.usefixtures("start")
def test_a_store_that_was_given_keeps_functions_from_pool_to_pool(tmp_path: Path) -> None:
    kaas.shutdown()
    config = kaas.Config(devices=DEVICES[:1], store=str(tmp_path / "deep" / "functions"))
    kaas.init(config=config)
    kaas.register(scale_task())
    while not kaas.status().functions:
        pass
    kaas.shutdown()
    kaas.init(config=config)
    assert kaas.status().functions == (scale_task().label,)
    kaas.shutdown()


@pytest.mark.usefixtures("start")
@pytest.mark.full
def test_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    kaas.shutdown()
    with pytest.raises(errors.InvalidConfig, match="store"):
        kaas.init(config=kaas.Config(devices=DEVICES[:1], store=str(tmp_path)))
    kaas.init(devices=DEVICES)
    assert kaas.status().functions == ()  # functions of pools without a store of their own end with the pools
