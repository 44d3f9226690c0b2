"""The pool for its callers, on Ray and without: functions, invocations, caches, statistics, the end of the pool."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import msgspec

from kaas.config import Config
from kaas.errors import InvalidRequest, PoolStopped
from kaas.pool.core.core import Pool
from kaas.pool.core.requests import Request
from kaas.pool.executors.executors import Executors
from kaas.pool.executors.payloads import OrderPayload, Payload
from kaas.pool.executors.residents import Residents
from kaas.pool.executors.transport import CacheOrder, WorkerCall, WorkerTransport
from kaas.pool.functions import RegisteredFunction, Registry
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.observing.metrics import Measured
from kaas.pool.patient_store import PatientStore
from kaas.pool.program_sessions import ObjectDirectory, ProgramSessions
from kaas.store import ACCOUNTS, FAULTS, FUNCTIONS, PROFILES, TASKS, Store
from kaas.wire import specs
from kaas.wire.connections.router import Peer, Receive, Router
from kaas.wire.messages import Address, PeerHello
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status
from kaas.worker.huge_pages import use_huge_pages_soon

LONGEST_TRACE_S = 600.0
LOCAL = "local"
"""The session of cache commands, which only programs of the pool's own user give."""
NOTHING_KEPT: Mapping[int, bytes] = {}


class Backend(Protocol):
    """The platform of a pool: Ray, or plain processes."""

    @property
    def node(self) -> str:
        """The node of the pool, as its peers know it."""
        ...

    @property
    def host(self) -> str | None:
        """The name under which other nodes reach the pool; None: no peer comes from another node."""
        ...

    @property
    def again(self) -> bool:
        """True if this process of the pool replaces one that ended."""
        ...

    @property
    def objects(self) -> ObjectDirectory: ...

    def workers(self, router: Router, residents: Residents) -> tuple[Executors, WorkerTransport]:
        """Return the executors, and the transport to workers of all kinds."""
        ...

    def came(self, hello: PeerHello) -> None:
        """Handle the connection of a program."""
        ...


