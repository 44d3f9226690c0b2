"""The transport of executors: sends calls of the core over the pool's sockets, and receives the replies."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kaas.errors import InputFailed, KaasError
from kaas.pool.executors.executor_connection import ExecutorConnection
from kaas.pool.executors.hosts import ExecutorHosts
from kaas.pool.executors.payloads import OrderPayload, Payload, Survived
from kaas.pool.executors.residents import Placed, Residents
from kaas.pool.executors.transport import CacheOrder, Compilation, Survivor, WorkerCall, WorkerLost, WorkerReply
from kaas.pool.functions import RegisteredFunction
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.decisions import EvictTo, StartWorker
from kaas.wire import messages, specs
from kaas.wire.connections.router import Peer, Router
from kaas.wire.error_codec import decode_error, encode_error
from kaas.wire.messages import Block, ExecutorReply, Framed, Named
from kaas.wire.outputs import InlineOutput
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption

_log = logging.getLogger(__name__)

RESCUE_LIMIT_S = 10.0
"""Time limit for a worker that stops to write back its kept outputs. After it, the outputs' tasks run again."""
GREETING_LIMIT_S = 5.0
"""Time limit for the Hello of an adopted executor, before the executor is killed."""


@dataclass(frozen=True, slots=True)
class _UnknownPeer:
    """A peer that sent PeerHello during the search for survivors, and its messages since."""

    peer: Peer
    received: list[tuple[messages.FromPeer, Sequence[Any]]] = field(default_factory=list)


