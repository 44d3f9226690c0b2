"""Why a request goes next under `adaptive`: its boosted arrival and the figures that make it, by name."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Protocol

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.policies.boost import Boost, Costs, cost_class
from kaas.scheduling.policies.fair_turns import FairTurns
from kaas.scheduling.policies.holdings import WorkingSet
from kaas.scheduling.policies.local_queues import LocalQueues
from kaas.scheduling.policies.orders import OwnPlaces
from kaas.scheduling.policies.reader_queue import Readers
from kaas.scheduling.policies.state import Queue, QueuedRequest, WorkerGroup, WorkerState
from kaas.scheduling.policies.urgent import UrgentRequests


class BoostRules(Protocol):
    """The part of the policy that scores depend on."""

    boost: Boost
    costs: Costs

    @property
    def now_s(self) -> float:
        """The time of the event."""

    def idle_worker(self, group: WorkerGroup) -> WorkerState | None:
        """Return the free worker that looks for a request next."""

    def held_by(self, worker: WorkerState) -> dict[WorkingSet, None]:
        """Return the working sets that are whole on a worker's device, or will be."""

    def cost_s(self, request: QueuedRequest, worker: WorkerState) -> float:
        """Return the seconds that a request takes on a worker, with the load of what is missing."""


class BoostedScores(OwnPlaces):
    """The part of the order of boosted arrivals that explains it."""

    _policy: BoostRules
    _local: LocalQueues
    _turns: FairTurns
    _readers: Readers[Queue]
    _urgent: UrgentRequests
    _costs: dict[Queue, tuple[int, int]]

    def candidates(self) -> list[Candidate]:
        """Return the first request of each flow, those in local queues, and those that are urgent."""
        heads = [*(queue.head for queue in self._flows.values()), *self._local.promised()]
        requests = {request.id: request for request in [*heads, *self._urgent.waiting]}
        first = self.sorted_heads().first()
        idle = None if first is None else self._policy.idle_worker(first.head.group)
        hits = set() if idle is None else self._hits(idle)
        urgent = {
            request.id
            for request in requests.values()
            if first is not None and idle is not None and self._is_urgent(request, first.head, idle)
        }
        shown = urgent | {request.id for request in heads}
        return [self._candidate(each, hits, urgent) for each in requests.values() if each.id in shown]

    def _candidate(self, request: QueuedRequest, hits: set[Queue], urgent: set[int]) -> Candidate:
        """Return a request as a candidate.

        Args:
            request: the request.
            hits: the flows that cost no load on the idle device.
            urgent: the requests whose deadlines go before boosts.
        """
        queue = self._flows.get(request.flow)
        hit = queue in hits
        cost_s = self._policy.costs.seconds(request)[not hit]
        kept = None if queue is None else self._costs.get(queue)
        boost_s = self._policy.boost[cost_class(cost_s) if kept is None else kept[not hit]]
        near = request.id in urgent
        scores = {
            "local_queue": self._local.turn(request),
            "-priority": -request.share.priority,
            "deadline_s": (request.deadline_s or 0.0) if near else math.inf,
            "boosted_arrival_s": -math.inf if near else (request.arrived_s or 0.0) - boost_s,
            "request": request.id,
        }
        return self.candidate(
            request, scores, cost_s=cost_s, boost_s=boost_s, holders=len(request.reads.constants.whole)
        )

    @abstractmethod
    def held(self, request: QueuedRequest) -> bool:
        """Return True if a promised request may not go, although its worker is free."""

    def _hits(self, idle: WorkerState) -> set[Queue]:
        """Return the flows that find their memory on an idle device: the first of each working set there."""
        return {least[-1] for least in self._readers.leasts(self._policy.held_by(idle))}

    def _is_urgent(self, request: QueuedRequest, first: QueuedRequest, idle: WorkerState) -> bool:
        """Return True if a request can still meet its deadline, and has less slack than it costs."""
        now_s, deadline_s = self._policy.now_s, request.deadline_s
        if deadline_s is None or request in self._local or request.share.priority < first.share.priority:
            return False
        near = self._urgent.is_urgent(request, now_s) and not request.reads.constants.missing_bytes(idle.device.index)
        in_time = now_s + max(self._policy.costs.seconds(request)[0], self._policy.cost_s(request, idle)) <= deadline_s
        return near and in_time and not self.obstacle(request)

    def obstacle(self, request: QueuedRequest) -> str:
        """Return why a request may not go: limits, its promise, or its client's turn."""
        if request in self._local and request.share not in self._parked:
            overtaken = "another client's turn, or a request of higher priority" if self.held(request) else ""
            return overtaken or self._local.obstacle(request, self.held)
        ahead = "" if self._turns.may_go(request.share) else "its client has had more than its turn"
        return super().obstacle(request) or ahead
