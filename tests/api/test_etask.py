"""Python functions and classes that have a device to themselves."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import kaas
from kaas import errors
from tests.api.conftest import DEVICE_BYTES, numbers, scale_task
from tests.api.flows import WorkerForEachFlow
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.ray

LIMIT_S = 5.0
LARGE = 1 << 20

calls = 0


@pytest.fixture(scope="module", autouse=True)
def pool_of_two(start: Callable[..., bool]) -> None:
    devices = (kaas.Device("software", DEVICE_BYTES),) * 2
    start(config=kaas.Config(devices, WorkerForEachFlow, run_limit_s=LIMIT_S))


@kaas.etask
def counted(x: int = 0, *, y: int = 0) -> tuple[int, int, int]:
    """Return the sum, the number of calls in this process, and the process."""
    global calls
    calls += 1
    return x + y, calls, os.getpid()


@kaas.etask(num_gpus=1)
class _Account:
    """Keeps a sum, and writes it to a file at the end."""

    def __init__(self, start: int = 0, book: str = "") -> None:
        self.sum = start
        self.book = book

    def __call__(self, amount: int) -> int:
        self.sum += amount
        return self.sum

    def process(self) -> int:
        return os.getpid()

    def close(self) -> None:
        if self.book:
            Path(self.book).write_text(str(self.sum))


Account: Any = _Account  # type checkers take it for the class


@kaas.etask
def same(value: Any, *more: Any, **named: Any) -> Any:
    return (value, more, named) if more or named else value


@kaas.etask
def held(gate: str, log: str = "") -> int:
    """Reports that it runs, and waits until the gate opens."""
    if log:
        with Path(log).open("a") as written:
            written.write("ran\n")
    with Path(gate).open() as opened:
        return len(opened.read())


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The gate that `held` waits for. Opening it waits until `held` runs."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def get(ref: Any) -> Any:
    return ray.get(ref, timeout=TIMEOUT_S)


def raised(ref: Any) -> Any:
    """Return the error of a reference, without Ray's wrapping."""
    with pytest.raises(errors.KaasError) as caught:
        get(ref)
    return caught.value.cause  # type: ignore[attr-defined]  # Ray's


# --- functions and instances


@pytest.mark.full
def test_a_function_keeps_its_globals_in_one_process() -> None:
    client = counted.options(client="globals")
    first, second = get([client.remote(1), client.remote(1, y=2)])
    assert first[:2] == (1, 1)
    assert second == (3, 2, first[2])
    assert first[2] != os.getpid()
    assert calls == 0


def test_an_instance_keeps_its_state_and_other_instances_have_their_own() -> None:
    ten = Account.bind(10).options(client="ten")
    assert get([ten.remote(1), ten.remote(2)]) == [11, 13]
    assert get(Account.options(client="ten").remote(5)) == 5
    assert get(ten.process.remote()) != os.getpid()


def test_an_etask_has_one_device_and_a_loaded_driver() -> None:
    task = scale_task()

    @kaas.etask
    def scaled(x: Any) -> Any:
        y = kaas.run_local(task, {"x": x}, scalars={"factor": 3})["y"]
        import softgpu

        return y, os.environ["CUDA_VISIBLE_DEVICES"], softgpu.loaded_devices()

    y, visible, devices = get(scaled.remote(numbers()))
    np.testing.assert_allclose(y, numbers() * 3)
    assert visible == "0"
    assert [device.memory_bytes if hasattr(device, "memory_bytes") else device for device in devices] == [DEVICE_BYTES]


@pytest.mark.full
def test_calls_run_in_the_order_in_which_they_were_made() -> None:
    @kaas.etask
    class Log:
        def __init__(self) -> None:
            self.seen: list[int] = []

        def __call__(self, number: int) -> list[int]:
            self.seen.append(number)
            return self.seen

    handle: Any = Log
    log = handle.options(client="log")
    assert get([log.remote(number) for number in range(300)])[-1] == list(range(300))


def test_a_handle_works_in_a_ray_task() -> None:
    @ray.remote(num_cpus=0)
    def ask(account: Any) -> Any:
        return ray.get(account.remote(4))

    assert get(ask.remote(Account.bind(3).options(client="task"))) == 7


# --- arguments and results


def test_references_become_values_and_all_else_stays() -> None:
    @ray.remote(num_cpus=0)
    def made() -> str:
        return "made"

    inner = ray.put("inner")
    value, more, named = get(same.remote(ray.put({"a": 1}), made.remote(), 3, named=made.remote(), nested=[inner]))
    assert (value, more) == ({"a": 1}, ("made", 3))
    assert named["named"] == "made"
    assert get(named["nested"][0]) == "inner"


@pytest.mark.parametrize("count", [10, LARGE])
def test_arrays_small_and_large_arrive_read_only(count: int) -> None:
    x = numbers(count)
    y = get(same.remote(x))
    np.testing.assert_array_equal(y, x)
    assert not y.flags.writeable

    @kaas.etask
    def writeable(x: Any) -> bool:
        return bool(x.flags.writeable)

    assert not get(writeable.remote(x))


