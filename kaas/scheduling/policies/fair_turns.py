"""Fair turns between clients (start-time fair queueing, as DLPM 2025 has it for caches): none is far ahead of another.

A client may go on while its device time per weight is at most T ahead of the least of all clients that wait.
"""

from __future__ import annotations

import math

from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.orders import PriorityQueue


class FairTurns:
    """The clients that wait, by their device time. Those of different priority do not compete.

    Args:
        lead_s: T; infinite if clients have no shares.
    """

    def __init__(self, lead_s: float) -> None:
        self._lead_s = lead_s
        self._waiting: dict[int, PriorityQueue[ClientShare]] = {}
        self._ahead: dict[int, PriorityQueue[ClientShare]] = {}
        self._priority: dict[ClientShare, int] = {}

    def may_go(self, share: ClientShare) -> bool:
        """Return True if a client is not too far ahead."""
        priority = self._priority.get(share)
        return priority is None or share not in self._ahead[priority]

    def changed(self, share: ClientShare, *, waits: bool) -> list[ClientShare]:
        """Take in that a client waits or does not, or that its time changed. Return those that may go, or no longer."""
        if self._lead_s == math.inf:
            return []
        if not waits:
            return self._leave(share)
        moved = self._priority.get(share, share.priority) != share.priority
        changed = self._leave(share) if moved else []
        priority = self._priority[share] = share.priority
        waiting = self._waiting.setdefault(priority, PriorityQueue())
        self._ahead.setdefault(priority, PriorityQueue())
        waiting.put(share, (share.time_s,))
        return changed + self._settle(share, priority)

    def _leave(self, share: ClientShare) -> list[ClientShare]:
        priority = self._priority.pop(share, None)
        if priority is None:
            return []
        self._waiting[priority].discard(share)
        self._ahead[priority].discard(share)
        return self._settle(None, priority)

    def _settle(self, share: ClientShare | None, priority: int) -> list[ClientShare]:
        """Hold a client back that is too far ahead, and let those go that no longer are."""
        waiting, ahead = self._waiting[priority], self._ahead[priority]
        least = waiting.first()
        if least is None:
            return []
        most_s = least.time_s + self._lead_s
        changed = []
        if share is not None:
            before = share in ahead
            if share.time_s > most_s:
                ahead.put(share, (share.time_s,))
            else:
                ahead.discard(share)
            if before != (share in ahead):
                changed.append(share)
        while (first := ahead.first()) is not None and first.time_s <= most_s:
            ahead.discard(first)
            changed.append(first)
        return changed
