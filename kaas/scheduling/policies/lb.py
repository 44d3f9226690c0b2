"""Load balancing without locality (LB, LALB paper section III): the oldest request goes to the device idle for longest.

It is the baseline of LALB. Objects used longest ago leave the device first.
"""

from __future__ import annotations

from typing import ClassVar

from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import QueuedRequest, WorkerState


class LoadBalancing(Scheduler):
    """One queue for all devices, whatever they hold. The next request is the oldest, by `Scheduler.order`."""

    work_conserving: ClassVar[bool] = True

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Return the order of free workers: the least busy, then the one whose slot was freed first."""
        freed, _ = worker.free[-1]
        return len(worker.running), 0.0, freed

    def suited(self, request: QueuedRequest) -> WorkerState | None:
        """Return the first free worker."""
        return self._placement.best(request.group)

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:
        """Return what was used longest ago."""
        return self._holdings.least_recently_used(request.reads, worker.device.index)
