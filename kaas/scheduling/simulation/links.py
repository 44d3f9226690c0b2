"""Links over which devices load: what loads at the same time shares a link equally. Times are whole picoseconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from kaas.scheduling.simulation.clock import SECOND_PS, Clock, Turn


class SimulatedLink:
    """Processor sharing: each of n loads with bytes to come gets 1/n of the rate.

    The bytes that each load has got since the link was idle are one number, as each gets the same: a load ends when
    that number has grown by its own bytes.

    Args:
        clock: of the simulation. rate: bytes in a second.
    """

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._per_ps = rate / SECOND_PS
        self._got = 0.0
        self._since_ps = 0
        self._loads: list[
            tuple[float, int, int, Callable[[None], None]]
        ] = []  # a heap: their last byte, their number, device, what then
        self._numbers = count()
        self._plans = 0

    def load(self, device: int, nbytes: int, then: Callable[[None], None]) -> None:
        """Begin a load of so many bytes to a device; `then` is called when the last one is there."""
        self._advance()
        heapq.heappush(self._loads, (self._got + nbytes, next(self._numbers), device, then))
        self._plan()

    def drop(self, device: int) -> None:
        """End the loads of a device, which is gone."""
        self._advance()
        self._loads = [load for load in self._loads if load[2] != device]
        heapq.heapify(self._loads)
        self._plan()

    def _advance(self) -> None:
        """Add the bytes that each load got since the last change of the loads, up to now."""
        now_ps = self._clock.now_ps
        if self._loads:
            self._got += (now_ps - self._since_ps) * self._per_ps / len(self._loads)
        else:
            self._got = 0.0
        self._since_ps = now_ps

    def _plan(self) -> None:
        """Put the end of the next load on the agenda, in the place of the last plan."""
        self._plans += 1
        if self._loads:
            last, _, device, _ = self._loads[0]
            left_ps = round(max(0.0, last - self._got) * len(self._loads) / self._per_ps)
            self._clock.at(self._clock.now_ps + left_ps, Turn.COMPLETION, (device, -1), self._end, self._plans)

    def _end(self, plan: int) -> None:
        """End the loads whose last byte has come."""
        if plan != self._plans:
            return
        self._advance()
        self._got = max(self._got, self._loads[0][0])  # the time was rounded
        ended = []
        while self._loads and self._loads[0][0] <= self._got:
            ended.append(heapq.heappop(self._loads))
        self._plan()
        for _, _, _, then in ended:
            then(None)
