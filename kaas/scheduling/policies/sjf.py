"""Shortest job first: the request of the function with the least mean run time goes next, ties to the oldest.

The time is that of a run whose objects are on the device, as `Estimates` has it: the policy learns it by function, and
is no oracle for a single request. Long functions may wait without end.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from kaas.scheduling.events import PhysicalDevice
from kaas.scheduling.policies.orders import FunctionFlows, PriorityOrder, SortKey
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Queue, QueuedRequest, RequestOrder, Serves


class ShortestJobFirst(Scheduler):
    """One queue for all, by the mean run time of the function on the fastest device."""

    work_conserving: ClassVar[bool] = True

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._fastest = max(devices, key=lambda device: device.speed, default=None)
        super().__init__(devices)

    def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002 - eTasks go by their run times too
        """Return the order by run time."""
        made = ShortestFirst(self)
        self._estimated.append(made.estimated)
        return made

    def run_s(self, request: QueuedRequest) -> float:
        """Return the seconds that a request runs on the fastest device."""
        return 0.0 if self._fastest is None else self._estimates.run_s(request, self._fastest)


class ShortestFirst(PriorityOrder):
    """The calls of one function by one client are a flow; the flow of the least run time goes next (`place`)."""

    compares: ClassVar[tuple[str, ...]] = ("-priority", "run_s", "request")

    def __init__(self, policy: ShortestJobFirst) -> None:
        super().__init__(policy.suited)
        self._run_s = policy.run_s
        self._of_function = FunctionFlows()

    def flow(self, request: QueuedRequest) -> Hashable:
        """Return the client and the function of a request."""
        return request.share, request.function

    def place(self, queue: Queue) -> SortKey:
        """Return the place of a flow by its mean run time."""
        return -queue.share.priority, self._run_s(queue.head), queue.head.id

    def offer(self, queue: Queue) -> None:
        """Give a flow its place."""
        super().offer(queue)
        self._of_function.add(queue)

    def withdraw(self, queue: Queue) -> None:
        """Take a flow out of its place."""
        super().withdraw(queue)
        self._of_function.discard(queue)

    def estimated(self, function: str) -> None:
        """Give the flows of a function their places anew."""
        for queue in self._of_function.get(function, ()):
            self.offer(queue)
