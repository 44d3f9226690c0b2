"""The transport of executors: calls of the core go out over the pool's sockets, and the replies come back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kaas.errors import InputFailed, KaasError
from kaas.pool.executors.executor_connection import ExecutorConnection
from kaas.pool.executors.payloads import OrderPayload, Payload, Survived
from kaas.pool.executors.residents import Placed, Residents
from kaas.pool.executors.transport import CacheOrder, Survivor, WorkerCall, WorkerLost, WorkerReply
from kaas.pool.functions import RegisteredFunction
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.events import StartWorker
from kaas.wire import messages, specs
from kaas.wire.connections.router import Peer, Router
from kaas.wire.error_codec import decode_error, encode_error
from kaas.wire.messages import Address, Block, ExecutorReply, Framed, Named
from kaas.wire.outputs import InlineOutput
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption


class ExecutorHosts(Protocol):
    """What starts executors, notices their end, and carries values that do not go over the pool's sockets.

    Of one event loop.
    """

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        """Start a process whose executor connects to this address, with its worker's number; raise why it cannot."""
        ...

    async def survivors(self, address: Address) -> Sequence[Adoption]:
        """Return the executors that an earlier process of the pool has left, one for each device; they connect too."""
        ...

    def provide(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Any]] | None:
        """Have an executor get the objects of the call with this number; None among refs stands for one that it has.

        Return None if they are on their way, else the values of each, Blocks or buffers, which are to go over the
        sockets.

        Raises:
            KaasError: the objects cannot be had.
        """
        ...

    async def collect(self, worker: int, deferred: int, count: int) -> Sequence[Any]:
        """Return the outputs in a deferred result, complete, as the caller of the request gets them.

        Raises:
            WorkerLost, KaasError
        """
        ...

    async def ended(self, worker: int) -> str:
        """Wait until a worker's process ends; return why it did."""
        ...

    def kill(self, worker: int) -> None:
        """End a worker's process now; nothing happens if it is gone or never came up."""
        ...


RESCUE_LIMIT_S = 10.0
"""How long a worker that must go may write back the outputs that it keeps; others then run their tasks again."""
GREETING_LIMIT_S = 5.0
"""How long an executor that was adopted may take to say Hello, before it is ended."""


@dataclass(frozen=True, slots=True)
class _Stranger:
    """A peer that said PeerHello while survivors were looked for, and its messages since."""

    peer: Peer
    said: list[tuple[messages.FromPeer, Sequence[Any]]] = field(default_factory=list)


