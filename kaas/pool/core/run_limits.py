"""Which runs have taken too long: one timer for all, since a limit is hardly ever reached."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping

from kaas.pool.core.records import Request, WorkerRecord
from kaas.scheduling.events import WorkerKind

GRACE_S = 2.0
"""How much later than the run limit the pool itself ends an executor, which may do so more gently, and say more. Also
how long it waits for the answer of a request that ran for too long, once others know of it."""


class RunLimits:
    """Belongs to one event loop.

    Args:
        limit_s: of a run, from its dispatch. workers: those of the pool, which changes them.
        overrun: ends a request that has run for too long, and its worker with it.
    """

    def __init__(
        self,
        limit_s: float,
        workers: Mapping[int, WorkerRecord],
        overrun: Callable[[Request, WorkerRecord], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._limit_s = limit_s
        self._workers = workers
        self._overrun = overrun
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._look_s = math.inf  # when; never while nothing runs

    def begun(self, request: Request) -> None:
        """A request runs from now on."""
        ends_s = request.dispatched_s + self._limit_s  # at the earliest: who looks then knows better
        if ends_s < self._look_s:
            self._look_at(ends_s)

    def look(self) -> None:
        """End those that have taken too long."""
        now_s = self._loop.time()
        try:
            for request, worker, ends_s in list(self.runs()):
                if ends_s <= now_s and request.worker is worker:  # else that is gone, by another slot's limit perhaps
                    self._overrun(request, worker)
        finally:
            self._look_at(min((ends_s for _, _, ends_s in self.runs()), default=math.inf))

    def _look_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._look_s = time_s
        self._timer = self._loop.call_at(time_s, self.look) if time_s < math.inf else None

    def runs(self) -> Iterator[tuple[Request, WorkerRecord, float]]:
        """All, with the time when each must have ended, but for those that have told of their device's loss."""
        for worker in self._workers.values():
            limit_s = self._limit_s + (0 if worker.kind is WorkerKind.ETASK else GRACE_S)
            for request in worker.running.values():
                if request.id not in worker.lost:
                    yield request, worker, request.dispatched_s + limit_s
