"""One transport for the executors and the workers of eTasks."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from kaas.pool.executors.transport import CacheOrder, Compilation, WorkerCall, WorkerReply, WorkerTransport
from kaas.pool.immediate_future import ImmediateFuture
from kaas.scheduling.decisions import Dispatch, EvictTo, StartWorker
from kaas.scheduling.events import WorkerKind
from kaas.wire.status.status import WorkerInfo


class Lifetimes(Protocol):
    """The part of a `WorkerTransport` that workers without a cache need."""

    async def start(self, start: StartWorker) -> WorkerInfo: ...

    def run(
        self, call: WorkerCall, dispatch: Dispatch
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]: ...

    async def ended(self, worker: int) -> str: ...

    async def stop(self, worker: int) -> str: ...

    def kill(self, worker: int) -> None: ...


class WorkerTransports:
    """A `WorkerTransport` that passes each call to the transport of the worker's kind."""

    def __init__(self, executors: WorkerTransport, etask_workers: Lifetimes) -> None:
        self._executors = executors
        self._etask_workers = etask_workers
        self._etask_ids: set[int] = set()

    def start(self, start: StartWorker) -> Coroutine[Any, Any, WorkerInfo]:
        if start.kind is WorkerKind.ETASK:
            self._etask_ids.add(start.worker)
        return self._transport_of(start.worker).start(start)

    def run(
        self, call: WorkerCall, dispatch: Dispatch
    ) -> ImmediateFuture[WorkerReply] | Coroutine[Any, Any, WorkerReply]:
        return self._transport_of(dispatch.worker).run(call, dispatch)

    def ended(self, worker: int) -> Coroutine[Any, Any, str]:
        return self._transport_of(worker).ended(worker)

    def stop(self, worker: int) -> Coroutine[Any, Any, str]:
        return self._transport_of(worker).stop(worker)

    def kill(self, worker: int) -> None:
        self._transport_of(worker).kill(worker)
        self._etask_ids.discard(worker)

    def _transport_of(self, worker: int) -> Lifetimes:
        return self._etask_workers if worker in self._etask_ids else self._executors

    def compile(self, call: WorkerCall) -> Coroutine[Any, Any, Compilation]:
        return self._executors.compile(call)

    # --- caches

    def cache_command(self, worker: int, order: CacheOrder) -> Coroutine[Any, Any, WorkerReply]:
        return self._executors.cache_command(worker, order)

    def prefetch(
        self, worker: int, named: Mapping[bytes, WorkerCall], victims: Sequence[bytes] = ()
    ) -> Coroutine[Any, Any, WorkerReply]:
        return self._executors.prefetch(worker, named, victims)

    def evict(
        self, worker: int, keys: Sequence[bytes], to: EvictTo = EvictTo.NOTHING
    ) -> Coroutine[Any, Any, WorkerReply]:
        return self._executors.evict(worker, keys, to)

    def write_back(self, worker: int, keys: Sequence[bytes]) -> Coroutine[Any, Any, WorkerReply]:
        return self._executors.write_back(worker, keys)

    def discard(self, worker: int, keys: Sequence[bytes]) -> Coroutine[Any, Any, WorkerReply]:
        return self._executors.discard(worker, keys)