def test_results_pass_from_ktasks_to_etasks_to_ktasks_and_ray() -> None:
    scaled = kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 2})
    again = kaas.invoke(scale_task(), {"x": same.remote(scaled)}, scalars={"factor": 3})
    np.testing.assert_allclose(get(again), numbers() * 6)

    @ray.remote(num_cpus=0)
    def length(value: Any) -> int:
        return len(value)

    assert get(length.remote(same.remote([1, 2, 3]))) == 3


@pytest.mark.full
def test_a_kept_output_leaves_with_an_executor_that_makes_room() -> None:
    x = numbers(LARGE // 16)
    first, second = (kaas.invoke(scale_task(len(x)), {"x": x}, scalars={"factor": f}, keep=True) for f in (2, 3))
    resident = get(first)
    assert isinstance(resident, kaas.Resident)
    assert isinstance(get(second), kaas.Resident)
    kaas.stats(reset=True)
    for number in range(4):
        get(same.options(client=f"room {number}").remote(0))
    assert {device.worker_kind for device in kaas.status().devices} == {"etask"}, "the executor made room"
    np.testing.assert_allclose(get(same.options(client="room 0").remote(first)), x * 2)
    np.testing.assert_allclose(resident.get(), x * 2)
    np.testing.assert_allclose(get(second).get(), x * 3)
    assert {outcome.function for outcome in kaas.stats().outcomes} == {"same"}  # nothing was computed anew


def test_an_etask_or_argument_that_cannot_be_sent_is_refused_at_the_call() -> None:
    lock = threading.Lock()

    @kaas.etask
    def locked() -> None:
        with lock:
            pass

    with pytest.raises(errors.InvalidRequest, match=r"locked cannot be sent: TypeError: .*lock"):
        locked.remote()
    with pytest.raises(errors.InvalidRequest, match=r"an argument of same cannot be sent: TypeError"):
        same.remote(lock)


@pytest.mark.parametrize("size", [0, LARGE])
def test_a_result_that_cannot_be_sent_is_its_callers_error(size: int) -> None:
    @kaas.etask
    def lock() -> Any:
        return b"x" * size, threading.Lock()

    error = raised(lock.options(client="lock").remote())
    assert type(error) is errors.ETaskFailed
    assert "lock" in error.message
    assert error.error_type == "TypeError"
    assert type(raised(lock.options(client="lock").remote())) is errors.ETaskFailed


# --- exceptions


class Strange(Exception):
    """Cannot be made anew from the arguments that its base class keeps."""

    def __init__(self, *, why: str) -> None:
        super().__init__(why)


def test_an_exception_of_an_etask_arrives_with_its_message() -> None:
    @kaas.etask
    def fails(kind: str) -> None:
        if kind == "strange":
            raise Strange(why="who knows")
        if kind == "exit":
            sys.exit(3)
        raise ValueError("no such thing")

    error = raised(fails.remote("plain"))
    assert type(error) is errors.ETaskFailed
    assert (error.error_type, error.function) == ("ValueError", error.function)
    assert "fails" in error.function
    assert error.message.endswith("raised ValueError: no such thing")
    assert 'raise ValueError("no such thing")' in error.traceback
    assert "etask_actor" not in error.traceback
    assert isinstance(error.__cause__, ValueError)
    assert isinstance(pickle.loads(pickle.dumps(error)).__cause__, ValueError)
    strange = raised(fails.remote("strange"))
    assert (strange.error_type, strange.__cause__) == ("Strange", None)
    assert raised(fails.remote("exit")).error_type == "SystemExit"


@pytest.mark.full
def test_a_constructor_that_raises_fails_each_call() -> None:
    @kaas.etask
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("cannot be made")

        def __call__(self) -> None: ...

    broken: Any = Broken
    for error in [raised(ref) for ref in [broken.remote(), broken.remote()]]:
        assert type(error) is errors.ETaskFailed
        assert error.error_type == "RuntimeError"
    assert get(same.remote(1)) == 1


@pytest.mark.full
def test_a_failed_argument_is_reported_as_such() -> None:
    @ray.remote(num_cpus=0)
    def fails() -> None:
        raise KeyError("argument")

    error = raised(counted.remote(fails.remote()))
    assert type(error) is errors.InputFailed
    assert isinstance(error.__cause__, KeyError)
    wrong = kaas.invoke(scale_task(symbol="sale"), {"x": numbers()}, scalars={"factor": 2})
    assert isinstance(raised(counted.remote(wrong)).__cause__, errors.UnknownSymbol)


def test_invalid_etasks_and_options_are_refused() -> None:
    async def coroutine() -> None: ...

    class Remote:
        def remote(self) -> None: ...

    for target, words in ((coroutine, "coroutine"), (Remote, "'remote'"), (3, "a function or a class")):
        with pytest.raises(errors.InvalidRequest, match=words):
            kaas.etask(target)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidRequest, match="one GPU"):
        kaas.etask(num_gpus=2)
    with pytest.raises(errors.InvalidRequest, match="retries"):
        counted.options(retries=-1)
    with pytest.raises(errors.InvalidRequest, match="a client is a name"):
        counted.options(client="")
    with pytest.raises(errors.InvalidRequest, match="with each call"):
        counted.bind(1)
    with pytest.raises(errors.InvalidRequest, match=r"counted\.remote"):
        counted(1)
    with pytest.raises(AttributeError, match="close"):
        Account.close  # noqa: B018
    with pytest.raises(errors.InvalidRequest, match="references"):
        Account.bind(ray.put(1))

    @kaas.etask
    class Mute:
        def speak(self) -> str:
            return "spoke"

    mute: Any = Mute
    with pytest.raises(errors.InvalidRequest, match="no __call__"):
        mute.remote()
    assert get(mute.speak.remote()) == "spoke"


