"""Fair turns between clients (start-time fair queueing, as DLPM 2025 has it for caches): none is far ahead of another.

A client may go on while its device time per weight is at most T ahead of the least of all clients that wait. A client
that begins to wait has at least the virtual time, which is the least time of those that waited so far: what a client
did not ask for is no credit.
"""

from __future__ import annotations

import math

from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.orders import PriorityQueue

MOST_LIFTS = 8192
"""Clients whose lifts are remembered, at most; the others are lifted anew when they wait."""


class Turns:
    """The clients of one priority that wait, by their times.

    Fields:
        now_s: the virtual time; it never falls. ahead: those too far ahead to go.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waiting: PriorityQueue[ClientShare] = PriorityQueue()
        self.ahead: PriorityQueue[ClientShare] = PriorityQueue()


class FairTurns:
    """The clients that wait, by their device time. Those of different priority do not compete.

    Args:
        lead_s: T; infinite if clients have no shares.
    """

    def __init__(self, lead_s: float) -> None:
        self._lead_s = lead_s
        self._turns: dict[int, Turns] = {}
        self._priority: dict[ClientShare, int] = {}  # of those that wait
        self._lifts: dict[ClientShare, float] = {}  # seconds that a client's time was lifted by

    def may_go(self, share: ClientShare) -> bool:
        """Return True if a client is not too far ahead."""
        priority = self._priority.get(share)
        return priority is None or share not in self._turns[priority].ahead

    def changed(self, share: ClientShare, *, waits: bool) -> list[ClientShare]:
        """Take in that a client waits or does not, or that its time changed. Return those that may go, or no longer."""
        if self._lead_s == math.inf:
            return []
        left: list[ClientShare] = []
        if not waits or self._priority.get(share, share.priority) != share.priority:
            left = self._leave(share)
        if not waits:
            return left
        turns = self._turns.setdefault(share.priority, Turns())
        if share not in self._priority:
            self._priority[share] = share.priority
            self._lift(share, turns.now_s)
        turns.waiting.put(share, (self._time_s(share),))
        return left + self._settle(share, turns)

    def _time_s(self, share: ClientShare) -> float:
        return share.time_s + self._lifts.get(share, 0.0)

    def _lift(self, share: ClientShare, least_s: float) -> None:
        missing_s = least_s - self._time_s(share)
        if missing_s > 0:
            self._lifts[share] = self._lifts.get(share, 0.0) + missing_s
            if len(self._lifts) > MOST_LIFTS:
                self._lifts = {each: self._lifts[each] for each in self._priority if each in self._lifts}

    def _leave(self, share: ClientShare) -> list[ClientShare]:
        priority = self._priority.pop(share, None)
        if priority is None:
            return []
        turns = self._turns[priority]
        turns.waiting.discard(share)
        turns.ahead.discard(share)
        return self._settle(None, turns)

    def _settle(self, share: ClientShare | None, turns: Turns) -> list[ClientShare]:
        """Hold a client back that is too far ahead, and let those go that no longer are."""
        least = turns.waiting.first()
        if least is None:
            return []
        (least_s,) = turns.waiting.key(least)
        turns.now_s = max(turns.now_s, least_s)
        most_s = turns.now_s + self._lead_s
        changed = []
        if share is not None:
            before, time_s = share in turns.ahead, self._time_s(share)
            if time_s > most_s:
                turns.ahead.put(share, (time_s,))
            else:
                turns.ahead.discard(share)
            if before != (share in turns.ahead):
                changed.append(share)
        while (first := turns.ahead.first()) is not None and turns.ahead.key(first)[0] <= most_s:
            turns.ahead.discard(first)
            changed.append(first)
        return changed