class Executors:
    """The `WorkerTransport` of executors (`transport.py`). Use it from the event loop of the pool's sockets only."""

    def __init__(self, router: Router, hosts: ExecutorHosts, residents: Residents, *, walls: bool = False) -> None:
        """walls: as in `ExecutorConnection`."""
        self._router = router
        self._walls = walls
        self._hosts = hosts
        self._residents = residents
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._connections: dict[int, ExecutorConnection] = {}
        self._by_peer: dict[Peer, ExecutorConnection] = {}
        self._unknown_peers: dict[str, _UnknownPeer] | None = None  # not None while `survivors` searches
        self._returns: set[asyncio.Task[None]] = set()

    # --- workers

    async def start(self, start: StartWorker) -> WorkerInfo:
        """Start an executor, and wait until it has connected."""
        connection = self._expect(start)
        info = await self._hosts.start(start, self._router.address)
        await connection.greeted.wait()
        self._residents.worker_came(start.worker)
        return info

    def _expect(self, start: StartWorker, known: frozenset[str] = frozenset()) -> ExecutorConnection:
        connection = ExecutorConnection(self._router, start, known, walls=self._walls)
        self._connections[start.worker] = connection
        return connection

    async def survivors(self) -> list[Survivor]:
        """Return the executors of an earlier process of the pool that have connected to this one; kill the others."""
        unknown_peers = self._unknown_peers = {}
        adoptions = await self._hosts.survivors(self._router.address)
        self._unknown_peers = None
        for adoption in adoptions:
            connection = self._expect(adoption.start, adoption.functions)
            unknown = unknown_peers.get(str(connection.worker))
            if unknown is not None:
                self._attach(connection, unknown.peer)
                for message, frames in unknown.received:
                    self.receive(unknown.peer, message, frames)
        connected = await asyncio.gather(*map(self._connected, adoptions))
        return [_survivor(adoption) for adoption, there in zip(adoptions, connected, strict=True) if there]

    async def _connected(self, adoption: Adoption) -> bool:
        """Return True once an adopted executor has connected; kill it, and return False, if it does not in time."""
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
        """Let a worker write back the outputs that it keeps; return the error in words, or ""."""
        try:
            async with asyncio.timeout(RESCUE_LIMIT_S):
                await self._residents.rescue(worker, self._rescue)
        except (TimeoutError, WorkerLost, KaasError) as error:
            return f"outputs that it kept were not written back: {error or type(error).__name__}"
        return ""

    async def _rescue(self, worker: int, keys: Sequence[bytes]) -> None:
        """Let a worker write back outputs.

        Raises:
            WorkerLost: the worker ended. KaasError: the worker's error.
        """
        reply = await self.write_back(worker, keys)
        if reply.error is not None:
            raise reply.error

    def kill(self, worker: int) -> None:
        """Kill a worker's process. Its calls end with WorkerLost, and the outputs that it keeps are lost."""
        connection = self._connections.pop(worker, None)
        if connection is not None:
            if connection.peer is not None:
                del self._by_peer[connection.peer]
                self._router.forget(connection.peer)
            connection.end("it was ended")
        self._residents.worker_left(worker)
        self._hosts.kill(worker)

    # --- calls

    def run(
        self, worker: int, slot: int, call: WorkerCall, victims: Sequence[bytes] = ()
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]:
        """Send a run to its executor, before this returns."""
        connection, payload = self._connections.get(worker), call.payload
        if connection is None or isinstance(payload, Survived):
            return self._orphan(worker, slot)
        function: RegisteredFunction = payload.function
        attached: Sequence[messages.ExecutorAttachment] = ()
        frames, files = payload.frames, list[int]()
        if payload.refs:
            try:
                attached, attachments = connection.attach(payload.refs, frames)
            except OSError as error:
                return _at_once(unsent(call.label, error))
            frames, files = attachments.frames, attachments.files
        connection.introduce(function)
        number = next(self._numbers)
        deferred = not (function.inline or payload.direct)
        header = messages.RunInvocation(
            number, slot, tuple(payload.keep.values()) if payload.keep else (), deferred, attached, victims
        )
        if deferred:
            return self._collected(
                connection, payload, connection.ask(number, header, frames, payload.refs, whole, files)
            )
        finish = direct if payload.direct else partial(inline, function)
        return connection.ask(number, header, frames, payload.refs, finish, files)

    async def compile(self, call: WorkerCall) -> Compilation:
        """Compile the code of a call's kTask."""
        _, task = call.payload.function.introduction
        return await self._hosts.compile(task, call.client)

    async def _orphan(self, worker: int, slot: int) -> WorkerReply:
        return WorkerReply(record=await self._connection(worker).orphan(slot))

    async def _collected(
        self,
        connection: ExecutorConnection,
        payload: Payload,
        ended: ImmediateFuture[tuple[ExecutorReply, Sequence[Any]]],
    ) -> WorkerReply:
        """Return a reply with the outputs of a deferred result, and the places of the kept ones."""
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

    async def prefetch(
        self, worker: int, named: Mapping[bytes, WorkerCall], victims: Sequence[bytes] = ()
    ) -> WorkerReply:
        positions, loads = dict[Any, int](), list[specs.KeyedObject]()
        for call, keys in _by_call(named):
            payload: Payload = call.payload
            places = payload.function.places(specs.decode_invocation(payload.frames[0]), payload.refs)
            for key in keys:
                ref, entry = places[key]
                loads.append(specs.KeyedObject(key, positions.setdefault(ref, len(positions)), entry))
        decided = specs.CacheDecisionSpec(loads, [], list(victims), client=next(iter(named.values())).client)
        return await self._decide(worker, decided, list(positions))

    async def evict(self, worker: int, keys: Sequence[bytes], to: EvictTo = EvictTo.NOTHING) -> WorkerReply:
        return await self._decide(worker, specs.CacheDecisionSpec([], list(keys), to_host=to is EvictTo.HOST))

    async def _decide(self, worker: int, decided: specs.CacheDecisionSpec, refs: Sequence[Any] = ()) -> WorkerReply:
        header = messages.CacheDecision(next(self._numbers), [Named(ref.binary()) for ref in refs])
        return await self._ordered(worker, header, [specs.encode(decided)], refs)

    async def write_back(self, worker: int, keys: Sequence[bytes]) -> WorkerReply:
        """Let a worker write back kept outputs, and wait until they have come."""
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
            raise WorkerLost("it ended before the call was sent")
        return connection

    def forget_client(self, client: str) -> None:
        """Let executors take a client's name as that of another client from now on."""
        for connection in self._connections.values():
            if connection.peer is not None:
                connection.send(messages.ForgetClient(client))

    # --- messages

    def greet(self, peer: Peer, hello: messages.PeerHello) -> None:
        """Handle the connection of an executor, or its reconnection.

        Raises:
            KaasError: the peer is another process, or names no worker.
        """
        connection = next(
            (connection for connection in self._connections.values() if str(connection.worker) == hello.name), None
        )
        if connection is not None:
            if peer.channel.local and not self._hosts.owns(connection.worker, peer.pid):
                raise KaasError(f"process {peer.pid} is not worker {connection.worker}")
            self._attach(connection, peer)
        elif self._unknown_peers is not None:
            self._unknown_peers[hello.name] = _UnknownPeer(peer)
        else:
            raise KaasError(f"there is no worker {hello.name}")

    def _attach(self, connection: ExecutorConnection, peer: Peer) -> None:
        if connection.peer is not None:
            del self._by_peer[connection.peer]
        self._by_peer[peer] = connection
        connection.greet(peer)

    def receive(self, peer: Peer, message: messages.FromPeer, frames: Sequence[Any]) -> None:
        """Handle a message of an executor. Messages of an earlier connection are ignored.

        A kernel may have taken its executor's process over, which then sends anything: the process ends, and no more.
        """
        connection = self._by_peer.get(peer)
        if connection is None:
            for unknown in (self._unknown_peers or {}).values():
                if unknown.peer == peer:
                    unknown.received.append((message, frames))
            return
        try:
            self._take(connection, message, frames)
        except Exception as error:  # noqa: BLE001 - whatever it sent, the pool goes on
            _log.warning("worker %s is ended, since it sent what no executor sends: %r", connection.worker, error)
            self.kill(connection.worker)

    def _take(self, connection: ExecutorConnection, message: messages.FromPeer, frames: Sequence[Any]) -> None:
        match message:
            case ExecutorReply():
                connection.replied(message, frames)
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
            objects = [[attachments.add(part) for part in parts] for parts in values or ()]
        except KaasError as error:
            connection.send(messages.ProvideObjects(number, error=True), [encode_error(error)])
            return
        if values is not None:
            connection.send(messages.ProvideObjects(number, objects), attachments.frames, attachments.files)

    async def _return(self, worker: int, key: bytes, deferred: int) -> None:
        """Receive an output that a worker has written back."""
        try:
            (value,) = await self._hosts.collect(worker, deferred, 1)
        except (WorkerLost, KaasError):
            self.kill(worker)  # the output is then lost with the worker, and its task can run again
        else:
            self._residents.written(key, value)


