"""Requests with deadlines: those that go before others now, and those that do so later."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.orders import PriorityQueue
from kaas.scheduling.policies.state import QueuedRequest

COMPARED = 64
"""Urgent requests of a client that are looked at for one device."""


class UrgentRequests:
    """The requests with deadlines. Urgent ones stand by client: those of one that may not go cost nothing.

    Fields:
        waiting: all of them, but for those whose deadlines no device meets any more.
    """

    def __init__(self) -> None:
        self.waiting: dict[QueuedRequest, None] = {}
        self._later: PriorityQueue[QueuedRequest] = PriorityQueue()  # by the time at which they are urgent
        self._now: dict[ClientShare, PriorityQueue[QueuedRequest]] = {}  # by deadline

    def add(self, request: QueuedRequest, from_s: float) -> None:
        """Add a request with a deadline, which is urgent from a time on."""
        self.waiting[request] = None
        self._later.put(request, (from_s, request.id))

    def discard(self, request: QueuedRequest) -> None:
        """Remove a request, if it is there."""
        self.waiting.pop(request, None)
        self._later.discard(request)
        own = self._now.get(request.share)
        if own is not None:
            own.discard(request)
            if not own:
                del self._now[request.share]

    def is_urgent(self, request: QueuedRequest, now_s: float) -> bool:
        """Return True if a request is urgent."""
        later = request in self._later and self._later.key(request)[0] <= now_s
        return later or request in self._now.get(request.share, ())

    def first(
        self,
        now_s: float,
        may_go: Callable[[ClientShare], bool],
        least_s: Callable[[QueuedRequest], float],
        cost_s: Callable[[QueuedRequest], float],
    ) -> QueuedRequest | None:
        """Return the urgent request of the earliest deadline that can be met, and forget those that no device meets.

        Args:
            now_s: the time.
            may_go: whether the requests of a client may go.
            least_s: the seconds that a request takes at least.
            cost_s: those that it takes if it goes now; infinite if it may not.
        """
        while (request := self._later.first()) is not None and self._later.key(request)[0] <= now_s:
            self._later.discard(request)
            own = self._now.setdefault(request.share, PriorityQueue())
            own.put(request, (request.deadline_s or 0.0, request.id))
        found: tuple[float, int, QueuedRequest] | None = None
        late = []
        for share, own in self._now.items():
            for request in islice(own, COMPARED) if may_go(share) else ():
                deadline_s = request.deadline_s or 0.0
                if found is not None and found[:2] < (deadline_s, request.id):
                    break
                if now_s + least_s(request) > deadline_s:
                    late.append(request)
                elif now_s + cost_s(request) <= deadline_s:
                    found = deadline_s, request.id, request
                    break
        for request in late:
            self.discard(request)
        return None if found is None else found[-1]
