"""The share of time that kernels have on each executor's device, for policies that ask for it.

That of a GPU is NVML's figure, where the executor has it, else that of the executor's own kernels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping

from kaas.pool.background import Background
from kaas.pool.core.requests import Requests
from kaas.pool.core.workers import WorkerRecord
from kaas.pool.executors.transport import WorkerLost, WorkerTransport
from kaas.scheduling.events import PhysicalDevice, Utilisation, WorkerKind


class DeviceUse:
    """Asks the executors for their kernels' seconds, as long as there are requests, and until no kernel ran any more.

    An idle pool asks nothing. The last event of each device before is 0, or what other processes' kernels take of a
    GPU. Devices with workers of eTasks have no event.

    Args:
        every_s: the period. requests, workers: those of the pool, which changes them. tell: gives an event to the
            policy.
    """

    def __init__(
        self,
        every_s: float,
        requests: Requests,
        workers: Mapping[int, WorkerRecord],
        transport: WorkerTransport,
        background: Background,
        tell: Callable[[Utilisation], None],
    ) -> None:
        self._every_s = every_s
        self._requests = requests
        self._workers = workers
        self._transport = transport
        self._background = background
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._awake = False
        self._asked: set[int] = set()
        self._last: dict[int, tuple[float, float]] = {}  # by worker: seconds of its kernels, and its clock
        self._busy: dict[int, float] = {}  # by worker, of its own kernels

    def wake(self) -> None:
        """Begin to ask, since there is a request."""
        if not self._awake:
            self._awake = True
            self._background.run(self._report())

    async def _report(self) -> None:
        while self._requests.by_id or any(self._busy.values()):
            for worker in self._workers.values():
                if worker.kind is WorkerKind.EXECUTOR and worker.info is not None and worker.id not in self._asked:
                    self._asked.add(worker.id)
                    self._background.run(self._ask(worker))
            await asyncio.sleep(self._every_s)
            for gone in self._busy.keys() - self._workers.keys():
                del self._busy[gone]
        self._last.clear()  # the time until the next request counts for none
        self._awake = False

    async def _ask(self, worker: WorkerRecord) -> None:
        """Ask a worker, and tell the policy of its device; a worker that cannot reply is left out."""
        try:
            record = (await self._transport.discard(worker.id, ())).record
        except WorkerLost:
            record = None
        finally:
            self._asked.discard(worker.id)
        if record is None or worker.id not in self._workers:
            return
        kernels_s, clock_s = record.stages["kernels"], record.stages["clock"]
        before = self._last.get(worker.id)
        self._last[worker.id] = kernels_s, clock_s
        if before is not None and clock_s > before[1]:
            self._busy[worker.id] = max(0.0, (kernels_s - before[0]) / (clock_s - before[1]))
            own = min(1.0, sum(self._busy.get(each.id, 0.0) for each in self._on(worker.device)))
            self._tell(Utilisation(self._loop.time(), worker.device.index, record.stages.get("busy", own)))

    def _on(self, device: PhysicalDevice) -> Iterator[WorkerRecord]:
        return (worker for worker in self._workers.values() if worker.device is device)
