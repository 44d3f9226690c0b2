"""Earliest deadline first: the request with the least deadline goes next; those without one follow, by age."""

from __future__ import annotations

import math
from typing import ClassVar

from kaas.scheduling.policies.orders import PriorityOrder
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import QueuedRequest, RequestOrder, Serves


class EarliestDeadlineFirst(Scheduler):
    """One queue for all, by deadline. A request whose deadline has passed does not run under any policy."""

    work_conserving: ClassVar[bool] = True

    def order(self, serves: Serves) -> RequestOrder:  # noqa: ARG002 - eTasks go by their deadlines too
        """Return the order by deadline: the least one that waits goes next, as `PriorityOrder.next` has it."""
        return Deadlines(self.suited)


class Deadlines(PriorityOrder):
    """Requests by their deadlines, ties to the oldest."""

    compares: ClassVar[tuple[str, ...]] = ("-priority", "deadline_s", "request")

    def key(self, request: QueuedRequest) -> float:
        """Return the deadline; infinite if there is none."""
        return math.inf if request.deadline_s is None else request.deadline_s
