"""Fair turns between clients (start-time fair queueing; DLPM, 2025, has it for caches): none is far ahead of another.

A client may go on while its device time per weight is at most a lead ahead of the least of all clients that wait. Its
time is at least the virtual time at which its oldest waiting request came: what a client did not ask for is no credit,
although it always has some request waiting. The virtual time is the largest time at which a client's request began, as
in SFQ(D) (Jin, Chase, Kaur 2004). While a client goes on waiting, that is forgiven to others up to `FORGIVEN` leads
only: one that always has few requests open asks for no more than it gets, and gets its share nevertheless.
"""

from __future__ import annotations

import math
from collections import defaultdict

from kaas.scheduling.policies.fair_share import ClientShare, FairShare
from kaas.scheduling.policies.orders import PriorityQueue
from kaas.scheduling.policies.state import QueuedRequest

FORGIVEN = 2
"""Leads by which others may get ahead for good of a client that goes on waiting."""


class Turns:
    """The clients of one priority that wait, by their times.

    Fields:
        now_s: the virtual time; it never falls. ahead: those too far ahead to go.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waiting: PriorityQueue[ClientShare] = PriorityQueue()
        self.ahead: PriorityQueue[ClientShare] = PriorityQueue()

    @property
    def least_s(self) -> float:
        """The time of the client that has had least; infinite if none waits."""
        least_s: float = self.waiting.least()[0] if self.waiting else math.inf
        return least_s


class FairTurns:
    """The clients that wait, by their device time. Those of different priority do not compete.

    Args:
        fair_share: the clients' device times. lead_s: per weight; infinite if clients have no shares.
    """

    def __init__(self, fair_share: FairShare, lead_s: float) -> None:
        self._fair_share = fair_share
        self._lead_s = lead_s
        self._turns = defaultdict[int, Turns](Turns)  # by priority
        self._priority: dict[ClientShare, int] = {}  # of those that wait
        self._forgiven_s: dict[ClientShare, float] = {}  # since it began to wait
        self._came: dict[ClientShare, dict[int, float]] = {}  # the virtual time of each waiting request, oldest first

    def may_go(self, share: ClientShare) -> bool:
        """Return True if a client is not too far ahead."""
        priority = self._priority.get(share)
        return priority is None or share not in self._turns[priority].ahead

    def yields(self, share: ClientShare) -> bool:
        """Return True if a client, which need not wait itself, is too far ahead of one that waits."""
        turns = self._turns.get(share.priority)
        return turns is not None and share.time_s > turns.least_s + self._lead_s

    def waits(self, share: ClientShare) -> bool:
        """Return True if a client counts among those of its priority that wait."""
        return self._priority.get(share) == share.priority

    def passes(self, share: ClientShare) -> None:
        """Take in that a request of a client comes and goes, while no client waits."""
        if self._lead_s < math.inf:
            self._fair_share.lift(share, self._turns[share.priority].now_s)

    def came(self, request: QueuedRequest) -> None:
        """Take in that a request waits."""
        if self._lead_s < math.inf:
            came = self._came.get(request.share)
            if came is None:
                came = self._came[request.share] = {}
            came[request.id] = self._turns[request.share.priority].now_s

    def left(self, request: QueuedRequest) -> None:
        """Take in that a request waits no longer."""
        if self._lead_s < math.inf:
            came = self._came[request.share]
            del came[request.id]
            if not came:
                del self._came[request.share]

    def began(self, request: QueuedRequest) -> None:
        """Take in that a request, which is charged with its estimate, has begun: time has come to its start."""
        if self._lead_s < math.inf:
            share = request.share
            turns = self._turns[share.priority]
            start_s = share.charged_s / share.weight - (request.estimate_s or 0.0) / share.weight
            if start_s > turns.now_s:
                turns.now_s = start_s

    def changed(self, share: ClientShare, *, waits: bool) -> list[ClientShare]:
        """Take in that a client waits or does not, or that its time changed. Return those that may go, or no longer."""
        if self._lead_s == math.inf:
            return []
        left: list[ClientShare] = []
        if not waits or self._priority.get(share, share.priority) != share.priority:
            left = self._leave(share)
        if not waits:
            return left
        turns = self._turns[share.priority]
        if share not in self._priority:
            self._priority[share] = share.priority
            self._forgiven_s[share] = 0.0
            self._fair_share.lift(share, turns.now_s)
        else:
            self._forgive(share)
        time_s = share.time_s
        turns.waiting.put(share, (time_s,))
        after = time_s > turns.waiting.least()[0] + self._lead_s
        if not after and not turns.ahead:
            return left
        before = share in turns.ahead
        if after:
            turns.ahead.put(share, (time_s,))
        elif before:
            turns.ahead.discard(share)
        return [*left, *([share] if before != after else ()), *self._settle(turns)]

    def _forgive(self, share: ClientShare) -> None:
        """Let the claim of a client that goes on waiting begin when its oldest waiting request came."""
        missing_s = next(iter(self._came[share].values())) - share.time_s
        if missing_s > 0:
            missing_s = min(missing_s, FORGIVEN * self._lead_s - self._forgiven_s[share])
            self._forgiven_s[share] += missing_s
            self._fair_share.lift(share, share.time_s + missing_s)

    def _leave(self, share: ClientShare) -> list[ClientShare]:
        priority = self._priority.pop(share, None)
        if priority is None:
            return []
        del self._forgiven_s[share]
        turns = self._turns[priority]
        turns.waiting.discard(share)
        if not turns.ahead:
            return []
        before = share in turns.ahead
        turns.ahead.discard(share)
        return [*([share] if before else ()), *self._settle(turns)]

    def _settle(self, turns: Turns) -> list[ClientShare]:
        """Return the clients that are no longer too far ahead, and let them go."""
        changed = []
        while (first := turns.ahead.first()) is not None:
            if turns.ahead.least()[0] > turns.waiting.least()[0] + self._lead_s:
                break
            turns.ahead.discard(first)
            changed.append(first)
        return changed
