"""Executors as processes: a pool that has no file descriptor left for one waits for it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kaas.config import Config, Device
from kaas.errors import KaasError
from kaas.executor.cache.journal import CacheFiles, CacheJournal, KeptGroup, KeptObject
from kaas.pool.on_processes import hosts
from kaas.pool.on_processes.hosts import PRINTED_BYTES_PER_MINUTE, ProcessHosts
from kaas.scheduling.decisions import StartWorker
from kaas.scheduling.events import WorkerKind
from kaas.wire.messages import Address
from kaas.wire.status import status_codec
from kaas.wire.status.status import WorkerInfo
from kaas.worker.executor_worker import LOST_STATUS
from kaas.worker.processes import PrintedLines
from kaas.worker.sandbox import Sandbox
from tests.loops import run

START, ADDRESS = StartWorker(3, WorkerKind.EXECUTOR, 0), Address("epoch", "here", "/nowhere")
INFO = WorkerInfo(1, "here", "software", 1 << 20, (8, 0))


class FakeChild:
    """A process that starts once no error is left. tried: the number of attempts."""

    errors: list[int]
    tried: int

    def __init__(self, *_: Any, **__: Any) -> None:
        FakeChild.tried += 1
        if self.errors:
            error = OSError(self.errors.pop(0), "it does not start")
            raise KaasError("no process can be started") from error

    def on_end(self, *_: Any, **__: Any) -> None:
        pass

    async def ready(self) -> bytes:
        return status_codec.encode(INFO)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Callable[..., WorkerInfo]:
    """Starts an executor, of a child whose first attempts fail with these errors."""
    monkeypatch.setattr(hosts, "Child", FakeChild)
    monkeypatch.setattr(hosts, "RETRY_S", 0)

    def start(*errors: int, start_limit_s: float = 600.0) -> WorkerInfo:
        FakeChild.errors, FakeChild.tried = list(errors), 0

        async def begin() -> WorkerInfo:
            config = Config(devices=(Device("software"),), start_limit_s=start_limit_s)
            return await ProcessHosts(config, "here").start(START, ADDRESS)

        return run(begin())

    return start


def test_a_start_waits_for_file_descriptors(started: Callable[..., WorkerInfo]) -> None:
    assert started(errno.EMFILE, errno.ENFILE, errno.EMFILE) == INFO
    assert FakeChild.tried == 4


def test_a_start_waits_for_descriptors_half_of_its_limit(started: Callable[..., WorkerInfo]) -> None:
    with pytest.raises(KaasError, match="no process"):
        started(*[errno.EMFILE] * 1_000_000, start_limit_s=1e-9)


def test_a_start_that_fails_otherwise_is_not_tried_again(started: Callable[..., WorkerInfo]) -> None:
    with pytest.raises(KaasError, match="no process"):
        started(errno.ENOENT)
    assert FakeChild.tried == 1


class ManyThreads(FakeChild):
    """An executor whose threads are those of this process. killed: how often it was."""

    process = SimpleNamespace(pid=os.getpid())
    killed = 0

    def pass_on(self, name: str, *printed: PrintedLines) -> None:
        for each in printed:
            each(name, "x" * (2 * PRINTED_BYTES_PER_MINUTE))

    def kill_group(self) -> None:
        ManyThreads.killed += 1


def test_an_executor_with_more_threads_than_it_needs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        machine = ProcessHosts(Config(devices=(Device("gpu"),)), "here", Sandbox())
        await machine.start(START, ADDRESS)
        await looked()
        before = ManyThreads.killed
        threads[0] = 1025
        await looked()
        assert (before, ManyThreads.killed > 0) == (0, True)
        machine._children.clear()

    async def looked() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    threads = [1024]
    FakeChild.errors, FakeChild.tried = [], 0
    monkeypatch.setattr(hosts, "threads_of", lambda _: threads[0])
    monkeypatch.setattr(hosts, "Child", ManyThreads)
    monkeypatch.setattr(hosts, "COUNTED_EVERY_S", 0)
    run(scenario())


def test_what_an_executor_in_a_sandbox_says_is_bounded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        machine = ProcessHosts(Config(devices=(Device("gpu"),)), "here", Sandbox())
        await machine.start(START, ADDRESS)
        machine._children.clear()

    threads = [1024]
    FakeChild.errors, FakeChild.tried = [], 0
    monkeypatch.setattr(hosts, "threads_of", lambda _: threads[0])
    monkeypatch.setattr(hosts, "Child", ManyThreads)
    run(scenario())
    for said in capsys.readouterr():
        assert said.startswith("[worker 3] xxx")
        assert said.count("x") == PRINTED_BYTES_PER_MINUTE


def test_a_start_that_is_killed_while_it_waits_gets_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "Child", FakeChild)
    monkeypatch.setattr(hosts, "RETRY_S", 0)

    async def scenario() -> None:
        FakeChild.errors, FakeChild.tried = [errno.EMFILE], 0
        machine = ProcessHosts(Config(devices=(Device("software"),)), "here")
        start = asyncio.ensure_future(machine.start(START, ADDRESS))
        while not FakeChild.tried:
            await asyncio.sleep(0)
        machine.kill(START.worker)
        with pytest.raises(KaasError, match="before it had a process"):
            await start
        assert FakeChild.tried == 1

    run(scenario())


class EndingChild(FakeChild):
    """A process of which a test says when it ends. made: all of them."""

    made: list[EndingChild]

    def __init__(self, module: str, orders: Any, *arguments: Any, **named: Any) -> None:
        super().__init__(module, orders, *arguments, **named)
        self.files: CacheFiles = orders.options["files"]
        self.process = SimpleNamespace(pid=0, returncode=None)
        self.made.append(self)

    def on_end(self, _: Any, then: Callable[[str], Any], **__: Any) -> None:
        self._then = then

    def end(self, status: int) -> None:
        self.process.returncode = status
        self._then("ended")

    def kill_group(self) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "same", "kept"),
    [
        (-signal.SIGKILL, True, True),
        (LOST_STATUS, True, True),
        (-signal.SIGSEGV, True, False),
        (-signal.SIGABRT, True, False),
        (1, True, False),
        (None, False, False),
    ],
)
def test_the_next_executor_of_a_device_adopts_what_one_that_was_killed_has_left(
    status: int | None, same: bool, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """status: None: the one before does not end."""
    monkeypatch.setattr(hosts, "Child", EndingChild)
    monkeypatch.setattr(hosts, "END_LIMIT_S", 0.0 if status is None else 600.0)

    async def scenario() -> None:
        FakeChild.errors, FakeChild.tried, EndingChild.made = [], 0, []
        machine = ProcessHosts(Config(devices=(Device("software"),)), "here")
        await machine.start(START, ADDRESS)
        (first,) = EndingChild.made
        inode = os.fstat(first.files.memory).st_ino
        CacheJournal(first.files.journal).add(KeptGroup(1, [0], [KeptObject(0, b"key", 1, None, None, None)]))
        machine.kill(START.worker)
        again = asyncio.ensure_future(machine.start(StartWorker(4, WorkerKind.EXECUTOR, 0), ADDRESS))
        await asyncio.sleep(0)
        if status is not None:
            assert len(EndingChild.made) == 1  # it waits
            first.end(status)
        await again
        _, second = EndingChild.made
        assert (os.fstat(second.files.memory).st_ino == inode) is same
        assert bool(CacheJournal(second.files.journal).groups) is kept
        machine.kill_all()

    run(scenario())
