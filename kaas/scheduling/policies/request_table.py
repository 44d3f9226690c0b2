"""The requests that a policy knows, by their ids, from the arrival to the end."""

from __future__ import annotations

from collections.abc import Iterator

from kaas.errors import PolicyError
from kaas.scheduling.events import RequestArrived, Running
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.state import Partition, QueuedRequest, WorkerGroup, WorkerState


class RequestTable:
    """All requests that are queued or run. Unknown ids are a `PolicyError`."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._requests: dict[int, QueuedRequest] = {}

    def add(self, event: RequestArrived, share: ClientShare, group: WorkerGroup) -> QueuedRequest:
        """Add a request that has arrived."""
        request = QueuedRequest(event.request, share, group, event.function)
        request.deadline_s, request.alone, request.arrived_s = event.deadline_s, event.alone, event.time_s
        if event.inputs:
            request.reads = self._holdings.working_set(event.inputs)
        self._requests[request.id] = request
        return request

    def adopt(self, running: Running, share: ClientShare, worker: WorkerState, now_s: float) -> QueuedRequest:
        """Add a request that an earlier epoch of the pool dispatched to a worker."""
        request = QueuedRequest(running.request, share, worker.group, running.function, worker=worker)
        request.ends_s = now_s if running.ends_s is None else running.ends_s
        self._requests[request.id] = worker.running[request.id] = request
        worker.group.running += 1
        return request

    def forget(self, request: QueuedRequest) -> None:
        """Remove a request that has ended, or left its queue."""
        del self._requests[request.id]
        self._holdings.release(request.reads)

    def __contains__(self, number: int) -> bool:
        return number in self._requests

    def __getitem__(self, number: int) -> QueuedRequest:
        if number not in self._requests:
            raise PolicyError(f"no such request: {number}")
        return self._requests[number]

    def awaiting_inputs(self, number: int) -> QueuedRequest:
        """Return a request that arrived before its inputs."""
        request = self[number]
        if request.ready or request.worker is not None:
            raise PolicyError(f"request {number} awaits no inputs")
        return request

    def queued(self, partition: Partition) -> list[QueuedRequest]:
        """Return the requests of a partition that no worker runs, by id."""
        queued = [each for each in self._requests.values() if each.worker is None and each.group.partition is partition]
        return sorted(queued, key=lambda each: each.id)

    def groups(self) -> Iterator[WorkerGroup]:
        """Return an iterator over the groups of all requests."""
        return (request.group for request in self._requests.values())
