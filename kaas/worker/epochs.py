"""The epochs of a pool as an executor's process sees them: the present one, and runs of earlier ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaas.scheduling.decisions import StartWorker
from kaas.wire.connections.connection import Connection, ConnectionLost
from kaas.wire.messages import FromPeer, RequestObjects, RunInvocation
from kaas.wire.specs import decode_invocation
from kaas.wire.status.status import WorkerInfo


class WorkerPost(NamedTuple):
    """The start of a worker, and the handle of its pool: the worker ends with the pool."""

    start: StartWorker
    pool: Any


@dataclass(frozen=True, slots=True)
class Orphan:
    """A run that no caller waits for any more."""

    client: str
    function: str
    label: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """An executor that outlived a process of its pool, as it replies to the next.

    Fields:
        start: the event that started the executor. running: its runs that go on, by slot. functions: keys of the
            functions that it knows. cached: keys on its device.
    """

    start: StartWorker
    info: WorkerInfo
    running: dict[int, Orphan]
    functions: frozenset[str]
    cached: tuple[bytes, ...]


class Epoch:
    """One epoch of the pool: one process of it, the connection to it, and the state that ends with the connection."""

    def __init__(self, name: str, connection: Connection) -> None:
        """
        Args:
            name: as in the pool's Address.
        """
        self.name = name
        self.connection = connection
        self.requested = RequestedObjects(lambda number: connection.send(RequestObjects(number)))
        self.deferred_results = DeferredResults()
        self.over = False
        self._ending = threading.Lock()

    def send(self, header: FromPeer, frames: Sequence[Any] = ()) -> None:
        """Send to the pool, unless the epoch has ended: its messages mean nothing to the next one."""
        try:
            self.connection.send(header, frames)
        except ConnectionLost:
            return

    def close(self) -> bool:
        """End the epoch; waiting threads go on. Return True if it had not ended before."""
        with self._ending:
            ends, self.over = not self.over, True
        self.requested.close()
        self.deferred_results.close()
        self.connection.close()
        return ends


class RunningInvocation:
    """An invocation that runs in a slot, and the epoch that requested it.

    Fields:
        frames: those after the header. message: the header.
    """

    __slots__ = ("epoch", "frames", "invocation", "message")

    def __init__(self, epoch: Epoch, message: RunInvocation, frames: Sequence[Any]) -> None:
        self.epoch = epoch
        self.message = message
        self.invocation = decode_invocation(frames[0])
        self.frames = frames


class Epochs:
    """All epochs, one after the other: runs go on from one to the next. Any thread may call the methods.

    Fields:
        now: the last epoch that began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._runs: dict[int, RunningInvocation] = {}
        self.now: Epoch | None = None

    def begin(self, epoch: Epoch) -> dict[int, RunningInvocation]:
        """Begin an epoch; return the runs that the last one has left, by slot."""
        with self._changed:
            former, self.now = self.now, epoch
            left = dict(self._runs)
            self._changed.notify_all()
        if former is not None:
            former.close()
        return left

    def wait(self, name: str) -> None:
        """Wait until a later epoch begins."""
        with self._changed:
            self._changed.wait_for(lambda: self.now is not None and self.now.name != name)

    def started(self, run: RunningInvocation) -> bool:
        """Start a run; return True if it may begin. After the end of its epoch the next epoch has its slot."""
        with self._lock:
            if run.epoch is not self.now:
                return False
            self._runs[run.message.slot] = run
        return True

    def functions(self) -> set[str]:
        """Return the functions of the running invocations."""
        with self._lock:
            return {run.invocation.function for run in self._runs.values()}

    def ended(self, run: RunningInvocation) -> Epoch | None:
        """Take in that a run has ended; return the epoch that has adopted it, if its own is over."""
        with self._lock:
            del self._runs[run.message.slot]
            return None if self.now is run.epoch else self.now


class RequestedObjects:
    """The objects that are requested of the pool in one epoch. Any thread may call the methods."""

    def __init__(self, request: Callable[[int], None]) -> None:
        """
        Args:
            request: requests of the pool all objects that the message with this number names.
        """
        self._request = request
        self._changed = threading.Condition()
        self._awaited: dict[int, Sequence[Any] | Exception | None] = {}
        self._closed = False

    def ask(self, number: int) -> Sequence[Any]:
        """Return the attachments of a request, once the pool has sent them.

        Raises:
            The error that the pool has sent instead; ConnectionError: the pool has ended.
        """
        with self._changed:
            self._awaited[number] = None
        try:
            self._request(number)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._awaited[number] is not None)
        finally:
            with self._changed:
                came = self._awaited.pop(number)
        if isinstance(came, Exception):
            raise came
        if came is None:
            raise ConnectionError("the pool ended before it had sent the objects")
        return came

    def bring(self, number: int, objects: Sequence[Any] | Exception) -> None:
        """Take objects that the pool sent; objects that no thread waits for any more are dropped."""
        with self._changed:
            if number in self._awaited:
                self._awaited[number] = objects
                self._changed.notify_all()

    def close(self) -> None:
        """Take in that the pool has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


WRITTEN_AT_ONCE = 4
"""Outputs that may be written back and not collected yet; a thread that writes back more waits."""


class DeferredResults:
    """The results that wait for the pool in one epoch. Any thread may call the methods."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._packed: dict[int, Sequence[Any]] = {}
        self._written: set[int] = set()
        self._closed = False

    def pack(self, arrays: Sequence[Any]) -> int:
        """Keep a result, and return its number."""
        with self._changed:
            return self._pack(arrays)

    def pack_written(self, array: Any) -> int | None:
        """Keep an output that is written back, once there is room, and return its number.

        Return None if the pool has ended: no program can name the output any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._written) < WRITTEN_AT_ONCE)
            if self._closed:
                return None
            number = self._pack([array])
            self._written.add(number)
            return number

    def collect(self, number: int) -> Sequence[Any]:
        """Remove a deferred result, and return its arrays.

        Raises:
            KeyError: there is no such result, or no longer.
        """
        with self._changed:
            arrays = self._packed.pop(number)
            if number in self._written:
                self._written.remove(number)
                self._changed.notify_all()
            return arrays

    def close(self) -> None:
        """Take in that the pool has ended."""
        with self._changed:
            self._closed = True
            self._packed.clear()
            self._changed.notify_all()

    def _pack(self, arrays: Sequence[Any]) -> int:
        self._last += 1
        self._packed[self._last] = arrays
        return self._last
