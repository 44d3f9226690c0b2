"""The pool's end of one executor's connection: calls without a reply, and the functions that the executor knows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from kaas.errors import OutOfHostMemory
from kaas.pool.executors.transport import WorkerLost
from kaas.pool.functions import RegisteredFunction
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.decisions import StartWorker
from kaas.wire.connections.router import Peer, Router
from kaas.wire.connections.shared_memory import Inbox, copied, open_file
from kaas.wire.connections.stream import FILES_AT_MOST, close_all
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import (
    Block,
    DeviceFiled,
    ExecutorAttachment,
    ExecutorReply,
    Filed,
    ForgetFunction,
    Framed,
    FromPeer,
    Named,
    RegisterFunction,
    RequestObjects,
    ToPeer,
)
from kaas.wire.specs import RunRecord

REGISTERED_AT_MOST, REGISTERED_BYTES = 4096, 1 << 30
"""Limits of the functions that an executor knows, and of the bytes of their kTasks. Beyond them the executor forgets
the oldest functions; they are introduced again when they are needed."""

LONGEST_S = 1e9
"""No measurement of an executor is as long."""

REPLY_BYTES = 1 << 20
"""Bytes of a message of an executor with walls, besides the outputs that the pool waits for."""
UNASKED_AT_MOST = 256
"""Messages of an executor with walls, from one reply to the next, that answer nothing which the pool waits for: a load
may ask for the objects of a request that has just failed."""
STRANGE_AT_MOST = 16
"""Further connections that an executor's process may make; the pool lets none of them in."""
STAGES = frozenset({"plan", "fetch", "memory", "copy_in", "kernels", "copy_out", "total", "clock", "busy"})
"""The stages that an executor measures (`RunStats`)."""
TIERS = frozenset({"device", "host", "store"})
MOST = 2**53

T = TypeVar("T")
AllowedKeys = Callable[[], Collection[bytes]]
"""Returns keys of objects."""


def no_keys() -> Collection[bytes]:
    """Return none."""
    return ()


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
        "_unasked",
        "_walls",
        "device",
        "greeted",
        "peer",
        "strange",
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
        self._unasked = 0
        self.strange = 0
        self._pending: dict[int, _Call] = {}
        self._orphans: dict[int, asyncio.Future[RunRecord | None]] = {}

    def greet(self, peer: Peer) -> None:
        """Handle the executor's connection. A reconnection ends all calls, since their messages may be lost."""
        if self.peer is not None:
            self.end("its connection to the pool broke")
            self._registered.clear()
            self._registered_bytes = 0
        self.peer = peer
        self._limit()
        self.greeted.set()

    def end(self, reason: str) -> None:
        """End all calls with WorkerLost, in a later turn of the loop: the pool handles the worker's end first."""
        for call in self._pending.values():
            self._loop.call_soon(_lose, call.answer, reason)
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
        keys: AllowedKeys = no_keys,
        nbytes: int = 0,
    ) -> ImmediateFuture[T]:
        """Send a message, and return the future of its reply.

        `refs` are the attached objects; they stay alive until the reply. `files` come from `OutgoingAttachments`. keys:
        of objects that it may load. nbytes: of its outputs.
        """
        self.send(header, frames, files)
        answer: ImmediateFuture[T] = ImmediateFuture()
        self._pending[number] = _Call(answer, refs, finish, keys, nbytes)
        self._limit()
        return answer

    def _limit(self) -> None:
        """Limit the size of the executor's next message, if it has walls, by what the pool waits for."""
        if self._walls and self.peer is not None:
            most = max([call.nbytes for call in self._pending.values()], default=0)
            self.peer.channel.limit(REPLY_BYTES + most)

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

    def check(self, message: FromPeer) -> None:
        """Check that an executor with walls may send a message.

        Raises:
            ValueError: it may not.
        """
        if not self._walls:
            return
        match message:
            case ExecutorReply(number=number) if number in self._pending:
                self._unasked = 0
                return
            case RequestObjects(number=number) if number in self._pending:
                self._pending[number].asks()
                return
            case ExecutorReply() | RequestObjects():
                self._unasked += 1
        if self._unasked > UNASKED_AT_MOST or not isinstance(message, ExecutorReply | RequestObjects):
            raise ValueError(f"{self._unasked} messages that answer nothing, the last a {type(message).__name__}")

    def replied(self, done: ExecutorReply, frames: Sequence[Any]) -> None:
        """End a call with its reply.

        Raises:
            ValueError: its measurements are none. Other errors: its frames are not the outputs.
        """
        if frames and type(frames[0]) is OutOfHostMemory:  # this process has no memory for the outputs
            done, frames = msgspec.structs.replace(done, failed=True), [encode_error(frames[0])]
        call = self._pending.get(done.number)
        if call is not None:
            if self._walls and done.record is not None:
                check_measured(done.record, call.keys)
            result = None if call.answer.done() else call.finish(done, frames)
            del self._pending[done.number]  # not before: the call ends with the worker if its frames are no outputs
            self._limit()
            if not call.answer.done():
                call.answer.set_result(result)

    def refs(self, number: int) -> Sequence[Any] | None:
        """Return the objects attached to a pending call, or None if the call has ended."""
        return self._pending[number].refs if number in self._pending else None

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