# --- owners of devices


@pytest.mark.full
def test_a_worker_makes_room_after_it_has_closed(tmp_path: Path) -> None:
    book = tmp_path / "book"
    account = Account.bind(1, str(book)).options(client="closing")
    assert get([account.remote(1), account.remote(1)]) == [2, 3]
    before = get(account.process.remote())
    for client in ("a", "b"):
        assert get(same.options(client=client).remote(client)) == client
    assert book.read_text() == "3"
    assert get(account.remote(1)) == 2
    assert get(account.process.remote()) != before


def test_status_and_stats_show_etasks(gate: Path) -> None:
    kaas.stats(reset=True)
    running = held.options(client="seen").remote(str(gate))
    with gate.open("w") as opened:
        (device,) = [device for device in kaas.status().devices if device.running]
        opened.write("go")
    assert get(running) == 2
    assert (device.worker_kind, device.client, device.serves) == ("etask", "seen", "held")
    stages = {stage.stage: stage for stage in kaas.stats().stages if stage.client == "seen"}
    assert stages.keys() == {"queue", "start", "run", "request"}
    assert stages["request"].total_s >= stages["start"].total_s + stages["run"].total_s
    outcomes = [(each.function, each.outcome, each.count) for each in kaas.stats().outcomes if each.client == "seen"]
    assert outcomes == [("held", "succeeded", 1)]


def test_neither_the_start_of_a_process_nor_its_instance_is_run_time() -> None:
    class Five:
        def __call__(self) -> int:
            return 5

    once: Any = kaas.etask(Five)
    kaas.stats(reset=True)
    assert get(once.bind().options(client="once").remote()) == 5
    stats = kaas.stats()
    (run_s,) = [profile.run_s for profile in stats.profiles if profile.function.endswith("Five")]
    (whole_s,) = [stage.total_s for stage in stats.stages if (stage.client, stage.stage) == ("once", "run")]
    assert 0 < run_s < whole_s  # which has the making of the instance


# --- early ends


def test_cancelled_calls_queued_and_running(gate: Path, tmp_path: Path) -> None:
    client, log = held.options(client="cancelled"), tmp_path / "log"
    running = client.remote(str(gate), str(log))
    queued = client.remote(str(gate), str(log))
    last = client.remote(str(gate), str(log))
    with gate.open("w") as opened:
        for ref in (queued, running):
            ray.cancel(ref)
            with pytest.raises(ray.exceptions.TaskCancelledError):
                get(ref)
        opened.write("released")
    while log.read_text() != "ran\nran\n":
        pass
    with gate.open("w") as opened:
        opened.write("go")
    assert get(last) == 2
    assert log.read_text() == "ran\nran\n"


@pytest.mark.full
def test_deadlines_queued_and_running(gate: Path) -> None:
    client = held.options(client="late")
    warm = client.remote(str(gate))
    with gate.open("w") as opened:
        opened.write("go")
    assert get(warm) == 2
    running = client.options(deadline_s=2).remote(str(gate))
    queued = client.options(deadline_s=1).remote(str(gate))
    with gate.open("w"):
        assert "queued" in raised(queued).message
        assert "running" in raised(running).message


def test_a_call_that_runs_too_long_ends_with_its_worker() -> None:
    @kaas.etask
    def hangs() -> None:
        threading.Event().wait()

    error = raised(hangs.remote())
    assert type(error) is errors.DeadlineExceeded
    assert error.deadline_s == LIMIT_S


def test_a_call_of_a_killed_worker_runs_again_only_with_retries(gate: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for retries in (0, 1):
        ref = held.options(client="killed", retries=retries).remote(str(gate), str(log))
        with gate.open("w"):
            (pid,) = [device.info.pid for device in kaas.status().devices if device.running and device.info]
            os.kill(pid, signal.SIGKILL)
            if not retries:
                error = raised(ref)
                assert type(error) is errors.ExecutorDied
                assert error.attempts == 1
    while log.read_text() != "ran\n" * 3:
        pass
    with gate.open("w") as opened:
        opened.write("again")
    assert get(ref) == 5
    assert log.read_text() == "ran\n" * 3


@pytest.mark.full
def test_an_idle_worker_that_dies_is_replaced() -> None:
    client = counted.options(client="idle")
    _, _, pid = get(client.remote())
    os.kill(pid, signal.SIGKILL)
    while pid in [device.info.pid for device in kaas.status().devices if device.info]:
        pass
    assert get(client.remote())[1] == 1
