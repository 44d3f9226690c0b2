"""The pool on Ray: an actor whose event loop only passes calls on to the pool's own loop.

Ray imports this module in each process that gets a handle of the actor, so the modules of the pool itself are imported
later, in the pool's process only.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayError

from kaas.config import Config
from kaas.errors import KaasError, PoolStopped
from kaas.pool.loop import PoolThread
from kaas.pool.on_ray.cluster import started_again
from kaas.wire import specs
from kaas.wire.messages import Address
from kaas.worker.processes import open_all_files

if TYPE_CHECKING:
    from kaas.pool.on_ray.backend import RayBackend
    from kaas.pool.on_ray.open_pool import OpenPool
    from kaas.pool.service import Service
    from kaas.pool.session_servers import OpenServer
    from kaas.wire.status.stats import Stats
    from kaas.wire.status.status import Status
    from kaas.worker.held.terms import HolderAddress

T = TypeVar("T")


class PoolActor:
    """The actor that programs call by Ray. Its methods run in Ray's loop, and their work on the pool's thread."""

    def __init__(self, name: str, config: Config) -> None:
        self._name = name
        self._config = config
        self._attached = False
        self._again = started_again()
        self._thread = PoolThread()
        self._epoch: OpenPool | None = None
        self._opening: asyncio.Task[OpenPool] | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._sessions: dict[str, asyncio.Event] = {}
        self._open_calls = 0
        self._all_answered = asyncio.Event()

    async def attach(self, wanted: Config | None) -> bool:
        """Open the pool for its first program, and return True for it; compare the configurations of later programs.

        Raises:
            ConfigMismatch: the configurations differ. PoolStopped: the pool is about to end.
        """
        if self._stopping.is_set():
            await self._all_calls_answered()
            raise PoolStopped(f"pool {self._name!r} is shut down", pool=self._name)
        if wanted is not None:
            wanted.refuse_other(self._name, self._config)
        await self._opened()
        first = not (self._attached or self._again)
        self._attached = True
        return first

    async def address(self) -> Address:
        """Return the address of this epoch of the pool, for connections. Only processes of the cluster get it."""
        return (await self._opened()).service.address

    async def next_epoch(self, known: str | None = None) -> str:
        """Wait until the pool's epoch differs from the known one, and return it.

        Return "" when the pool stops. The call fails when the pool's process ends.
        """
        epoch = (await self.address()).epoch
        if known not in (None, epoch):
            return epoch
        await self._stopping.wait()
        return ""

    # --- sessions

    async def attended(self, session: str) -> None:
        """Wait until a session has ended, or the pool stops. The session's process owns the reference to this call."""
        await self._sessions.setdefault(session, asyncio.Event()).wait()

    async def attend(self, session: str, alive: Sequence[Any]) -> None:
        """Wait until a session has ended, or the pool stops; then handle the session's end.

        `alive` is the reference to the call of `attended`: a wait for it fails when its owner has ended.
        """
        stopping = asyncio.ensure_future(self._stopping.wait())
        owner = asyncio.ensure_future(_existence(alive[0]))
        await asyncio.wait((owner, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not owner.done():
            owner.cancel()
            return
        try:
            await owner
        except RayActorError:
            pass  # an earlier process of the pool had ended: this says nothing of the session
        except RayError:
            self._sessions.pop(session, asyncio.Event()).set()
            self._thread.post((await self._opened()).service.session_ended, session)

    async def hold(self, session: str, epoch: str, refs: Sequence[Any]) -> None:
        """Hold objects that a session is going to name over its connection. epoch: the epoch that the session knows."""
        opened = await self._opened()
        if epoch == opened.service.address.epoch:  # else Ray repeats a call to an earlier epoch
            await self._thread.run(_done(opened.backend.objects.hold, session, refs))

    # --- the pool's opening

    async def _opened(self) -> OpenPool:
        """Return the pool. The first call opens it, not __init__, since Ray runs __init__ outside the event loop."""
        if self._epoch is None:
            if self._opening is None:  # in a new context: Ray cancels all work that a cancelled call began
                context = contextvars.Context()
                self._opening = asyncio.get_running_loop().create_task(self._open(), context=context)
            self._epoch = await asyncio.shield(self._opening)
        return self._epoch

    async def _open(self) -> OpenPool:
        here = ray.get_runtime_context()
        own, node = here.current_actor, here.get_node_id()
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        open_all_files()
        self._thread.start()
        from kaas.pool.on_ray.open_pool import opened

        epoch = await self._thread.run(opened(self._name, self._config, own, node, host, self._again))
        context = contextvars.Context()
        self._reporting = asyncio.get_running_loop().create_task(self._report_metrics(epoch), context=context)
        self._reporting.add_done_callback(lambda task: task.cancelled() or task.result())  # the loop logs an error
        gc.freeze()  # these objects stay: a visit of the garbage collector to all of them takes 80 ms
        return epoch

    async def _report_metrics(self, epoch: OpenPool) -> None:
        """Report metrics to Ray now and then, until the pool stops."""
        from kaas.pool.observing.metrics import metrics
        from kaas.pool.on_ray.ray_metrics import EVERY_S, RayMetrics

        reported = RayMetrics(self._name)
        while not self._stopping.is_set():
            reported.update(metrics(await self._thread.run(_done(epoch.service.measured))))
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), EVERY_S)

    # --- invocations

    async def register(self, spec: bytes, task: bytes) -> None:
        """Register a function; a second call changes nothing."""
        service = (await self._opened()).service
        await self._thread.run(_done(service.registry.register, spec, task))

    async def function(self, key: str) -> tuple[bytes, bytes]:
        """Return a function as it was registered, for an executor that does not know it."""
        service = (await self._opened()).service
        return (await self._thread.run(service.function(key))).introduction

    async def invoke(self, message: bytes, refs: Sequence[Any] = ()) -> Any:
        """Run one invocation; return the output's value, or a tuple of several in declared order."""
        self._open_calls += 1
        try:
            task = ray.get_runtime_context().get_task_id
            epoch = self._epoch or await self._opened()
            invocation = specs.decode_invocation(message)
            if invocation.keep:
                keep = output_ids(bytes.fromhex(task() or ""), invocation.keep)
                outputs = await self._thread.run(epoch.keeping.invoke(invocation, message, refs, keep))
            else:
                outputs = await self._thread.ask(epoch.service.invoke, invocation, (message,), refs)
            return outputs[0] if len(outputs) == 1 else outputs
        except KaasError as error:
            raise _without_frames(error) from error.__cause__
        finally:
            self._answered()

    async def materialise(self, key: bytes) -> Any:
        """Return the array of an output that stays on a device, after a program asked for it or it was evicted.

        The pool calls this itself, so that it owns the result, and Ray knows which processes have a reference.
        """
        epoch = await self._opened()
        return await self._thread.run(epoch.service.residents.value(key))

    async def wanted(self, key: bytes) -> None:
        """Write back an output, since a program waits for the array of `materialise`."""
        epoch = await self._opened()
        await self._thread.run(epoch.keeping.wanted(key))

    # --- eTasks

    async def register_etask(self, spec: bytes, code: bytes) -> None:
        """Register an eTask; a second call changes nothing."""
        self._thread.post((await self._opened()).backend.etasks.register, spec, code)

    @ray.method(max_task_retries=0)  # an eTask may have side effects
    async def call(self, message: bytes, refs: Sequence[Any] = ()) -> Any:
        """Run one call of an eTask, and return its value."""
        self._open_calls += 1
        try:
            epoch = self._epoch or await self._opened()
            return await self._thread.run(epoch.call(message, refs))
        except KaasError as error:
            raise _without_frames(error) from error.__cause__
        finally:
            self._answered()

    async def holder(self, worker: int, visible: str, lost: str) -> HolderAddress:
        """Return the holder of constants on the device of an eTask's worker, as `ETaskWorkers.holder` does."""
        workers = (await self._opened()).backend.etask_workers
        try:
            return await self._thread.run(workers.holder(worker, visible, lost))
        except KaasError as error:
            raise _without_frames(error) from error.__cause__

    # --- servers of sessions

    async def serve(self, session: str, opener: Callable[[Service, RayBackend], Awaitable[OpenServer]]) -> None:
        """Open a server in this process, until it has drained or its caller has ended.

        The caller calls this again in each epoch.
        """
        self._open_calls += 1
        try:
            ended = self._sessions.setdefault(session, asyncio.Event())  # the session may end while this waits
            epoch = await self._opened()
            session_end = asyncio.ensure_future(ended.wait())
            opening = partial(opener, epoch.service, epoch.backend)
            serving = asyncio.ensure_future(self._thread.ask(epoch.session_servers.serve, session, opening))
            await asyncio.wait((serving, session_end), return_when=asyncio.FIRST_COMPLETED)
            session_end.cancel()
            if not self._stopping.is_set():  # else the server sees that the pool stops, and answers its clients
                self._thread.post(epoch.session_servers.end, session)
            await serving
        finally:
            self._answered()

    async def endpoint(self, session: str) -> str:
        """Return the address of a server, once it is open."""
        return (await self._session_server(session)).endpoint

    async def reload(self, session: str, settings: Any) -> None:
        """Let a server apply changed settings."""
        self._thread.post((await self._session_server(session)).reload, settings)

    async def drain(self, session: str, reason: str) -> None:
        """Let a server refuse further requests, and end."""
        self._thread.post((await self._session_server(session)).drain, reason)

    async def _session_server(self, session: str) -> OpenServer:
        return await self._thread.run((await self._opened()).session_servers.opened(session))

    # --- caches and the pool itself

    async def cache_command(self, message: bytes, refs: Sequence[Any]) -> None:
        """Carry out a cache command, once the objects that it names are complete."""
        self._open_calls += 1
        try:
            service = (await self._opened()).service
            await self._thread.run(service.cache_command(message, refs))
        except KaasError as error:
            raise _without_frames(error) from error.__cause__
        finally:
            self._answered()

    async def status(self) -> Status:
        """Return the pool's status."""
        return await self._thread.run(_done((await self._opened()).service.status))

    async def pardon(self, function: str) -> bool:
        """Forget faults, as `Quarantine.pardon` does."""
        return await self._thread.run(_done((await self._opened()).service.pool.quarantine.pardon, function))

    async def set_share(self, session: str, message: bytes) -> None:
        """Give a function or a client a share, as `PoolShares.set` does."""
        shares = (await self._opened()).service.pool.shares
        try:
            await self._thread.run(_done(shares.set, specs.decode_share(message), session))
        except KaasError as error:
            raise _without_frames(error) from error.__cause__

    async def trace(self, seconds: float) -> bytes:
        """Return a trace of the requests of the next seconds."""
        return await self._thread.run((await self._opened()).service.trace(seconds))

    async def stats(self, reset: bool) -> Stats:
        """Return the statistics since the last reset. reset: begin anew."""
        return await self._thread.run(_done((await self._opened()).service.stats, reset))

    async def stop(self) -> bool:
        """Answer all waiting calls, end the executors and clear the store. The caller then ends this actor.

        Return False, and do nothing, if a server keeps the pool.
        """
        epoch = await self._opened()
        service = epoch.service
        if epoch.session_servers.any and not self._stopping.is_set():
            return False
        self._stopping.set()
        for ended in self._sessions.values():
            ended.set()
        await self._thread.run(service.stop())
        await self._thread.run(service.program_sessions.all_replied())
        await self._all_calls_answered()
        return True

    def _answered(self) -> None:
        self._open_calls -= 1
        if not self._open_calls:
            self._all_answered.set()

    async def _all_calls_answered(self) -> None:
        """Wait until all waiting calls have their replies."""
        if self._open_calls:
            self._all_answered.clear()
            await self._all_answered.wait()


def _without_frames(error: KaasError) -> KaasError:
    """Return an error for a program on Ray, without the pool's own frames, which would hide the message."""
    return error.with_traceback(None)


async def _done(function: Callable[..., T], *args: Any) -> T:
    """Return the result of a function that is called in the loop of the coroutine."""
    return function(*args)


async def _existence(ref: Any) -> None:
    """Wait until a reference has a value, or raise its error."""
    await ref


def output_ids(task: bytes, positions: Iterable[int]) -> dict[int, bytes]:
    """Return the ids of a Ray task's outputs, by position. An output's key in caches is the id of its ObjectRef."""
    return {position: task + (position + 1).to_bytes(4, "little") for position in positions}
