"""A pool of plain processes: its calls, the programs that find it, its end, and that none of it needs Ray."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import kaas
import kaas.api.program
from kaas import errors
from kaas.api.attached import current_session
from kaas.api.process_session import ProcessSession
from kaas.api.session import HERE
from kaas.cli.main import app
from kaas.wire.connections.stream import MessageStream
from kaas.wire.status.status import Status
from kaas.worker.processes import pidfd
from tests.api.conftest import DEVICE_BYTES, add_task, both_task, crash_task, numbers, scale_task, spin_task
from tests.timeouts import TIMEOUT_S, readable

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
DEVICES = [kaas.Device("software", DEVICE_BYTES)] * 2
LARGE_DEVICE = kaas.Device("software", 512 << 20)
FOR_EVER = 1 << 60
LONG = 500_000_000
"""Steps of about half a second."""
STAYS = "import sys, kaas\n{}\nsys.stdin.read()"
"""A program that prints a line when it has done its work, and stays until it is killed."""


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Pools of these tests have their names in a folder of their own."""
    folder = tmp_path_factory.mktemp("runtime", numbered=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def pool(runtime: Path) -> Iterator[None]:  # noqa: ARG001 - where it has its name
    """The pool of most tests here."""
    assert kaas.init(ray=False, devices=DEVICES)
    yield
    kaas.shutdown()


@pytest.fixture
def another() -> Iterator[Callable[..., bool]]:
    """`kaas.init` of a pool for one test. The pool of most tests has ended before: these tests come last."""
    kaas.shutdown()
    yield lambda **wanted: kaas.init(ray=False, **{"devices": DEVICES[:1], **wanted})
    kaas.shutdown()


def scaled(x: Any, factor: float = 2.0, **options: Any) -> kaas.Future:
    return kaas.call(scale_task(), {"x": x}, scalars={"factor": factor}, **options)


def spin(steps: int = LONG, **options: Any) -> kaas.Future:
    return kaas.call(spin_task(), {}, scalars={"steps": steps}, **options)


def until(reached: Callable[[Status], Any]) -> Status:
    """Poll the pool until its status meets a condition."""
    while not reached(status := kaas.status()):
        pass
    return status


def executors() -> list[int]:
    return [
        device.info.pid for device in until(lambda status: all(d.info for d in status.devices)).devices if device.info
    ]


def program(code: str) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )


def words(other: subprocess.Popen[str]) -> list[str]:
    assert other.stdout is not None
    return other.stdout.readline().split()


def watched(*pids: int) -> list[int]:
    found = [pidfd(pid) for pid in pids]
    return [file for file in found if file is not None]


def all_end(files: list[int]) -> bool:
    """Return True if all of the processes end in time."""
    for file in files:
        if not readable(file):
            return False
        os.close(file)
    return True


class Elsewhere:
    """A policy that the pool's process cannot import."""

    def __call__(self, devices: Any) -> Any:
        raise AssertionError(devices)

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("import no_such_module",)


# --- calls and objects