class Executors:
    """The `Transport` of executors. Belongs to the event loop of the pool's sockets."""

    def __init__(self, router: Router, hosts: ExecutorHosts, residents: Residents) -> None:
        self._router = router
        self._hosts = hosts
        self._residents = residents
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._connections: dict[int, ExecutorConnection] = {}
        self._by_peer: dict[Peer, ExecutorConnection] = {}
        self._strangers: dict[str, _Stranger] | None = None
        self._returns: set[asyncio.Task[None]] = set()

    # --- workers

    async def start(self, start: StartWorker) -> WorkerInfo:
        connection = self._expect(start)
        info = await self._hosts.start(start, self._router.address)
        await connection.greeted.wait()
        self._residents.worker_came(start.worker)
        return info

    def _expect(self, start: StartWorker, met: frozenset[str] = frozenset()) -> ExecutorConnection:
        connection = self._connections[start.worker] = ExecutorConnection(self._router, start, met)
        return connection

    async def survivors(self) -> list[Survivor]:
        """Return the executors that an earlier process of the pool has left, ready for this one; others are ended."""
        strangers = self._strangers = {}
        adoptions = await self._hosts.survivors(self._router.address)
        self._strangers = None
        for adoption in adoptions:
            connection = self._expect(adoption.start, adoption.functions)
            stranger = strangers.get(str(connection.worker))
            if stranger is not None:
                self._attach(connection, stranger.peer)
                for message, frames in stranger.said:
                    self.receive(stranger.peer, message, frames)
        came = await asyncio.gather(*map(self._came, adoptions))
        return [_survivor(adoption) for adoption, there in zip(adoptions, came, strict=True) if there]

    async def _came(self, adoption: Adoption) -> bool:
        worker = adoption.start.worker
        try:
            async with asyncio.timeout(GREETING_LIMIT_S):
                await self._connections[worker].greeted.wait()
        except TimeoutError:
            self.kill(worker)
            return False
        self._residents.worker_came(worker)
        return True

    async def ended(self, worker: int) -> str:
        return await self._hosts.ended(worker)

    async def stop(self, worker: int) -> str:
        try:
            async with asyncio.timeout(RESCUE_LIMIT_S):
                await self._residents.rescue(worker, self._rescue)
        except (TimeoutError, WorkerLost, KaasError) as error:
            return f"outputs that it kept did not come back: {error or type(error).__name__}"
        return ""

    async def _rescue(self, worker: int, keys: Sequence[bytes]) -> None:
        """Adopt one executor.

        Raises:
            WorkerLost, KaasError
        """
        reply = await self.write_back(worker, keys)
        if reply.error is not None:
            raise reply.error

    def kill(self, worker: int) -> None:
        connection = self._connections.pop(worker, None)
        if connection is not None:
            if connection.peer is not None:
                del self._by_peer[connection.peer]
                self._router.forget(connection.peer)
            connection.end("it was ended")
        self._residents.worker_left(worker)
        self._hosts.kill(worker)

    # --- what is asked of them

    def run(
        self, worker: int, slot: int, call: WorkerCall
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]:
        """Send a run to its executor, in this very call."""
        connection, payload = self._connections.get(worker), call.payload
        if connection is None or isinstance(payload, Survived):
            return self._left(worker, slot)
        function: RegisteredFunction = payload.function
        attached: Sequence[messages.ExecutorAttachment] = ()
        frames, files = payload.frames, list[int]()
        if payload.refs:
            try:
                attached, attachments = connection.attach(payload.refs, frames)
            except OSError as error:
                return _told(unreadable(call.label, error))
            frames, files = attachments.frames, attachments.files
        connection.introduce(function)
        number = next(self._numbers)
        deferred = not (function.inline or payload.direct)
        header = messages.RunInvocation(
            number, slot, tuple(payload.keep.values()) if payload.keep else (), deferred, attached
        )
        if deferred:
            return self._collected(
                connection, payload, connection.ask(number, header, frames, payload.refs, whole, files)
            )
        finish = direct if payload.direct else partial(inline, function)
        return connection.ask(number, header, frames, payload.refs, finish, files)

    async def _left(self, worker: int, slot: int) -> WorkerReply:
        return WorkerReply(record=await self._connection(worker).orphan(slot))

    async def _collected(
        self,
        connection: ExecutorConnection,
        payload: Payload,
        ended: ImmediateFuture[tuple[ExecutorReply, Sequence[Any]]],
    ) -> WorkerReply:
        """Return a reply with the outputs of a deferred result, and where the others are."""
        done, frames = await ended
        if done.failed:
            return failed(done, frames)
        keep, positions = payload.keep, range(len(payload.function.outputs))
        for key in keep.values():
            self._residents.placed(key, connection.worker)
        stored: Iterator[Any] = iter(())
        if done.deferred is not None:
            try:
                stored = iter(await self._hosts.collect(connection.worker, done.deferred, len(positions) - len(keep)))
            except KaasError as error:
                return WorkerReply(error=error, record=done.record, lost=done.lost)
        values = tuple([Placed(keep[each], connection.device) if each in keep else next(stored) for each in positions])
        return WorkerReply(values, None, done.record, done.lost)

    async def cache_command(self, worker: int, order: CacheOrder) -> WorkerReply:
        orders: OrderPayload = order.payload
        connection = self._connection(worker)
        for function in orders.functions:
            connection.introduce(function)
        attached = [Named(ref.binary()) for ref in orders.refs]
        return await self._ordered(
            worker, messages.CacheCommand(next(self._numbers), attached), [orders.message], orders.refs
        )

    async def prefetch(self, worker: int, named: Mapping[bytes, WorkerCall]) -> WorkerReply:
        positions: dict[Any, int] = {}
        loads = []
        for call, keys in _by_call(named):
            payload: Payload = call.payload
            places = payload.function.places(specs.decode_invocation(payload.frames[0]), payload.refs)
            for key in keys:
                ref, entry = places[key]
                loads.append(specs.KeyedObject(key, positions.setdefault(ref, len(positions)), entry))
        return await self._follow(worker, specs.CacheDecisionSpec(loads, []), list(positions))

    async def evict(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        return await self._follow(worker, specs.CacheDecisionSpec([], list(keys)))

    async def _follow(self, worker: int, decided: specs.CacheDecisionSpec, refs: Sequence[Any] = ()) -> WorkerReply:
        header = messages.CacheDecision(next(self._numbers), [Named(ref.binary()) for ref in refs])
        return await self._ordered(worker, header, [specs.encode(decided)], refs)

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        reply = await self._ordered(worker, messages.WriteBackOutput(next(self._numbers), keys))
        if reply.error is None:
            await self._residents.come(keys)
        return reply

    async def discard(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        return await self._ordered(worker, messages.Discard(next(self._numbers), keys))

    async def _ordered(
        self,
        worker: int,
        header: messages.CacheCommand | messages.CacheDecision | messages.WriteBackOutput | messages.Discard,
        frames: Sequence[Any] = (),
        refs: Sequence[Any] = (),
    ) -> WorkerReply:
        """Return an executor's reply to a command without outputs."""
        return await self._connection(worker).ask(header.number, header, frames, refs, plain)

    def _connection(self, worker: int) -> ExecutorConnection:
        connection = self._connections.get(worker)
        if connection is None:
            raise WorkerLost("it ended before it was reached")
        return connection

    # --- what they say

    def greet(self, peer: Peer, hello: messages.PeerHello) -> None:
        """Take in that an executor has connected, or connected again."""
        connection = next(
            (connection for connection in self._connections.values() if str(connection.worker) == hello.name), None
        )
        if connection is not None:
            self._attach(connection, peer)
        elif self._strangers is not None:
            self._strangers[hello.name] = _Stranger(peer)

    def _attach(self, connection: ExecutorConnection, peer: Peer) -> None:
        if connection.peer is not None:
            del self._by_peer[connection.peer]
        self._by_peer[peer] = connection
        connection.greet(peer)

    def receive(self, peer: Peer, message: messages.FromPeer, frames: Sequence[Any]) -> None:
        """Take a message of an executor; messages of an earlier connection are ignored."""
        connection = self._by_peer.get(peer)
        if connection is None:
            for stranger in (self._strangers or {}).values():
                if stranger.peer == peer:
                    stranger.said.append((message, frames))
            return
        match message:
            case ExecutorReply():
                connection.answered(message, frames)
            case messages.RequestObjects(number=number):
                self._provide(connection, number)
            case messages.WrittenBack(key=key, deferred=deferred):
                task = self._loop.create_task(self._return(connection.worker, key, deferred))
                self._returns.add(task)
                task.add_done_callback(self._returns.discard)
            case messages.Orphaned(slot=slot, record=record):
                connection.orphaned(slot, record)

    def _provide(self, connection: ExecutorConnection, number: int) -> None:
        refs = connection.refs(number)
        if refs is None:
            return
        attachments = connection.attachments()
        try:
            wanted = [None if isinstance(ref, Framed | Block) else ref for ref in refs]
            values = self._hosts.provide(connection.worker, number, wanted)
        except KaasError as error:
            connection.send(messages.ProvideObjects(number, error=True), [encode_error(error)])
            return
        if values is not None:
            objects = [[attachments.add(part) for part in parts] for parts in values]
            connection.send(messages.ProvideObjects(number, objects), attachments.frames, attachments.files)

    async def _return(self, worker: int, key: bytes, deferred: int) -> None:
        """Take an output that was written back."""
        try:
            (value,) = await self._hosts.collect(worker, deferred, 1)
        except (WorkerLost, KaasError):
            self.kill(worker)  # whatever went wrong, the output is lost with it, and can be made anew
        else:
            self._residents.written(key, value)


def _survivor(adoption: Adoption) -> Survivor:
    """Return an adopted executor as the core sees it."""
    running = {
        slot: WorkerCall(orphan.label, orphan.client, None, 0, payload=Survived(), function=orphan.function)
        for slot, orphan in adoption.running.items()
    }
    return Survivor(adoption.start, adoption.info, running, adoption.cached)


async def _told(reply: WorkerReply) -> WorkerReply:
    return reply


def _by_call(named: Mapping[bytes, WorkerCall]) -> Iterator[tuple[WorkerCall, list[bytes]]]:
    calls: dict[int, tuple[WorkerCall, list[bytes]]] = {}
    for key, call in named.items():
        calls.setdefault(id(call), (call, []))[1].append(key)
    yield from calls.values()


def whole(done: ExecutorReply, frames: Sequence[Any]) -> tuple[ExecutorReply, Sequence[Any]]:
    """Return a reply as it is."""
    return done, frames


def plain(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a command without outputs."""
    return failed(done, frames) if done.failed else WorkerReply(None, None, done.record, done.lost)


def direct(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a run: the frames as they came."""
    return failed(done, frames) if done.failed else WorkerReply(frames, None, done.record, done.lost)


def inline(function: RegisteredFunction, done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a run: outputs that become arrays where they arrive."""
    if done.failed:
        return failed(done, frames)
    layouts = zip(frames, function.outputs, strict=True)
    values = tuple([InlineOutput(bytes(data), dtype, shape) for data, (dtype, shape) in layouts])
    return WorkerReply(values, None, done.record, done.lost)


def failed(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a failed run. The cause stays sealed: none of its code runs here."""
    return WorkerReply(None, decode_error(frames[0], open_cause=False), done.record, done.lost)


def unreadable(label: str, error: OSError) -> WorkerReply:
    """Return the reply of a run that was not sent, since a client's memory is gone."""
    message = f"an input of {label!r} cannot be read any more: {error}"
    return WorkerReply(error=InputFailed(message, task=label, reason=str(error)))
