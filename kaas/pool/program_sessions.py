"""The programs of a pool: makes requests of their messages, and sends the replies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kaas.errors import InvalidRequest, KaasError, OutOfHostMemory
from kaas.ktask.request import check_deadline
from kaas.pool.core.core import Pool
from kaas.pool.core.requests import Request
from kaas.pool.executors.payloads import Payload
from kaas.pool.functions import Registry
from kaas.pool.immediate_future import ImmediateFuture
from kaas.wire import specs
from kaas.wire.connections.router import Peer, Router
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import (
    AnnounceFunction,
    Attachment,
    Block,
    CallFailure,
    CallResult,
    CancelCall,
    Drop,
    Framed,
    FromPeer,
    Named,
    PeerHello,
    PoolQuery,
    Release,
    Submit,
)
from kaas.wire.status import status_codec
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status

_log = logging.getLogger(__name__)

YES, NO = b"1", b"0"


class ObjectDirectory(Protocol):
    """The objects that requests name: Ray's, or those that a pool without Ray holds itself."""

    def ref(self, session: str, named: Named) -> Any:
        """Return an object's reference for hosts of workers; raise KaasError if the session does not hold it."""
        ...

    def coming(self, session: str, named: Sequence[Named]) -> Awaitable[None] | None:
        """Return None if the session holds these or never will, else a future that ends when they come, or fails."""
        ...

    def ready(self, refs: Sequence[Any]) -> asyncio.Future[Any] | None:
        """Return None if all objects exist, else a future that ends when they do."""
        ...

    async def keep(self, session: str, attached: Sequence[Attachment], frames: Sequence[Any]) -> None:
        """Hold the values of a PoolQuery "hold" for a session; raise KaasError if this fails."""
        ...

    def drop(self, session: str, keys: Iterable[bytes]) -> None:
        """Stop to hold objects for a session."""
        ...

    def session_ended(self, session: str) -> None:
        """Stop to hold all objects of a session."""
        ...


class ServicePool(Protocol):
    """The part of `service.Service` that this module calls."""

    registry: Registry
    pool: Pool
    served: bool

    def status(self) -> Status: ...
    def stats(self, reset: bool) -> Stats: ...
    async def trace(self, seconds: float) -> bytes: ...
    async def cache_command(self, message: bytes, refs: Sequence[Any]) -> None: ...
    async def stop(self) -> None: ...


@dataclass(slots=True, eq=False)
class _ProgramSession:
    """A program.

    Fields:
        peer: the newest connection. incarnation: of that connection. former: incarnations of earlier connections.
        open: pending calls, by the program's own numbers.
    """

    name: str
    peer: Peer
    incarnation: str
    former: set[str] = field(default_factory=set)
    open: dict[int, ImmediateFuture[Any] | asyncio.Future[Any]] = field(default_factory=dict)


