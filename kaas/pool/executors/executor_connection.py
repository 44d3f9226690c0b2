"""The pool's end of one executor's connection: calls without a reply, and the functions that the executor knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from kaas.errors import OutOfHostMemory
from kaas.pool.executors.transport import WorkerLost
from kaas.pool.functions import RegisteredFunction
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.decisions import StartWorker
from kaas.wire.connections.router import Peer, Router
from kaas.wire.connections.shared_memory import Inbox, open_file
from kaas.wire.connections.stream import FILES_AT_MOST, close_all
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import (
    Block,
    ExecutorAttachment,
    ExecutorReply,
    Filed,
    ForgetFunction,
    Framed,
    Named,
    RegisterFunction,
    ToPeer,
)
from kaas.wire.specs import RunRecord

REGISTERED_AT_MOST, REGISTERED_BYTES = 4096, 1 << 30
"""Limits of the functions that an executor knows, and of the bytes of their kTasks. Beyond them the executor forgets
the oldest functions; they are introduced again when they are needed."""

LONGEST_S = 1e9
"""No measurement of an executor is as long."""

T = TypeVar("T")
Finish = Callable[[ExecutorReply, Sequence[Any]], T]
"""Makes the result of a call of an ExecutorReply and its frames."""


class ExecutorConnection:
    """The connection of one executor. Nothing can be sent before its PeerHello; `greeted` is set then."""

    __slots__ = (
        "_loop",
        "_orphans",
        "_pending",
        "_registered",
        "_registered_bytes",
        "_router",
        "_walls",
        "device",
        "greeted",
        "peer",
        "worker",
    )

    def __init__(
        self, router: Router, start: StartWorker, known: frozenset[str] = frozenset(), *, walls: bool = False
    ) -> None:
        """Expect an executor.

        known: keys of the functions that it knows. walls: it gets no memory file of another process, since that file
        may hold values of other clients, now or later.
        """
        self._walls = walls
        self.worker = start.worker
        self.device = start.device
        self.greeted = asyncio.Event()
        self.peer: Peer | None = None
        self._loop = asyncio.get_running_loop()
        self._router = router
        self._registered = dict.fromkeys(known, 0)
        self._registered_bytes = 0
        self._pending: dict[int, tuple[ImmediateFuture[Any], Sequence[Any], Finish[Any]]] = {}
        self._orphans: dict[int, asyncio.Future[RunRecord | None]] = {}

    def greet(self, peer: Peer) -> None:
        """Handle the executor's connection. A reconnection ends all calls, since their messages may be lost."""
        if self.peer is not None:
            self.end("its connection to the pool broke")
            self._registered.clear()
            self._registered_bytes = 0
        self.peer = peer
        self.greeted.set()

    def end(self, reason: str) -> None:
        """End all calls with WorkerLost, in a later turn of the loop: the pool handles the worker's end first."""
        for answer, _, _ in self._pending.values():
            self._loop.call_soon(_lose, answer, reason)
        for orphan in self._orphans.values():
            if not orphan.done():
                orphan.set_exception(WorkerLost(reason))
        self._pending.clear()

    # --- sending

    def introduce(self, function: RegisteredFunction) -> None:
        """Send a function to the executor, unless it knows it, before a message names it. Messages keep their order."""
        if function.key not in self._registered:
            self._register(function)

    def _register(self, function: RegisteredFunction) -> None:
        nbytes = len(function.introduction[1])
        known = self._registered
        while known and (len(known) >= REGISTERED_AT_MOST or self._registered_bytes + nbytes > REGISTERED_BYTES):
            first = next(iter(known))
            self._registered_bytes -= known.pop(first)
            self.send(ForgetFunction(first))
        known[function.key] = nbytes
        self._registered_bytes += nbytes
        self.send(RegisterFunction(), function.introduction)

    def ask(
        self,
        number: int,
        header: ToPeer,
        frames: Sequence[Any],
        refs: Sequence[Any],
        finish: Finish[T],
        files: Sequence[int] = (),
    ) -> ImmediateFuture[T]:
        """Send a message, and return the future of its reply.

        `refs` are the attached objects; they stay alive until the reply. `files` come from `OutgoingAttachments`.
        """
        self.send(header, frames, files)
        answer: ImmediateFuture[T] = ImmediateFuture()
        self._pending[number] = answer, refs, finish
        return answer

    def send(self, header: ToPeer, frames: Sequence[Any] = (), files: Sequence[int] = ()) -> None:
        """Send a message without a reply."""
        assert self.peer is not None, "it has been greeted"
        self._router.send(self.peer, header, frames, files)

    def attach(
        self, refs: Sequence[Any], frames: Sequence[Any]
    ) -> tuple[list[ExecutorAttachment], OutgoingAttachments]:
        """Return attachments that this executor can read, and the frames and files of the message.

        Raises:
            OSError: a program's memory is gone. OutOfHostMemory: this process lacks descriptors or memory.
        """
        attachments = self.attachments(frames)
        attached: list[ExecutorAttachment] = []
        for ref in refs:
            match ref:
                case Framed():
                    attached.append(ref)
                case Block():
                    attached.append(attachments.add(ref))
                case _:
                    attached.append(Named(ref.binary()))
        return attached, attachments

    def attachments(self, frames: Sequence[Any] = ()) -> OutgoingAttachments:
        """Return the attachments of a message to this executor; they begin with these frames."""
        assert self.peer is not None, "it has been greeted"
        return OutgoingAttachments(self._router.inbox, frames, by_file=self.peer.channel.local and not self._walls)

    # --- receiving

    def replied(self, done: ExecutorReply, frames: Sequence[Any]) -> None:
        """End a call with its reply.

        Raises:
            ValueError: its measurements are none. Other errors: its frames are not the outputs.
        """
        if self._walls and done.record is not None:
            check_measured(done.record)
        if frames and type(frames[0]) is OutOfHostMemory:  # this process has no memory for the outputs
            done, frames = msgspec.structs.replace(done, failed=True), [encode_error(frames[0])]
        call = self._pending.get(done.number)
        if call is not None:
            answer, _, finish = call
            result = None if answer.done() else finish(done, frames)
            del self._pending[done.number]  # not before: the call ends with the worker if its frames are no outputs
            if not answer.done():
                answer.set_result(result)

    def refs(self, number: int) -> Sequence[Any] | None:
        """Return the objects attached to a pending call, or None if the call has ended."""
        return self._pending[number][1] if number in self._pending else None

    def orphan(self, slot: int) -> asyncio.Future[RunRecord | None]:
        """Return a future of the end of the run that an earlier process of the pool began in a slot."""
        if slot not in self._orphans:
            self._orphans[slot] = self._loop.create_future()
        return self._orphans[slot]

    def orphaned(self, slot: int, record: RunRecord | None) -> None:
        """End such a run."""
        orphan = self.orphan(slot)
        if not orphan.done():
            orphan.set_result(record)


