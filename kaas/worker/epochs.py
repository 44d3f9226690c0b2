"""The lives of a pool as an executor's process sees them: whose messages count, and what earlier ones left running."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaas.scheduling.events import StartWorker
from kaas.wire.connections.connection import Connection, ConnectionLost
from kaas.wire.messages import FromPeer, RequestObjects, RunInvocation
from kaas.wire.specs import decode_invocation
from kaas.wire.status.status import WorkerInfo


class WorkerPost(NamedTuple):
    """Where a worker stands: as what it was started, and the handle of its pool, whose end is its own."""

    start: StartWorker
    pool: Any


@dataclass(frozen=True, slots=True)
class Orphan:
    """A run that nobody waits for any more."""

    client: str
    function: str
    label: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """An executor that outlived a process of its pool, as it answers to the next.

    Fields:
        start: as what it was started. running: what it still runs, by slot. functions: keys of those it has met.
        cached: keys on its device.
    """

    start: StartWorker
    info: WorkerInfo
    running: dict[int, Orphan]
    functions: frozenset[str]
    cached: tuple[bytes, ...]


class Epoch:
    """One life of the pool, as long as it or this process does not end, and all that is only good for it."""

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
        """To the pool, unless it has ended: what is said of one life means nothing to the next."""
        try:
            self.connection.send(header, frames)
        except ConnectionLost:
            return

    def close(self) -> bool:
        """Whoever waits for the pool goes on. Whether it was not over yet."""
        with self._ending:
            ends, self.over = not self.over, True
        self.requested.close()
        self.deferred_results.close()
        self.connection.close()
        return ends


class RunningInvocation:
    """An invocation while it runs in a slot, and the life that asked for it.

    Fields:
        frames: those behind the header.
    """

    __slots__ = ("asked", "epoch", "frames", "invocation")

    def __init__(self, epoch: Epoch, asked: RunInvocation, frames: Sequence[Any]) -> None:
        self.epoch = epoch
        self.asked = asked
        self.invocation = decode_invocation(frames[0])
        self.frames = frames


class Epochs:
    """All of them, one after the other: what runs goes on from one to the next. All methods may be called from any
    thread.

    Fields:
        now: the last that began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._runs: dict[int, RunningInvocation] = {}
        self.now: Epoch | None = None

    def begin(self, epoch: Epoch) -> dict[int, RunningInvocation]:
        """What runs, by slot; who had asked for it has ended."""
        with self._changed:
            former, self.now = self.now, epoch
            left = dict(self._runs)
            self._changed.notify_all()
        if former is not None:
            former.close()
        return left

    def wait(self, name: str) -> None:
        """Until a later life begins."""
        with self._changed:
            self._changed.wait_for(lambda: self.now is not None and self.now.name != name)

    def started(self, run: RunningInvocation) -> bool:
        """Whether it may run: if its life is over, the next one, which was not told of it, has its slot."""
        with self._lock:
            if run.epoch is not self.now:
                return False
            self._runs[run.asked.slot] = run
        return True

    def functions(self) -> set[str]:
        """Of what runs."""
        with self._lock:
            return {run.invocation.function for run in self._runs.values()}

    def ended(self, run: RunningInvocation) -> Epoch | None:
        """The life that has adopted this run, if its own is over."""
        with self._lock:
            del self._runs[run.asked.slot]
            return None if self.now is run.epoch else self.now


class RequestedObjects:
    """For one life of the pool. All methods may be called from any thread."""

    def __init__(self, need: Callable[[int], None]) -> None:
        """
        Args:
            need: asks the pool for all that the request with this number names.
        """
        self._need = need
        self._changed = threading.Condition()
        self._awaited: dict[int, Sequence[Any] | Exception | None] = {}
        self._closed = False

    def ask(self, number: int) -> Sequence[Any]:
        """What stands beside a request, once the pool has sent it.

        Raises:
            What it has sent instead; ConnectionError: it has ended.
        """
        with self._changed:
            self._awaited[number] = None
        try:
            self._need(number)
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._awaited[number] is not None)
        finally:
            with self._changed:
                came = self._awaited.pop(number)
        if isinstance(came, Exception):
            raise came
        if came is None:
            raise ConnectionError("the pool ended before it had sent them")
        return came

    def bring(self, number: int, objects: Sequence[Any] | Exception) -> None:
        """What was asked for; what nobody waits for any more is nothing to it."""
        with self._changed:
            if number in self._awaited:
                self._awaited[number] = objects
                self._changed.notify_all()

    def close(self) -> None:
        """The pool has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


WRITTEN_AT_ONCE = 4
"""Outputs that were written back and not collected yet; who writes more waits."""


class DeferredResults:
    """For one life of the pool. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._last = 0
        self._packed: dict[int, Sequence[Any]] = {}
        self._written: set[int] = set()
        self._closed = False

    def pack(self, arrays: Sequence[Any]) -> int:
        """A new parcel's number."""
        with self._changed:
            return self._pack(arrays)

    def pack_written(self, array: Any) -> int | None:
        """The same for an output that is written back; waits for room. None: the pool has ended, so that nobody can
        name it any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._written) < WRITTEN_AT_ONCE)
            if self._closed:
                return None
            number = self._pack([array])
            self._written.add(number)
            return number

    def collect(self, number: int) -> Sequence[Any]:
        """What is in a parcel, which is here no more.

        Raises:
            KeyError: there is no such parcel, or there was.
        """
        with self._changed:
            arrays = self._packed.pop(number)
            if number in self._written:
                self._written.remove(number)
                self._changed.notify_all()
            return arrays

    def close(self) -> None:
        """The pool has ended."""
        with self._changed:
            self._closed = True
            self._packed.clear()
            self._changed.notify_all()

    def _pack(self, arrays: Sequence[Any]) -> int:
        self._last += 1
        self._packed[self._last] = arrays
        return self._last