@pytest.mark.usefixtures("pool")
class TestCalls:
    def test_value_in_value_out(self) -> None:
        np.testing.assert_array_equal(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)
        outputs = kaas.call(both_task(), {"x": numbers()}).result(TIMEOUT_S)
        np.testing.assert_array_equal(outputs.quadruple, numbers() * 4)

    def test_large_values(self) -> None:
        n = 4 << 20
        value = kaas.call(scale_task(n), {"x": numbers(n)}, scalars={"factor": 3}).result(TIMEOUT_S)
        np.testing.assert_array_equal(value, numbers(n) * 3)

    def test_objects_that_the_pool_holds(self) -> None:
        held = kaas.put(numbers())
        kaas.stats(reset=True)
        for _ in range(5):
            np.testing.assert_array_equal(scaled(held).result(TIMEOUT_S), numbers() * 2)
        stores = [tier for tier in kaas.stats().tiers if tier.tier == "store"]
        assert 1 <= sum(tier.objects for tier in stores) <= len(DEVICES)
        part = kaas.View(kaas.put(np.concatenate([numbers(), numbers(seed=1)])), numbers().nbytes)
        np.testing.assert_array_equal(scaled(part).result(TIMEOUT_S), numbers(seed=1) * 2)

    def test_dtype_and_size_of_an_object_are_checked_at_once(self) -> None:
        held = kaas.put(numbers().astype(np.int32))
        with pytest.raises(errors.WrongDtype):
            scaled(held)
        with pytest.raises(errors.WrongSize):
            scaled(kaas.put(numbers(10)))
        with pytest.raises(errors.WrongDtype):
            kaas.register(scale_task(), {"x": held})
        with pytest.raises(errors.InvalidRequest, match="this process only"):
            pickle.dumps(held)

    def test_constants(self) -> None:
        shared = kaas.put(numbers(seed=1))
        function = kaas.register(add_task(), {"a": shared, "b": numbers(seed=2)})
        kaas.prefetch(function).result(TIMEOUT_S)
        kaas.stats(reset=True)
        np.testing.assert_array_equal(function.call().result(TIMEOUT_S), numbers(seed=1) + numbers(seed=2))
        assert kaas.stats().hit_rate() == 1.0

    def test_many_constants(self) -> None:
        n, count = 1000, 100
        parts = {f"x{each}": kaas.Buffer(f"x{each}", n, "float32") for each in range(count)}
        sums = [kaas.Buffer(f"sum{each}", n, "float32") for each in range(count - 1)]
        kernel = add_task(n).kernels[0]
        first, kernels = parts["x0"], list[kaas.Kernel]()
        for each, total in enumerate(sums):
            operands = kaas.In(first), kaas.In(parts[f"x{each + 1}"]), kaas.Out(total), kaas.i32(n)
            kernels.append(kaas.Kernel(kernel.library, "add", kernel.grid, kernel.block, operands))
            first = total
        constants = {name: np.full(n, each, np.float32) for each, name in enumerate(parts)}
        function = kaas.register(kaas.KTask(kernels, [sums[-1]]), constants)
        np.testing.assert_array_equal(function.call().result(TIMEOUT_S), np.full(n, sum(range(count)), np.float32))

    def test_deadline_and_cancel(self) -> None:
        busy = [spin() for _ in DEVICES]
        until(lambda status: status.running == len(DEVICES))
        waiting = scaled(numbers(), deadline_s=0.05)
        assert isinstance(waiting.exception(TIMEOUT_S), errors.DeadlineExceeded)
        for call in busy:
            assert call.cancel()
            with pytest.raises(CancelledError):
                call.result()
        np.testing.assert_array_equal(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)

    def test_clients_are_counted_separately(self) -> None:
        kaas.stats(reset=True)
        scaled(numbers(), client="ann").result(TIMEOUT_S)
        scaled(numbers()).result(TIMEOUT_S)
        assert {outcome.client for outcome in kaas.stats().outcomes} == {"ann", current_session().client}

    def test_functions_that_need_ray_are_refused(self) -> None:
        function = kaas.register(scale_task())
        with pytest.raises(errors.InvalidRequest, match="needs Ray"):
            kaas.invoke(scale_task(), {"x": numbers()}, scalars={"factor": 1})
        with pytest.raises(errors.InvalidRequest, match="needs Ray"):
            function.remote(x=numbers(), factor=1)
        with pytest.raises(errors.InvalidRequest, match="needs Ray"):
            kaas.etask(numbers).remote()

    def test_invalid_arguments_are_refused_at_once(self) -> None:
        for name in ("", 3):
            with pytest.raises(errors.InvalidConfig, match="a pool has a name"):
                kaas.init(ray=False, name=name)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match=r"kaas\.pardon takes a KTask or a Function"):
            kaas.pardon("scale")  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match="this process only"):
            pickle.dumps(scaled(numbers()))

    def test_init_again_compares(self) -> None:
        assert not kaas.init(ray=False)
        assert not kaas.init(ray=False, devices=DEVICES)
        for wanted, differs in (({"slots": 2}, "slots"), ({"devices": DEVICES[:1]}, "devices")):
            with pytest.raises(errors.ConfigMismatch) as refused:
                kaas.init(ray=False, config=kaas.Config(**wanted))
            assert refused.value.differences == (differs,)
        with pytest.raises(errors.ConfigMismatch) as refused:
            kaas.init()
        assert refused.value.differences == ("ray",)
        with pytest.raises(errors.InvalidConfig, match="this machine"):
            kaas.init("auto", ray=False)


