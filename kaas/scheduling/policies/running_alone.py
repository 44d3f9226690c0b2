"""Workers for requests that must run alone, since they may have ended a device: no other request runs beside them."""

from __future__ import annotations

from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import QueuedRequest, WorkerState


class RunningAlone:
    """Keeps workers free of other requests."""

    def __init__(self, placement: Placement, fair_share: FairShare) -> None:
        self._placement = placement
        self._fair_share = fair_share

    def claim(self, request: QueuedRequest, now_s: float) -> WorkerState | None:
        """Return a worker on which nothing runs; if there is none, keep the least busy one free of other requests.

        A request that limits of its client hold back gets none.
        """
        if request.share.limited and self._fair_share.held(request.share, now_s):
            self.release(request)
            return None
        worker = _least_busy_for(request)
        if worker is None:
            return None
        self.release(request)
        if not worker.running and not worker.gated:
            return worker
        worker.alone = request
        self._placement.offer(worker)
        return None

    def release(self, request: QueuedRequest) -> None:
        """Let the worker that is kept free for a request take others again."""
        for worker in request.group.workers.values():
            if worker.alone is request:
                worker.alone = None
                self._placement.offer(worker)


def _least_busy_for(request: QueuedRequest) -> WorkerState | None:
    """Return the least busy worker that may be kept for a request."""
    up = [worker for worker in request.group.workers.values() if not worker.starting and not worker.stopping]
    own = [worker for worker in up if worker.alone is None or worker.alone is request]
    key = lambda w: (len(w.running) + w.gated, w.alone is not request, w.device.index, w.id)  # noqa: E731
    return min(own, default=None, key=key)
