"""The transport of executors: sends calls of the core over the pool's sockets, and receives the replies."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kaas.errors import KaasError
from kaas.pool.executors.executor_connection import STRANGE_AT_MOST, AllowedKeys, ExecutorConnection, no_keys
from kaas.pool.executors.finished_calls import direct, failed, inline, plain, unsent, whole
from kaas.pool.executors.hosts import ExecutorHosts
from kaas.pool.executors.payloads import OrderPayload, Payload, Survived
from kaas.pool.executors.residents import Placed, Residents
from kaas.pool.executors.transport import CacheOrder, Compilation, Survivor, WorkerCall, WorkerLost, WorkerReply
from kaas.pool.functions import RegisteredFunction
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.decisions import Dispatch, EvictTo, StartWorker
from kaas.wire import messages, specs
from kaas.wire.connections.router import Peer, Router
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import Block, ExecutorReply, Framed, Named
from kaas.wire.status.status import WorkerInfo
from kaas.worker.epochs import Adoption

_log = logging.getLogger(__name__)

RESCUE_LIMIT_S = 10.0
"""Time limit for a worker that stops to write back its kept outputs. After it, the outputs' tasks run again."""
LEAVING_LIMIT_S = 1.0
"""An executor with walls has so long to end after its connection."""
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

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory that executors share, and do not count themselves."""
        return self._hosts.held_bytes

    # --- calls

    def run(
        self, call: WorkerCall, dispatch: Dispatch
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]:
        """Send a run to its executor, before this returns."""
        connection, payload, slot = self._connections.get(dispatch.worker), call.payload, dispatch.slot
        if connection is None or isinstance(payload, Survived):
            return self._orphan(dispatch.worker, slot)
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
        keep = tuple(payload.keep.values()) if payload.keep else ()
        decided = dispatch.victims, dispatch.share, dispatch.sms
        header = messages.RunInvocation(number, slot, keep, deferred, attached, *decided)
        if deferred:
            return self._collected(
                connection, payload, connection.ask(number, header, frames, payload.refs, whole, files)
            )
        finish = partial(direct if payload.direct else inline, function)
        nbytes = sum(function.output_bytes)
        return connection.ask(number, header, frames, payload.refs, finish, files, payload.keys, nbytes)

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
        header = messages.CacheCommand(next(self._numbers), attached)
        return await self._ordered(worker, header, [orders.message], orders.refs, orders.keys)

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
        return await self._decide(worker, decided, list(positions), named.keys)

    async def evict(self, worker: int, keys: Sequence[bytes], to: EvictTo = EvictTo.NOTHING) -> WorkerReply:
        return await self._decide(worker, specs.CacheDecisionSpec([], list(keys), to_host=to is EvictTo.HOST))

    async def _decide(
        self, worker: int, decided: specs.CacheDecisionSpec, refs: Sequence[Any] = (), keys: AllowedKeys = no_keys
    ) -> WorkerReply:
        header = messages.CacheDecision(next(self._numbers), [Named(ref.binary()) for ref in refs])
        return await self._ordered(worker, header, [specs.encode(decided)], refs, keys)

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
        keys: AllowedKeys = no_keys,
    ) -> WorkerReply:
        """Return an executor's reply to a command without outputs. keys: of objects that it may load."""
        return await self._connection(worker).ask(header.number, header, frames, refs, plain, keys=keys)

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
            if self._walls and connection.peer is not None:
                raise KaasError(f"worker {connection.worker} is connected already")
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
            self._misbehaves(connection, "it sent what no executor sends", error)

    def _misbehaves(self, connection: ExecutorConnection, why: str, error: Exception | None = None) -> None:
        if self._connections.get(connection.worker) is connection:
            _log.warning("worker %s is ended, since %s%s", connection.worker, why, f": {error!r}" if error else "")
            connection.end(why)
            self.kill(connection.worker)

    def left(self, peer: Peer | None, pid: int) -> None:
        """Take in that a connection of a process of this machine has ended. peer: None if it was never let in."""
        if not self._walls:
            return
        if peer is None:
            connection = self._connections.get(self._hosts.worker_of(pid))
            if connection is not None:
                connection.strange += 1
                if connection.strange > STRANGE_AT_MOST:
                    self._misbehaves(connection, "it connects again and again")
        elif (connection := self._by_peer.get(peer)) is not None:
            self._loop.call_later(LEAVING_LIMIT_S, self._misbehaves, connection, "it has left its connection")

    def _take(self, connection: ExecutorConnection, message: messages.FromPeer, frames: Sequence[Any]) -> None:
        connection.check(message)
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
        wanted = [None if isinstance(ref, Framed | Block) else ref for ref in refs]
        prepared = self._hosts.prepare(connection.worker, wanted)
        if prepared is None:
            self._give(connection, number, wanted)
        else:
            prepared.add_done_callback(lambda _: self._give(connection, number, wanted))

    def _give(self, connection: ExecutorConnection, number: int, wanted: Sequence[Any]) -> None:
        if connection.refs(number) is None:  # the call has ended meanwhile
            return
        attachments = connection.attachments()
        try:
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
