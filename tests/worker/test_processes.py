"""Children are ready, or send their error, and end with their parents."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kaas.config import Config, Device
from kaas.errors import DeviceUnavailable, KaasError
from kaas.pool.on_processes.process_pool import Machine
from kaas.wire.messages import VERSION, Address, PeerHello
from kaas.worker.process_orders import ExecutorOrders
from kaas.worker.processes import Child, how_it_ended, on_end, pidfd, report_failure, report_ready
from tests.loops import run
from tests.timeouts import readable

CHILD = """
import os, subprocess, sys, threading
from kaas.errors import DeviceUnavailable
from kaas.worker.processes import ordered, report_failure, report_ready

says, orders = int(sys.argv[1]), ordered(sys.stdin.buffer)
if orders == "fail":
    report_failure(says, DeviceUnavailable("no such device"))
elif orders == "die":
    os._exit(5)
elif orders.startswith("hold"):
    subprocess.Popen(["cat"], stdin=int(orders.split()[1]), close_fds=False)
    os._exit(5)
elif orders == "mute":
    os.close(says)
    threading.Event().wait()
else:
    if orders == "help":  # a child of this child, with all its files
        helper = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, close_fds=False)
    report_ready(says, f"{orders} {os.getpid()} {os.getsid(0)} {os.environ['EXTRA']}".encode())
    threading.Event().wait()
"""
COMPILING = """
import subprocess, sys, threading
from kaas.worker.processes import end_group, ordered, report_ready

says, orders = int(sys.argv[1]), ordered(sys.stdin.buffer, end_group)
compiler = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
report_ready(says, str(compiler.pid).encode())
threading.Event().wait()
"""
PARENT = """
import os, sys
from kaas.worker.processes import Child
child = Child("a_child", "stay", {"EXTRA": "x"})
print(child.wait_ready().split()[1].decode(), flush=True)
sys.stdin.read()
os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.processes
def test_a_child_is_ready_in_a_session_of_its_own() -> None:
    child = Child("a_child", "stay", {"EXTRA": "told"})
    orders, pid, session, extra = child.wait_ready().split()
    assert (orders, int(pid), int(session), extra) == (b"stay", child.process.pid, child.process.pid, b"told")
    child.process.kill()
    assert how_it_ended(child.process.wait()) == "killed by SIGKILL"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("orders", "error", "told"),
    [("fail", DeviceUnavailable, "no such"), ("die", KaasError, "5"), ("mute", KaasError, "killed by SIGKILL")],
)
def test_a_child_that_cannot_start_reports_its_error(orders: str, error: type[KaasError], told: str) -> None:
    with pytest.raises(error, match=told) as raised:
        Child("a_child", orders).wait_ready()
    assert type(raised.value) is error
    with pytest.raises(error, match=told):
        run(Child("a_child", orders).ready())


@pytest.mark.processes
def test_an_executor_that_cannot_connect_reports_it_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    device, address = Device("software", 16 << 20), Address("epoch", "here", "/nowhere")
    child = Child("kaas.worker.executor_process", ExecutorOrders(device, {"slots": 1}, "0", address, "here"))
    with pytest.raises(KaasError, match="no connection to its pool"):
        child.wait_ready()
    assert child.process.wait() == 0
    assert capfd.readouterr().err == ""


@pytest.mark.processes
def test_a_child_whose_parent_ends_before_its_orders_ends_silently() -> None:
    program = [sys.executable, "-m", "kaas.worker.executor_process", "1"]
    for begun in (b"", pickle.dumps(os.getpid()), pickle.dumps(os.getpid()) + b"\x80\x04"):
        ended = subprocess.run(program, input=begun, capture_output=True, start_new_session=True, check=False)
        assert (how_it_ended(ended.returncode), ended.stderr) == ("killed by SIGKILL", b"")


@pytest.mark.parametrize(
    "report", [partial(report_ready, word=b""), partial(report_failure, error=KaasError("no pool"))]
)
def test_a_word_to_a_parent_that_has_ended_is_no_error(report: Callable[[int], None]) -> None:
    parent_end, child_end = os.pipe()
    os.close(parent_end)
    report(child_end)