def _survivor(adoption: Adoption) -> Survivor:
    """Return an adopted executor for the core."""
    running = {
        slot: WorkerCall(orphan.label, orphan.client, None, 0, payload=Survived(), function=orphan.function)
        for slot, orphan in adoption.running.items()
    }
    return Survivor(adoption.start, adoption.info, running, adoption.cached)


async def _at_once(reply: WorkerReply) -> WorkerReply:
    return reply


def _by_call(named: Mapping[bytes, WorkerCall]) -> Iterator[tuple[WorkerCall, list[bytes]]]:
    calls: dict[int, tuple[WorkerCall, list[bytes]]] = {}
    for key, call in named.items():
        calls.setdefault(id(call), (call, []))[1].append(key)
    yield from calls.values()


def whole(done: ExecutorReply, frames: Sequence[Any]) -> tuple[ExecutorReply, Sequence[Any]]:
    """Return a reply unchanged."""
    return done, frames


def plain(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a command without outputs."""
    return failed(done, frames) if done.failed else WorkerReply(None, None, done.record, done.lost)


def direct(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a run, with its frames unchanged."""
    return failed(done, frames) if done.failed else WorkerReply(frames, None, done.record, done.lost)


def inline(function: RegisteredFunction, done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a run, with outputs that become arrays in the caller's process."""
    if done.failed:
        return failed(done, frames)
    layouts = zip(frames, function.outputs, strict=True)
    values = tuple([InlineOutput(bytes(data), dtype, shape) for data, (dtype, shape) in layouts])
    return WorkerReply(values, None, done.record, done.lost)


def failed(done: ExecutorReply, frames: Sequence[Any]) -> WorkerReply:
    """Return the reply of a failed run. The cause stays encoded, since its code must not run in the pool."""
    return WorkerReply(None, decode_error(frames[0], open_cause=False), done.record, done.lost)


def unsent(label: str, error: OSError) -> WorkerReply:
    """Return the reply of a run that was not sent: a program's memory is gone, or the pool has no room for it."""
    gone = InputFailed(f"an input of {label!r} cannot be read any more: {error}", task=label, reason=str(error))
    return WorkerReply(error=error if isinstance(error, KaasError) else gone)