@dataclass(slots=True, eq=False)
class _Call:
    """A call without a reply. asked: how often the executor has asked for its objects."""

    answer: ImmediateFuture[Any]
    refs: Sequence[Any]
    finish: Finish[Any]
    keys: AllowedKeys
    nbytes: int
    asked: int = 0

    def asks(self) -> None:
        """Count that the executor asks for the objects.

        Raises:
            ValueError: it asks more often than it has objects to load.
        """
        self.asked += 1
        if self.asked > len(self.refs):
            raise ValueError(f"it asks {self.asked} times for {len(self.refs)} objects")


@dataclass(frozen=True, slots=True, eq=False)
class HeldPart:
    """A value in device memory that the pool holds by its file, from an offset in it on. whole_bytes: of the memory."""

    file: int
    offset_bytes: int
    nbytes: int
    whole_bytes: int


class OutgoingAttachments:
    """The attachments of one message: frames, and files with memory that an executor on this machine maps.

    An executor may not open files of another process itself: a process that runs clients' kernels gets only the memory
    that its requests name (docs/serve.md).
    """

    __slots__ = ("_by_file", "_inbox", "_places", "files", "frames")

    def __init__(self, inbox: Inbox, frames: Sequence[Any], *, by_file: bool) -> None:
        self._inbox = inbox
        self._by_file = by_file
        self._places: dict[tuple[int, int], int] = {}  # by process and file; 0: this one's held memory
        self.frames = list(frames)
        self.files: list[int] = []

    def add(self, value: Any) -> Framed | Filed | DeviceFiled:
        """Attach a Block, a HeldPart or a buffer.

        Raises:
            OSError: a program's memory is gone. Nothing goes out then.
        """
        try:
            if isinstance(value, HeldPart):
                place = self._place((0, value.file), partial(copied, value.file))
                return DeviceFiled(place, value.offset_bytes, value.nbytes, value.whole_bytes)
            if isinstance(value, Block):
                file = value.pid, value.fd
                if self._by_file and (file in self._places or len(self.files) < FILES_AT_MOST):
                    return Filed(self._place(file, partial(open_file, value)), value.offset_bytes, value.nbytes)
                value = self._inbox.view(value)
        except OSError:
            close_all(self.files)
            raise
        self.frames.append(value)
        return Framed(len(self.frames))  # the header is frame 0

    def _place(self, file: tuple[int, int], opened: Callable[[], int]) -> int:
        """Return the position of a file among the message's files."""
        if file not in self._places:
            self.files.append(opened())
            self._places[file] = len(self.files) - 1
        return self._places[file]


def check_measured(record: RunRecord, keys: AllowedKeys) -> None:
    """Check that a record has what an executor measures: the pool adds it up and keeps it. keys: of what it may load.

    Raises:
        ValueError: it has not.
    """
    times = (record.device_s, record.occupied_s or 0.0, record.load_s, *record.stages.values())
    times += tuple([each.seconds for each in record.kernels]) + tuple([use.seconds for use in record.tiers.values()])
    counts = [*record.cached_bytes, *(each for use in record.tiers.values() for each in use[:-1])]
    counts += [each.launches for each in record.kernels]
    if not all(0.0 <= each < LONGEST_S for each in times) or not all(0 <= each < MOST for each in counts):
        raise ValueError("no measurements")
    if not (record.stages.keys() <= STAGES and record.tiers.keys() <= TIERS):
        raise ValueError("measurements of nothing that an executor measures")
    if record.loaded and not {*record.loaded} <= {*keys()}:
        raise ValueError("objects that it was not told of")


def _lose(answer: ImmediateFuture[Any], reason: str) -> None:
    if not answer.done():
        answer.set_exception(WorkerLost(reason))