@pytest.mark.processes
def test_a_child_is_ready_although_a_process_of_it_holds_its_files() -> None:
    async def ready(child: Child) -> bytes:
        return await child.ready()

    for said in (Child.wait_ready, lambda child: run(ready(child))):
        child = Child("a_child", "help", {"EXTRA": ""})
        assert said(child).startswith(b"help ")
        child.process.kill()
        child.process.wait()


@pytest.mark.processes
def test_processes_that_a_child_has_started_end_with_it(tmp_path: Path) -> None:
    """A compiler that a child started ends with it, in any order of ends."""
    (tmp_path / "a_compiling_child.py").write_text(COMPILING)

    async def ended(end: Callable[[Child], object]) -> None:
        child = Child("a_compiling_child", "")
        gone = asyncio.Event()
        child.on_end(asyncio.get_running_loop(), lambda _: gone.set(), group=True)
        compiler = pidfd(int(await child.ready()))
        assert compiler is not None
        end(child)
        await gone.wait()
        assert await asyncio.to_thread(readable, compiler)
        os.close(compiler)

    for end in (Child.kill_group, lambda child: child.process.kill(), lambda child: child.process.terminate()):
        run(ended(end))


@pytest.mark.processes
def test_the_end_of_a_child_that_was_never_ready_is_noticed() -> None:
    async def watch(waits: int) -> None:
        child = Child("a_child", f"hold {waits}", files=[waits])
        child.on_end(asyncio.get_running_loop(), lambda _: None)
        with pytest.raises(KaasError, match="exit status 5"):
            await child.ready()

    waits, held = os.pipe()
    run(watch(waits))
    os.close(held)
    os.close(waits)


@pytest.mark.processes
def test_a_child_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, str(pid))

    async def watch() -> None:
        child = Child("a_child", "stay")
        monkeypatch.setattr(os, "pidfd_open", refuse)
        with pytest.raises(KaasError, match="cannot be watched"):
            child.on_end(asyncio.get_running_loop(), lambda _: None)
        assert child.process.returncode == -signal.SIGKILL

    run(watch())


def test_an_error_reports_that_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(KaasError, match="no more processes"):
        Child("a_child", "stay")


@pytest.mark.processes
def test_a_loop_is_notified_of_an_end_before_or_after_it() -> None:
    async def watch() -> int:
        loop = asyncio.get_running_loop()
        child = Child("a_child", "stay", {"EXTRA": ""})
        await child.ready()
        ended = asyncio.Event()
        on_end(loop, child.process.pid, ended.set)
        child.process.kill()
        await ended.wait()
        status = child.process.wait()
        gone = asyncio.Event()
        on_end(loop, child.process.pid, gone.set)
        await gone.wait()
        return status

    assert run(watch()) == -signal.SIGKILL


@pytest.mark.processes
def test_children_end_with_a_parent_that_is_killed() -> None:
    paths = os.pathsep.join(sys.path)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert parent.stdout is not None
    watched = pidfd(int(parent.stdout.readline()))
    assert watched is not None
    parent.communicate()
    assert readable(watched)
    os.close(watched)


@pytest.mark.parametrize(("pid", "why"), [(-1, "process -1"), (0, "PID namespace"), (2**40, "process 1099511627776")])
def test_a_program_that_cannot_be_watched_is_refused(pid: int, why: str) -> None:
    async def greet() -> None:
        machine = Machine(Config(devices=(Device("software"),)))
        for _ in range(2):
            with pytest.raises(KaasError, match=why) as refused:
                machine.came(PeerHello(VERSION, "client", "a session", "1", pid))
            assert "cannot be watched" in refused.value.message
        machine.came(PeerHello(VERSION, "client", "a session", "1", os.getpid()))

    run(greet())


@pytest.mark.processes
def test_a_process_may_open_as_many_files_as_its_hard_limit() -> None:
    program = "from kaas.worker.processes import open_all_files; open_all_files(); print(*getrlimit(RLIMIT_NOFILE))"
    limits = "from resource import *; setrlimit(RLIMIT_NOFILE, (100, 200));"
    told = subprocess.run([sys.executable, "-c", limits + program], stdout=subprocess.PIPE, text=True, check=True)
    assert told.stdout == "200 200\n"
