"""The process of a pool without Ray: programs start and find it, and it ends with them, or when it is stopped."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import kaas
import kaas.api.program
from kaas import errors
from kaas.api import process_session, rpc_client
from kaas.api.process_session import ProcessSession
from kaas.api.session import HERE
from kaas.cli.main import app
from tests.api.conftest import DEVICE_BYTES, add_task, numbers
from tests.api.without_ray import (
    FOR_EVER,
    LONG,
    ROOT,
    STAYS,
    Elsewhere,
    all_end,
    another,
    executors,
    pool,
    program,
    runtime,
    scaled,
    spin,
    until,
    watched,
    words,
)
from tests.timeouts import TIMEOUT_S

__all__ = ["another", "pool", "runtime"]

pytestmark = pytest.mark.processes


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


def test_a_program_ends_its_pool_though_the_pools_process_hangs(
    another: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_session, "STOP_S", 0.5)
    another()
    ended = watched(kaas.status().pid, *executors())
    os.kill(kaas.status().pid, signal.SIGSTOP)
    kaas.shutdown()
    assert all_end(ended)
    assert another()


def test_shutdown_ends_a_pool_that_no_connection_reaches(
    another: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    another()
    assert isinstance(HERE.session, ProcessSession)
    assert HERE.session.child is not None
    pid = HERE.session.child.process.pid  # without a question to the pool, which would connect
    ended = watched(pid)
    monkeypatch.setattr(rpc_client, "CONNECT_S", 0.5)
    monkeypatch.setattr(process_session, "STOP_S", 2 * TIMEOUT_S)
    os.kill(pid, signal.SIGSTOP)
    kaas.shutdown()
    assert all_end(ended)


def test_init_refuses_a_pool_that_does_not_reply_and_finds_it_once_it_does(
    another: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    another()
    first, pid = HERE.session, kaas.status().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            for module in (process_session, rpc_client):
                patch.setattr(module, "CONNECT_S", 0.5)
            for session in (first, None):  # None: as in another program
                patch.setattr(HERE, "session", session)
                with pytest.raises(errors.PoolStopped, match="has not replied"):
                    another()
    finally:
        os.kill(pid, signal.SIGCONT)
    with monkeypatch.context() as patch:
        patch.setattr(HERE, "session", None)
        assert not another()
        assert kaas.status().pid == pid
    assert HERE.session is first
    assert not another()


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
