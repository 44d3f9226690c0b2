"""Says why a request waits and which shares miss their least, and lets an observer see how requests are chosen.

No decision depends on any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kaas.scheduling.candidates import Candidate, Destination, Why
from kaas.scheduling.events import RequestDone
from kaas.scheduling.policies.device_shares import DeviceShares
from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.fair_share import ClientShare, FairShare
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.requests import RequestTable
from kaas.scheduling.policies.state import Chosen, QueuedRequest, RequestOrder, WorkerState

Observer = Callable[[Why, WorkerState], None]
"""Is told of a request that goes next, as it was just before that, and of its worker."""


class Explained:
    """A policy that explains itself by its state."""

    now_s: float
    _requests: RequestTable
    _placement: Placement
    _estimates: Estimates
    _fair_share: FairShare
    _device_shares: DeviceShares

    def why(self, request: int) -> Why:
        """Return why a request has not gone yet.

        Raises:
            PolicyError: no such request is queued or runs.
        """
        asked = self._requests[request]
        candidates = asked.group.order.candidates() if asked.ready else []
        return self._why(asked, candidates)

    def waits_for(self, request: int) -> str:
        """Return in words what a request waits for.

        Raises:
            PolicyError: no such request is queued or runs.
        """
        return self._waits_for(self._requests[request])

    def holds(self, request: int) -> bool:
        """Return True if a ready request may not run now: limits of its client hold it, or it fits no free device."""
        asked = self._requests[request]
        return request in asked.group.aside.get(asked.share, ()) or self._fair_share.held(asked.share, self.now_s)

    def missed_windows(self) -> Mapping[str, int]:
        """Return how many windows each share has missed on all devices, as `TokenScheduler` counts them."""
        return self._device_shares.missed

    def watch(self, observer: Observer) -> None:
        """Tell an observer, from now on, of each request that an order gives."""
        placement = self._placement
        make = placement.order
        placement.order = lambda serves: WatchedOrder(make(serves), self._why, observer)
        for group in placement.groups.values():
            group.order = WatchedOrder(group.order, self._why, observer)

    def _why(self, asked: QueuedRequest, candidates: list[Candidate]) -> Why:
        if asked.ready and all(each.request != asked.id for each in candidates):
            held = "must run alone" if asked.alone else asked.group.order.obstacle(asked) or "behind others of its flow"
            candidates = [*candidates, Candidate(asked.id, asked.share.client, asked.function, {}, {}, held)]
        return Why(
            asked.id,
            self._waits_for(asked),
            tuple(sorted(candidates, key=lambda each: each.place)),
            tuple(self._destination(asked, worker) for worker in asked.group.workers.values()),
        )

    def _waits_for(self, request: QueuedRequest) -> str:
        group = request.group
        if request.worker is not None:
            return f"its end on worker {request.worker.id}"
        if request.late(self.now_s):
            return "nothing: its deadline has passed"
        if not request.ready:
            return "its inputs"
        if request.alone:
            return "a worker without other requests"
        share = request.share
        if share.max_running is not None and share.running >= share.max_running:
            return "limits of its client"
        if request.device_share:
            return f"the turn of its share {request.device_share!r}"
        if obstacle := group.order.obstacle(request):
            return obstacle
        if not any(not worker.starting and not worker.stopping for worker in group.workers.values()):
            return "a worker to start" if group.provided else "a device"
        if all(worker.gated for worker in group.open.values()):
            return "a free slot"
        return "other requests to go first"

    def _destination(self, request: QueuedRequest, worker: WorkerState) -> Destination:
        device = worker.device
        ends_s = [each.ends_s for each in worker.running.values()] or [worker.expected_s]
        free = worker.usable and not worker.starting
        figures = {
            "running": len(worker.running),
            "free_in_s": 0.0 if free else max(0.0, min(ends_s) - self.now_s),
            "load_s": self._estimates.load_s(request, device.spec),
            "run_s": self._estimates.run_s(request, device.spec),
            "missing_bytes": request.reads.missing_bytes(device.index),
        }
        return Destination(worker.id, device.index, figures, _held(worker))


def _held(worker: WorkerState) -> str:
    if worker.starting:
        return "starts"
    if worker.stopping:
        return "stops"
    if worker.alone is not None:
        return f"for request {worker.alone.id} alone"
    if not worker.free:
        return "no free slot"
    return "another worker of the device runs a request" if worker.gated else ""


class WatchedOrder(RequestOrder):
    """An order that tells an observer why each request goes."""

    def __init__(
        self, order: RequestOrder, why: Callable[[QueuedRequest, list[Candidate]], Why], observer: Observer
    ) -> None:
        self._order = order
        self._why = why
        self._observer = observer

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker.

        A choice may change scores on its way: promises that it takes back, before requests are compared; counts of
        passed-over requests, after that. So the observer is told of the moment at which the chosen request is first.
        """
        before = self._order.candidates()
        chosen = self._order.next()
        if chosen is not None:
            request, worker = chosen
            after = self._order.candidates()
            why = self._why(request, after)
            if why.candidates[0].request != request.id:
                held = {each.request: each.held for each in after}  # requests promised on the way were passed over
                why = self._why(request, [replace(each, held=held.get(each.request, each.held)) for each in before])
            self._observer(replace(why, waits_for="nothing: it goes"), worker)
        return chosen

    def add(self, request: QueuedRequest) -> None:
        """Add a request."""
        self._order.add(request)

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request."""
        self._order.drop(request)

    def park(self, share: ClientShare) -> None:
        """Pass over a client."""
        self._order.park(share)

    def unpark(self, share: ClientShare) -> None:
        """Count a client in again."""
        self._order.unpark(share)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request."""
        return self._order.first(skipped)

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request has begun on a worker."""
        self._order.dispatched(request, worker)

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request has ended on a worker."""
        self._order.freed(request, worker)

    def ended(self, request: QueuedRequest, event: RequestDone) -> None:
        """Take in what a request took."""
        self._order.ended(request, event)

    def settled(self) -> None:
        """Take in that all requests have been dispatched that can go now."""
        self._order.settled()

    def lost(self, worker: WorkerState) -> None:
        """Take in that a worker has ended."""
        self._order.lost(worker)

    def candidates(self) -> list[Candidate]:
        """Return the requests that compete."""
        return self._order.candidates()

    def obstacle(self, request: QueuedRequest) -> str:
        """Return why a request may not go now."""
        return self._order.obstacle(request)