class OutgoingAttachments:
    """The attachments of one message: frames, and files with memory that an executor on this machine maps.

    An executor may not open files of another process itself: a process that runs clients' kernels gets only the memory
    that its requests name (docs/serve.md).
    """

    __slots__ = ("_by_file", "_inbox", "_places", "files", "frames")

    def __init__(self, inbox: Inbox, frames: Sequence[Any], *, by_file: bool) -> None:
        self._inbox = inbox
        self._by_file = by_file
        self._places: dict[tuple[int, int], int] = {}
        self.frames = list(frames)
        self.files: list[int] = []

    def add(self, value: Any) -> Framed | Filed:
        """Attach a Block, or a buffer.

        Raises:
            OSError: a program's memory is gone. Nothing goes out then.
        """
        if isinstance(value, Block):
            try:
                if self._by_file and (place := self._place(value)) is not None:
                    return Filed(place, value.offset_bytes, value.nbytes)
                value = self._inbox.view(value)
            except OSError:
                close_all(self.files)
                raise
        self.frames.append(value)
        return Framed(len(self.frames))  # the header is frame 0

    def _place(self, block: Block) -> int | None:
        """Return the position of a Block's file among the message's files, or None if there are too many files."""
        place = self._places.get((block.pid, block.fd))
        if place is None and len(self.files) < FILES_AT_MOST:
            self.files.append(open_file(block))
            place = self._places[block.pid, block.fd] = len(self.files) - 1
        return place


def check_measured(record: RunRecord) -> None:
    """Check that the times of a record are times: sums and orders of the pool are made of them.

    Raises:
        ValueError: they are not.
    """
    times = (record.device_s, record.occupied_s or 0.0, record.load_s, *record.stages.values())
    if not all(0.0 <= each < LONGEST_S for each in times):
        raise ValueError(f"no measurements: {times}")


def _lose(answer: ImmediateFuture[Any], reason: str) -> None:
    if not answer.done():
        answer.set_exception(WorkerLost(reason))
