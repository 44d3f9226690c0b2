"""First come, first served over all devices: the oldest request whose inputs are ready gets the next free slot.

Of several free workers the request gets, in this order, a least busy one, the one where it moves fewest bytes, and the
one on the fastest device. If these are equal, a request that has nothing to load takes the slot that was freed last,
and one that has something to load takes the device with most room.
"""

from __future__ import annotations

from typing import ClassVar

from kaas.scheduling.policies.orders import PriorityOrder
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import RequestOrder, Serves, WorkerState


class FirstComeFirstServed(Scheduler):
    """One executor on each device, one queue for all. A request whose inputs are not ready blocks no other."""

    work_conserving: ClassVar[bool] = True

    def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002 - eTasks go by their arrival too
        """Return the order by arrival: all keys are equal, so the oldest request of the highest priority goes next."""
        return PriorityOrder(self.suited)

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Return the order of free workers: the least busy, the fastest, then the slot freed last."""
        freed, _ = worker.free[-1]
        return len(worker.running), -worker.device.spec.speed, -freed
