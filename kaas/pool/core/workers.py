"""The pool's workers, each from the decision to start it to its end."""

from __future__ import annotations

import asyncio
from typing import Protocol

from kaas.pool.background import Background
from kaas.pool.core.records import WorkerRecord
from kaas.pool.executors.transport import WorkerTransport
from kaas.scheduling.events import PhysicalDevice, StartWorker, WorkerKind


class WorkerHost(Protocol):
    """Who is told of them."""

    def ready(self, worker: WorkerRecord) -> None:
        """A worker can run requests."""
        ...

    def gone(self, worker: WorkerRecord, reason: str) -> None:
        """A worker has ended; that may be known already. The answer to the news is `WorkerManager.drop`."""
        ...


class WorkerManager:
    """Belongs to one event loop.

    Args:
        start_limit_s: for a worker's start.

    Fields:
        workers: by number; others only look.
    """

    def __init__(
        self, host: WorkerHost, transport: WorkerTransport, background: Background, start_limit_s: float
    ) -> None:
        self._host = host
        self._transport = transport
        self._background = background
        self._start_limit_s = start_limit_s
        self._loop = asyncio.get_running_loop()
        self.workers: dict[int, WorkerRecord] = {}

    def start(self, decision: StartWorker, device: PhysicalDevice, serves: str) -> None:
        """serves: the label of the only function that it is for, "" if it is for all."""
        worker = WorkerRecord(decision.worker, device, decision.kind, decision.client, serves)
        self.workers[worker.id] = worker
        self._background.run(self._live(worker, decision))

    async def _live(self, worker: WorkerRecord, decision: StartWorker) -> None:
        began_s = self._loop.time()
        try:
            async with asyncio.timeout(self._start_limit_s):
                worker.info = await self._transport.start(decision)
        except Exception as error:  # noqa: BLE001 - whatever it is, it means that this worker is not there
            self._host.gone(worker, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
            return
        if decision.client and worker.kind is WorkerKind.EXECUTOR:  # the transport of eTasks does it itself
            worker.start_s = self._loop.time() - began_s
        if worker.id in self.workers:
            worker.settled.set()
            self._host.ready(worker)
            await self._outlive(worker)

    async def _outlive(self, worker: WorkerRecord) -> None:
        self._host.gone(worker, await self._transport.ended(worker.id))

    def adopt(self, worker: WorkerRecord) -> None:
        """It runs already, since an earlier process of the pool."""
        self.workers[worker.id] = worker
        self._background.run(self._outlive(worker))

    def stop(self, worker: WorkerRecord) -> None:
        """It ends once it is idle."""
        worker.stopping = True
        if worker.info is None:
            self._loop.call_soon(self._host.gone, worker, "stopped")
        elif not worker.running:
            self.end(worker)

    def end(self, worker: WorkerRecord) -> None:
        """An idle one ends, in good order."""
        self._background.run(self._end(worker))

    async def _end(self, worker: WorkerRecord) -> None:
        trouble = await self._transport.stop(worker.id)
        self._host.gone(worker, f"stopped, and {trouble}" if trouble else "stopped")

    def drop(self, worker: WorkerRecord) -> bool:
        """It has ended or must end, and does so at once. Whether that is news."""
        worker.settled.set()
        if self.workers.pop(worker.id, None) is None:
            return False
        self._transport.kill(worker.id)
        return True

    async def close(self) -> None:
        """All end; idle ones of eTasks, which may have something to put away, in good order."""
        etasks = [worker for worker in self.workers.values() if worker.kind is WorkerKind.ETASK]
        idle = [worker.id for worker in etasks if worker.info is not None and not worker.running]
        await asyncio.gather(*map(self._transport.stop, idle))
        for worker in self.workers.values():
            self._transport.kill(worker.id)
            worker.settled.set()