# --- processes end


def test_an_executor_that_is_killed_is_replaced(pool: None) -> None:  # noqa: ARG001
    before = executors()
    calls = [spin() for _ in DEVICES]
    until(lambda status: status.running == len(DEVICES))
    os.kill(before[0], signal.SIGKILL)
    assert len({int(call.result(TIMEOUT_S)[0]) for call in calls}) == 1
    after = executors()
    assert before[0] not in after
    assert before[1] in after


def test_a_pin_outlives_its_executor(pool: None) -> None:  # noqa: ARG001
    kaas.pin(kaas.put(numbers(seed=7)), device=0)  # only the pin refers to it
    function = kaas.register(add_task(), {"a": numbers(seed=8)})
    kaas.pin(function, device=0)
    os.kill(executors()[0], signal.SIGKILL)
    until(lambda status: [pin.state for pin in status.devices[0].pins] == ["loading"] * 2)
    until(lambda status: [pin.state for pin in status.devices[0].pins] == ["held"] * 2)
    kaas.unpin()
    kaas.flush()
    assert kaas.status().devices[0].pins == ()


def test_a_function_that_ends_devices_is_put_in_quarantine(pool: None) -> None:  # noqa: ARG001
    task = crash_task()
    for _ in range(2):
        error = kaas.call(task, {}).exception(TIMEOUT_S)
        assert isinstance(error, errors.DeviceLost)
    assert isinstance(kaas.call(task, {}).exception(TIMEOUT_S), errors.Quarantined)
    assert [held.faults for held in kaas.status().quarantined] == [2]
    assert kaas.pardon(task)
    assert not kaas.pardon(task)


# --- other programs

ATTACHED = """
import kaas
from tests.api.conftest import add_task, numbers
assert not kaas.init(ray=False, devices=[kaas.Device("software", {bytes})] * 2)
function = kaas.register(add_task(), {{"a": numbers(seed=20)}})
assert (function.call(b=numbers()).result({patience}) == numbers(seed=20) + numbers()).all()
"""


def test_another_program_attaches_and_shares_constants(pool: None) -> None:  # noqa: ARG001
    function = kaas.register(add_task(), {"a": numbers(seed=20)})
    kaas.pin(function)
    kaas.stats(reset=True)
    other = program(ATTACHED.format(bytes=DEVICE_BYTES, patience=TIMEOUT_S))
    assert other.wait(TIMEOUT_S) == 0
    assert kaas.stats().hit_rate() == 1.0
    kaas.unpin()


def test_the_command_line_finds_the_pool(pool: None) -> None:  # noqa: ARG001
    executors()
    printed = CliRunner().invoke(app, ["status", "--no-ray"]).stdout
    assert "pool kaas" in printed
    assert "idle" in printed
    assert re.search(r"│ here +│ \d+ +│", printed), "the node, and the process there"
    kaas.api.program.attach(ray=False)
    with pytest.raises(errors.ConfigMismatch):
        kaas.api.program.attach("no such pool", ray=False)


