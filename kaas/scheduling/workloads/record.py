"""A pool's record as a workload: its requests in the order in which their inputs were ready."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from pathlib import Path

from kaas.errors import InvalidRecord
from kaas.scheduling.decisions import Dispatch, Reject
from kaas.scheduling.events import RequestCancelled
from kaas.scheduling.recording import PoolEpoch, read
from kaas.scheduling.simulation.recorded import RecordedRequest, RecordedRequests, functions_of
from kaas.scheduling.simulation.scenario import RecordedWorkload, ScenarioFunction, ScenarioRequest


class RecordStream:
    """The requests of a record that ran to their end. The record is read twice: for the functions, and the requests."""

    def __init__(self, workload: RecordedWorkload) -> None:
        self._path = Path(workload.record)
        self._functions: dict[str, ScenarioFunction] = {}

    def functions(self) -> dict[str, ScenarioFunction]:
        """Return the functions, by the sums of their runs.

        Raises:
            InvalidRecord: the file is no record.
        """
        self._functions = functions_of(self._ran())
        return self._functions

    def requests(self) -> Iterator[ScenarioRequest]:
        """Yield the requests of these functions; raise as `functions`."""
        began_s: float | None = None
        for ran in self._ran():
            began_s = ran.ready_s if began_s is None else began_s
            yield ran.as_request(self._functions[ran.arrived.function], began_s)

    def _ran(self) -> Iterator[RecordedRequest]:
        """Yield the requests that ran, by the time at which they were ready.

        A request waits here for the end of those that arrived before it was ready: they may have been ready sooner.
        """
        requests = RecordedRequests()
        dispatched: set[int] = set()
        ended: list[tuple[float, int, RecordedRequest]] = []
        for number, entry in read(self._path):
            if isinstance(entry, PoolEpoch):
                requests.begin(entry.devices)
                dispatched.clear()
            elif not requests.devices:
                message = f"{self._path}: an event before the first epoch"
                raise InvalidRecord(message, path=str(self._path), line=number)
            else:
                event, decisions = entry
                if (ran := requests.add(event, decisions or ())) is not None:
                    heapq.heappush(ended, (ran.ready_s, ran.place, ran))
                    dispatched.discard(ran.arrived.request)
                elif isinstance(event, RequestCancelled) and event.request not in dispatched:
                    requests.open.pop(event.request, None)  # no end follows
                for decision in decisions or ():
                    if isinstance(decision, Dispatch):
                        dispatched.add(decision.request)
                    elif isinstance(decision, Reject):
                        requests.open.pop(decision.request, None)
            oldest = next(iter(requests.open.values()), None)
            while ended and (oldest is None or ended[0][:2] <= (oldest.arrived_s, oldest.place)):
                yield heapq.heappop(ended)[2]
        if not requests.devices:
            raise InvalidRecord(f"{self._path}: no epoch of a pool in it", path=str(self._path), line=0)
        yield from (ran for _, _, ran in sorted(ended))
