"""All requests of a policy, by their ids."""

from __future__ import annotations

from typing import NoReturn

from kaas.errors import PolicyError
from kaas.scheduling.events import Running
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.holdings import NOTHING, Holdings
from kaas.scheduling.policies.state import Partition, QueuedRequest, WorkerState


class RequestTable(dict[int, QueuedRequest]):
    """All requests that are queued or run, by id. Unknown ids are a `PolicyError`."""

    def __init__(self, holdings: Holdings) -> None:
        super().__init__()
        self._holdings = holdings

    def adopt(self, running: Running, share: ClientShare, worker: WorkerState, now_s: float) -> QueuedRequest:
        """Add a request that an earlier epoch of the pool dispatched to a worker."""
        request = QueuedRequest(running.request, share, worker.group, running.function, worker=worker)
        request.ends_s = now_s if running.ends_s is None else running.ends_s
        self[request.id] = worker.running[request.id] = request
        worker.group.running += 1
        return request

    def forget(self, request: QueuedRequest) -> None:
        """Remove a request that has ended, or left its queue."""
        del self[request.id]
        if request.reads is not NOTHING:
            self._holdings.release(request.reads)

    def __missing__(self, number: int) -> NoReturn:
        raise PolicyError(f"no such request: {number}")

    def awaiting_inputs(self, number: int) -> QueuedRequest:
        """Return a request that arrived before its inputs."""
        request = self[number]
        if request.ready or request.worker is not None:
            raise PolicyError(f"request {number} awaits no inputs")
        return request

    def queued(self, partition: Partition) -> list[QueuedRequest]:
        """Return the requests of a partition that no worker runs, by id."""
        queued = [each for each in self.values() if each.worker is None and each.group.partition is partition]
        return sorted(queued, key=lambda each: each.id)