class ProgramSessions:
    """The sessions of a pool. Use an object of this class from one event loop only."""

    def __init__(self, service: ServicePool, router: Router, objects: ObjectDirectory) -> None:
        self._service = service
        self._router = router
        self._send = router.send
        self._objects = objects
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, _ProgramSession] = {}
        self._by_peer: dict[Peer, _ProgramSession] = {}
        self._closing: asyncio.Event | None = None  # set at the end of each call, while `answered` waits

    def greet(self, peer: Peer, hello: PeerHello) -> None:
        """Handle a session's first connection, or a new one. It gets all replies of the session from now on.

        Raises:
            InvalidRequest: the connection is older than the session's newest.
        """
        session = self._sessions.get(hello.name)
        if session is None:
            session = self._sessions[hello.name] = _ProgramSession(hello.name, peer, hello.incarnation)
        elif session.peer is not peer:
            if hello.incarnation in session.former:
                raise InvalidRequest("this program has a newer connection to the pool")
            self._forget(session.peer)
            session.former.add(session.incarnation)
            session.peer, session.incarnation = peer, hello.incarnation
        self._by_peer[peer] = session

    def _forget(self, peer: Peer) -> None:
        """Ignore further messages of an earlier connection."""
        del self._by_peer[peer]
        self._router.forget(peer)

    def session_ended(self, name: str) -> None:
        """Cancel the calls of a program that has ended."""
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._forget(session.peer)
        for wait in list(session.open.values()):
            wait.cancel()

    async def all_replied(self) -> None:
        """Wait until all calls have their replies."""
        while any(session.open for session in self._sessions.values()):
            self._closing = asyncio.Event()
            await self._closing.wait()

    def _closed(self, session: _ProgramSession, number: int) -> None:
        del session.open[number]
        if self._closing is not None:
            self._closing.set()

    def receive(self, peer: Peer, message: FromPeer, frames: Sequence[Any]) -> None:
        """Carry out a message of a program; each error becomes a reply. frames: those after the header."""
        session = self._by_peer.get(peer)
        if session is None:
            return  # an earlier connection of a session that has a newer one
        try:
            self._take(session, message, frames)
        except Exception as error:  # noqa: BLE001 - the sender of a malformed message gets a reply too
            if isinstance(message, Submit | PoolQuery):
                self._fail(session, message.number, error)

    def _take(self, session: _ProgramSession, message: FromPeer, frames: Sequence[Any]) -> None:
        """Carry out a message.

        Raises:
            KaasError: the message is refused. Exception: the message is malformed.
        """
        match message:
            case Submit():
                if message.number not in session.open:  # else the message was repeated
                    self._submit(session, message, _came(frames))
            case CancelCall(number):
                if number in session.open:
                    session.open[number].cancel()
            case PoolQuery():
                if message.number not in session.open:
                    self._query(session, message, _came(frames))
            case AnnounceFunction():
                self._service.registry.register(bytes(frames[0]), bytes(frames[1]), session.name)
            case Drop(keys):
                self._objects.drop(session.name, keys)

    def _fail(self, session: _ProgramSession, number: int, error: BaseException, held: bool = False) -> None:
        if not isinstance(error, KaasError):
            error = InvalidRequest(f"the pool cannot make sense of a message: {type(error).__name__}: {error}")
        self._send(session.peer, CallFailure(number, held), [encode_error(error)])

    def _refs(self, session: _ProgramSession, attached: Sequence[Attachment], frames: Sequence[Any]) -> list[Any]:
        """Return the objects that are attached to a message.

        Raises:
            KaasError: an attachment is invalid, or the session does not hold an object.
        """
        _check(session.peer, attached, frames)
        return [self._objects.ref(session.name, item) if isinstance(item, Named) else item for item in attached]

    # --- invocations

    def _submit(self, session: _ProgramSession, message: Submit, frames: Sequence[Any]) -> None:
        named = [item for item in message.attached if type(item) is Named]
        coming = self._objects.coming(session.name, named) if named else None
        if coming is None:
            self._begin(session, message, frames)
            return
        task = self._loop.create_task(self._begin_later(coming, session, message, frames))
        session.open[message.number] = task
        task.add_done_callback(partial(self._began, session, message))

    async def _begin_later(
        self, coming: Awaitable[None], session: _ProgramSession, message: Submit, frames: Sequence[Any]
    ) -> None:
        await coming
        self._begin(session, message, frames)

    def _began(self, session: _ProgramSession, message: Submit, task: asyncio.Future[None]) -> None:
        """Handle the end of a wait for a request's objects."""
        if task.cancelled():
            self._closed(session, message.number)
            if _blocks(message.attached):
                self._released(session, message.number)
        elif (error := task.exception()) is not None:
            self._closed(session, message.number)
            self._fail(session, message.number, error)

    def _begin(self, session: _ProgramSession, message: Submit, frames: Sequence[Any]) -> None:
        """Begin a request.

        Raises:
            KaasError: the request is refused. Exception: the message is malformed.
        """
        invocation = specs.decode_invocation(frames[0])
        function = self._service.registry.get(invocation.function)
        if function is None:
            raise KaasError(f"the pool does not know function {invocation.function}")
        if invocation.keep:
            raise InvalidRequest("only kaas.invoke can keep outputs on the device")
        if invocation.deadline_s is not None:
            check_deadline(invocation.deadline_s)
        refs: Sequence[Any] = ()
        ready = None
        if message.attached:
            refs = self._refs(session, message.attached, frames)
            if not invocation.ready:
                ready = self._objects.ready([ref for ref in refs if not isinstance(ref, Framed | Block)])
        payload = Payload(function, frames, refs, direct=True)
        request = self._service.pool.begin(function.call(invocation, payload, refs, session.name), ready)
        session.open[message.number] = request.answer
        blocks = _blocks(message.attached)
        request.answer.add_done_callback(partial(self._answered, session, message.number, request, blocks))

    def _answered(
        self, session: _ProgramSession, number: int, request: Request, blocks: bool, answer: ImmediateFuture[Any]
    ) -> None:
        self._closed(session, number)
        if answer.cancelled():
            self._service.pool.cancelled(request)
            if blocks:
                self._release(session, number, request)
            return
        error = answer.exception()
        if error is None:
            self._send(session.peer, CallResult(number, request.best_effort), answer.result())
            return
        held = blocks and self._service.pool.unfinished(request)
        self._fail(session, number, error, held)
        if held:
            self._release(session, number, request)

    def _release(self, session: _ProgramSession, number: int, request: Request) -> None:
        """Tell the program when a request's Blocks are no longer read."""
        if self._service.pool.unfinished(request):
            request.on_end = partial(self._released, session, number)
        else:
            self._released(session, number)

    def _released(self, session: _ProgramSession, number: int) -> None:
        self._send(session.peer, Release(number))

    # --- queries

    def _query(self, session: _ProgramSession, message: PoolQuery, frames: Sequence[Any]) -> None:
        task = session.open[message.number] = self._loop.create_task(self._carry_out(session, message, frames))
        task.add_done_callback(partial(self._queried, session, message.number))

    def _queried(self, session: _ProgramSession, number: int, task: asyncio.Future[Sequence[bytes]]) -> None:
        self._closed(session, number)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._fail(session, number, error)
        else:
            self._send(session.peer, CallResult(number), task.result())

    async def _carry_out(self, session: _ProgramSession, message: PoolQuery, frames: Sequence[Any]) -> Sequence[bytes]:
        """Return the frames of the reply to a query.

        Raises:
            KaasError: the query is refused or fails. Exception: the message is malformed.
        """
        service = self._service
        match message.what:
            case "status":
                return [status_codec.encode(service.status())]
            case "stats":
                return [status_codec.encode(service.stats(bytes(frames[0]) == YES))]
            case "trace":
                return [await service.trace(float(bytes(frames[0])))]
            case "pardon":
                return [YES if service.pool.quarantine.pardon(bytes(frames[0]).decode()) else NO]
            case "share":
                service.pool.shares.set(specs.decode_share(frames[0]), session.name)
            case "upkeep":
                await service.cache_command(bytes(frames[0]), self._refs(session, message.attached, frames))
            case "hold":
                _check(session.peer, message.attached, frames)
                await self._objects.keep(session.name, message.attached, frames)
            case "stop":
                if service.served:
                    _log.info("a program leaves the pool, which its server keeps", extra={"program": session.name})
                    return [NO]
                await service.stop()
            case _:
                raise InvalidRequest(f"a pool does not know the query {message.what!r}")
        return []


def _came(frames: Sequence[Any]) -> Sequence[Any]:
    """Return the frames of a message; raise OutOfHostMemory if the pool had no memory for them."""
    if frames and type(frames[0]) is OutOfHostMemory:
        raise frames[0]
    return frames


def _blocks(attached: Sequence[Attachment]) -> bool:
    return any(type(item) is Block for item in attached)


def _check(peer: Peer, attached: Sequence[Attachment], frames: Sequence[Any]) -> None:
    """Check the attachments of a message.

    Raises:
        InvalidRequest: an attachment is missing, or its memory does not belong to the sender.
    """
    for item in attached:
        if isinstance(item, Framed) and not 0 < item.frame <= len(frames):
            raise InvalidRequest(f"a message of {len(frames)} frames has no frame {item.frame}")
        if isinstance(item, Block) and not (peer.shares and item.pid == peer.pid):
            raise InvalidRequest("a program may attach only its own memory, and only to a pool that can read it")