class Service:
    """One pool. All methods belong to the event loop in which it was opened."""

    def __init__(self, name: str, config: Config, backend: Backend, store: Store) -> None:
        self._name = name
        self._backend = backend
        self._store = PatientStore(store)
        lasting = () if config.store is not None else (FAULTS, FUNCTIONS, PROFILES, TASKS)
        self._passing = (ACCOUNTS, *lasting)
        self._loop = asyncio.get_running_loop()
        self._waits: set[asyncio.Future[Any]] = set()  # for the objects of cache commands
        self._stopping: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()
        self.served = False
        """True if the pool belongs to a server: it ends with the server, and a program that uses it cannot stop it."""
        self.residents = Residents(self._loop)
        self._router = Router(self._loop, backend.node, backend.host)
        self._executors, transport = backend.workers(self._router, self.residents)
        self.pool = Pool(name, config, transport)
        if not backend.again:
            self._store.clear(*self._passing)
        self.registry = Registry(self._store)
        self.program_sessions = ProgramSessions(self, self._router, backend.objects)

    @classmethod
    async def open(cls, name: str, config: Config, backend: Backend, store: Store) -> Service:
        """Open a new pool, or continue the pool of an earlier process. store: is open already.

        Raises:
            KaasError: the pool cannot be opened.
        """
        service = cls(name, config, backend, store)
        service._router.open(service._greet, service._executors.left)
        service.pool.open(await service._executors.survivors() if backend.again else (), service._store)
        use_huge_pages_soon()
        return service

    async def started(self) -> None:
        """Wait until the devices of a new pool can run requests.

        A pool that continues an earlier process uses the devices that it still has, and does not wait.

        Raises:
            DeviceUnavailable: a device cannot run requests. KaasError: the pool is broken already, as by its policy.
        """
        if not self._backend.again:
            await self.pool.reports.started()
        self.pool.check_open()

    @property
    def address(self) -> Address:
        """Where peers connect."""
        return self._router.address

    def _greet(self, peer: Peer, hello: PeerHello) -> Receive:
        if hello.role == "executor":
            self._executors.greet(peer, hello)
            return self._executors.receive
        self._backend.came(hello)
        self.program_sessions.greet(peer, hello)
        return self.program_sessions.receive

    # --- invocations

    def invoke(
        self,
        invocation: specs.Invocation,
        frames: Sequence[Any],
        refs: Sequence[Any] = (),
        keep: Mapping[int, bytes] = NOTHING_KEPT,
    ) -> ImmediateFuture[Sequence[Any]]:
        """Run an invocation; return a future of its outputs in declared order.

        `frames` begin with the encoded invocation. `keep` has keys of the outputs that stay on the device, by position.

        Raises:
            KaasError: the request is refused. The future raises all later errors.
        """
        function = self.registry.get(invocation.function)
        if function is None:  # the message with its registration may come later
            return ImmediateFuture.of(self._loop.create_task(self._invoke_later(invocation, frames, refs, keep)))
        ready = self._backend.objects.ready(refs) if refs and not invocation.ready else None
        call = function.call(invocation, Payload(function, frames, refs, keep), refs, invocation.session)
        request = self.pool.begin(call, ready)
        request.answer.add_done_callback(partial(self._answered, request))
        return request.answer

    async def function(self, key: str) -> RegisteredFunction:
        """Return a function, once it is registered.

        Raises:
            KaasError: the function is not registered in time.
        """
        return self.registry.get(key) or await self.registry.registered(key)

    async def _invoke_later(
        self, invocation: specs.Invocation, frames: Sequence[Any], refs: Sequence[Any], keep: Mapping[int, bytes]
    ) -> Sequence[Any]:
        await self.function(invocation.function)
        return await self.invoke(invocation, frames, refs, keep)

    def _answered(self, request: Request, answer: ImmediateFuture[Any]) -> None:
        if answer.cancelled():
            self.pool.cancelled(request)

    def session_ended(self, session: str) -> None:
        """Handle the end of a program."""
        self.program_sessions.session_ended(session)
        self.pool.session_ended(session)
        self._backend.objects.session_ended(session)
        self.registry.session_ended(session)

    def forget_client(self, client: str) -> None:
        """Take in that a client's name has another owner: it finds nothing of the earlier one on any device."""
        self.pool.forget_client(client)
        self._executors.forget_client(client)

    # --- caches

    async def cache_command(self, message: bytes, refs: Sequence[Any]) -> None:
        """Carry out a cache command, once the objects that it names are complete.

        Raises:
            KaasError: an object or a worker failed, or the pool stopped.
        """
        command = specs.decode_cache_command(message)
        functions = [await self.function(key) for key in command.functions]
        incomplete = self._backend.objects.ready(refs) if refs and not command.ready else None
        if incomplete is not None:
            await self._unless_stopped(incomplete)
        if (ahead := self.pool.compilations) is not None:
            for each in functions:
                wanted = WorkerCall(each.label, command.client, None, 0, (), Payload(each, ()), session=LOCAL)
                await ahead.compiled(msgspec.structs.replace(wanted, task=each.spec.task_key))
        target = refs[0].binary() if command.objects else "".join(command.functions).encode()
        label = ", ".join(dict.fromkeys(function.label for function in functions))
        order = CacheOrder(OrderPayload(functions, message, refs), label, command.client)
        if command.action == "unpin":
            self.pool.caches.unpin(target or None, command.device)
        if command.action == "pin":
            await self.pool.caches.pin(target, order, command.device)
        else:
            await self.pool.caches.carry_out(order, command.device)

    async def _unless_stopped(self, wait: asyncio.Future[Any]) -> None:
        """Wait for objects, unless the pool stops.

        Raises:
            PoolStopped: the pool stops first.
        """
        self._waits.add(wait)
        try:
            await asyncio.wait([wait])
        finally:
            self._waits.discard(wait)
        if wait.cancelled() or isinstance(wait.exception(), asyncio.CancelledError):
            raise PoolStopped(f"pool {self._name!r} was shut down", pool=self._name)
        wait.result()

    # --- the pool itself

    def status(self) -> Status:
        """Return the pool's status."""
        return replace(self.pool.status(self.registry.labels), pid=os.getpid())

    def stats(self, reset: bool) -> Stats:
        """Return the statistics since the last reset. reset: begin anew."""
        return self.pool.stats(reset)

    def measured(self) -> Measured:
        """Return the values of the pool's metrics."""
        measured = self.pool.reports.measured()
        cached = measured.cached_bytes
        held_bytes = self._executors.held_bytes
        return replace(measured, cached_bytes={**cached, "device": cached.get("device", 0) + held_bytes})

    async def trace(self, seconds: float) -> bytes:
        """Return a trace of the requests of the next seconds.

        Raises:
            InvalidRequest: the number of seconds is out of range. PoolStopped: the pool is closed.
        """
        if not 0 < seconds <= LONGEST_TRACE_S:
            message = f"a trace takes a number of seconds up to {LONGEST_TRACE_S:g}, not {seconds!r}"
            raise InvalidRequest(message)
        self.pool.check_open()
        return await self.pool.reports.trace(seconds)

    def begin_to_stop(self) -> asyncio.Task[None]:
        """Begin to stop: answer all waiting calls, end the executors, clear the store. Later calls are refused."""
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop())
        return self._stopping

    async def stop(self) -> None:
        """Stop the pool, and wait until it has stopped. A cancelled wait does not interrupt the stop."""
        await asyncio.shield(self.begin_to_stop())

    async def _stop(self) -> None:
        await self.pool.close()
        for wait in self._waits:
            wait.cancel()
        self._store.clear(*self._passing)
        self._store.close()
        self._router.hide()
        self.stopped.set()

    def close(self) -> None:
        """Close the sockets."""
        self._router.close()
