"""First come, first served over all devices: the oldest request whose inputs are ready gets the next free slot.

Where several are free it is one of the least busy workers: where the request moves fewest bytes, then on the fastest
device. If it has nothing to load, it takes the slot freed last; else the device with most room.
"""

from __future__ import annotations

from typing import ClassVar

from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import WorkerState


class FirstComeFirstServed(Scheduler):
    """One executor on each device, one queue for all of them. A request whose inputs are not ready blocks nobody."""

    work_conserving: ClassVar[bool] = True

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        freed, _ = worker.free[-1]
        return len(worker.running), -worker.device.spec.speed, -freed
