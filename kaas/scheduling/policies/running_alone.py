"""Workers for requests that must run alone, since they may have ended a device: no other request runs beside them."""

from __future__ import annotations

from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import QueuedRequest, WorkerGroup, WorkerState


class RunningAlone:
    """Keeps workers free of other requests."""

    def __init__(self, placement: Placement, fair_share: FairShare) -> None:
        self._placement = placement
        self._fair_share = fair_share

    def next(self, group: WorkerGroup, now_s: float) -> tuple[QueuedRequest, WorkerState] | None:
        """Return the oldest request that must run alone and can, with its worker; keep workers free for the others.

        A request that limits of its client hold back gets none, and leaves the one that is kept for it to others.
        """
        requests = sorted(group.alone.values(), key=lambda request: request.id)
        held = [each for each in requests if each.share.limited and self._fair_share.held(each.share, now_s)]
        for request in held:
            self.release(request)
        for request in requests:
            if request not in held and (worker := self._claim(request)) is not None:
                return request, worker
        return None

    def _claim(self, request: QueuedRequest) -> WorkerState | None:
        """Return a worker on which nothing runs; if there is none, keep the least busy one free of other requests."""
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