def test_nothing_to_attach_to() -> None:
    command = [sys.executable, "-m", "kaas.cli", "status", "--no-ray", "--name", "none"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "no pool 'none' runs without Ray" in ended.stderr


@pytest.mark.full
def test_the_demonstration_runs_without_ray(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kaas.cli", "demo", "--no-ray", "--seconds", "1", "--vertices", "64"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}  # for a pool of its own, of the same name
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert "all equal to NumPy's" in ended.stdout


def test_queued_calls_of_a_killed_program_are_cancelled(pool: None) -> None:  # noqa: ARG001
    queue = f"""
from tests.api.conftest import spin_task
kaas.init(ray=False)
calls = [kaas.call(spin_task(), {{}}, scalars={{"steps": {LONG}}}, client="killed") for _ in range(50)]
print(kaas.status().queued, flush=True)
"""
    other = program(STAYS.format(queue))
    assert int(words(other)[0]) >= 40
    other.kill()
    until(lambda status: not status.queued)
    other.communicate()
    ended = {outcome.outcome: outcome.count for outcome in kaas.stats().outcomes if outcome.client == "killed"}
    assert ended["cancelled"] >= 30


def test_a_pool_ends_with_the_program_that_started_it() -> None:
    start = f"""
from kaas.api.session import HERE
kaas.init(ray=False, devices=[kaas.Device("software", {DEVICE_BYTES})], name="passing")
while not (status := kaas.status()).devices[0].info: pass
print(status.pid, status.devices[0].info.pid, HERE.session.notice.address.path, flush=True)
"""
    other = program(STAYS.format(start))
    *pids, socket = words(other)
    ended = watched(*map(int, pids))
    assert len(ended) == 2
    other.kill()
    other.communicate()
    assert all_end(ended)
    assert not Path(socket.removeprefix("ipc://")).parent.exists()  # it had time to tidy up


def test_two_programs_that_begin_at_once_start_one_pool() -> None:
    start = f"""
began = kaas.init(ray=False, devices=[kaas.Device("software", {DEVICE_BYTES})], name="race")
print(began, kaas.status().pid, flush=True)
"""
    others = [program(STAYS.format(start)) for _ in range(2)]
    replies = [words(other) for other in others]
    assert sorted(reply[0] for reply in replies) == ["False", "True"]
    assert len({reply[1] for reply in replies}) == 1
    for other in others:
        other.kill()
        other.communicate()


def test_interrupting_a_program_at_a_terminal_leaves_its_pool_alone() -> None:
    start = f"""
import os, signal
from tests.api.conftest import numbers, scale_task
os.setpgid(0, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
kaas.init(ray=False, devices=[kaas.Device("software", {DEVICE_BYTES})], name="notebook")
before = kaas.status().pid
while not kaas.status().devices[0].info: pass
executor = kaas.status().devices[0].info.pid
try:
    os.killpg(0, signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    value = kaas.call(scale_task(), {{"x": numbers()}}, scalars={{"factor": 1}}).result({TIMEOUT_S})
assert (value == numbers()).all()
assert (kaas.status().pid, kaas.status().devices[0].info.pid) == (before, executor)
kaas.shutdown()
"""
    other = program("import kaas" + start)
    other.communicate()
    assert other.returncode == 0


NEVER_RAY = """
import asyncio, sys
import kaas
from tests.api.conftest import add_task, numbers, scale_task
from tests.api.models import adder, inputs

async def main():
    return await kaas.call(scale_task(), {"x": numbers()}, scalars={"factor": 2})

assert kaas.init(ray=False, devices=[kaas.Device()], name="never")
assert (asyncio.run(main()) == numbers() * 2).all()
function = kaas.register(add_task(), {"a": kaas.put(numbers())})
kaas.prefetch(function).result()
kaas.pin(function)
assert (function.call(b=numbers()).result() == numbers() * 2).all()
kaas.unpin(), kaas.flush()
adder(1, 8).register().call(**inputs(8)).result()
kaas.status(), kaas.stats(), kaas.pardon(function)
kaas.shutdown()
assert "ray" not in sys.modules, "ray"
"""


def test_a_program_without_ray_never_imports_ray() -> None:
    other = program(NEVER_RAY)
    other.communicate()
    assert other.returncode == 0


def test_a_process_that_was_forked_attaches_for_itself(pool: None) -> None:  # noqa: ARG001
    before = kaas.status().pid
    child = os.fork()
    if not child:
        try:
            try:
                kaas.status()
            except errors.NotInitialized:
                attached = not kaas.init(ray=False) and kaas.status().pid == before
                value = scaled(numbers()).result(TIMEOUT_S)
                os._exit(0 if attached and (value == numbers() * 2).all() else 2)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)


# --- pools that end


@pytest.mark.full
def test_constants_of_100_mb_are_held_once_in_the_pool(another: Callable[..., bool]) -> None:
    another(devices=[LARGE_DEVICE], config=kaas.Config(whole_object_bytes=128 << 20))
    constant = numbers(25 << 20)
    offset = 20 << 20
    parts = {"x": kaas.View(constant, offset * constant.itemsize)}
    functions = [kaas.register(scale_task(), parts).options(scalars={"factor": 2}) for _ in range(2)]  # one content
    for function in functions:
        value = function.call().result(TIMEOUT_S)
        np.testing.assert_array_equal(value, constant[offset : offset + len(value)] * 2)
    assert sum(tier.nbytes for tier in kaas.stats().tiers if tier.tier == "store") == constant.nbytes
    (executor,) = executors()
    os.kill(executor, signal.SIGKILL)
    np.testing.assert_array_equal(functions[0].call().result(TIMEOUT_S), value)


def test_a_pool_that_is_killed_ends_its_executors_and_calls(another: Callable[..., bool]) -> None:
    another()
    assert isinstance(HERE.session, ProcessSession)
    sockets = Path(HERE.session.notice.address.path)
    assert sockets.exists()
    call = spin(FOR_EVER)
    until(lambda status: status.running)
    ended = watched(*executors())
    os.kill(kaas.status().pid, signal.SIGKILL)
    assert isinstance(call.exception(TIMEOUT_S), errors.PoolStopped)
    for ask in (kaas.status, lambda: scaled(numbers()), lambda: kaas.put(numbers())):
        with pytest.raises(errors.PoolStopped):
            ask()
    assert all_end(ended)
    assert another()
    np.testing.assert_array_equal(scaled(numbers()).result(TIMEOUT_S), numbers() * 2)
    assert not sockets.parent.exists()


def test_shutdown_replies_to_waiting_requests_and_ends_the_processes(another: Callable[..., bool]) -> None:
    another()
    calls = [spin(FOR_EVER) for _ in range(5)]
    ended = watched(kaas.status().pid, *executors())
    kaas.shutdown()
    for call in calls:
        assert isinstance(call.exception(TIMEOUT_S), errors.PoolStopped)
    assert all_end(ended)
    with pytest.raises(errors.NotInitialized):
        kaas.status()
    kaas.shutdown()
    assert another()


def test_a_terminated_pool_replies_to_waiting_requests_and_ends(another: Callable[..., bool]) -> None:
    assert another()
    waiting = [spin(FOR_EVER) for _ in range(3)]
    ended = watched(until(lambda status: (status.running, status.queued) == (1, 2)).pid)
    os.kill(kaas.status().pid, signal.SIGTERM)
    for call in waiting:
        with pytest.raises(errors.PoolStopped, match="was shut down"):
            call.result(TIMEOUT_S)
    assert all_end(ended)
    assert another()


def test_a_pool_that_cannot_start_gives_the_reason(another: Callable[..., bool]) -> None:
    with pytest.raises(errors.PolicyError):
        another(policy=int)
    with pytest.raises(errors.InvalidConfig, match="cannot be sent"):
        another(policy=lambda devices: devices)
    with pytest.raises(errors.InvalidConfig, match="no_such_module"):
        another(policy=Elsewhere())
    assert another()


@pytest.mark.parametrize("where", ["send", "read"])
def test_ctrl_c_during_a_call_leaves_the_pool_to_the_next_call(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may be cut in the middle, so that connection ends; the next call makes another."""

    def interrupted(*_: Any) -> Any:
        setattr(MessageStream, where, original)
        raise KeyboardInterrupt

    def call() -> Any:
        return kaas.call(task, {"x": numbers()}, scalars={"factor": 3}).result(TIMEOUT_S)

    original, task = getattr(MessageStream, where), scale_task()
    assert kaas.init(ray=False, name="interrupted", devices=DEVICES[:1])
    try:
        expected = call()
        monkeypatch.setattr(MessageStream, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            call()
        for _ in range(3):
            np.testing.assert_array_equal(call(), expected)
    finally:
        kaas.shutdown()
