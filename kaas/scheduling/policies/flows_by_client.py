"""Flows in the order of their keys, without those of clients that may not go now. To hold a client back takes no time.

Clients cross a small lead at nearly every event, and a client may have thousands of flows. So a crossing moves none: of
each client only the first flow stands in the common order, and others stand behind it. That of a client that is held
back stays until it is looked at, and is set aside then until the client may go again.
"""

from __future__ import annotations

from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.orders import Entry, PriorityQueue, SortKey
from kaas.scheduling.policies.state import Queue


class HeldBack(dict[ClientShare, "dict[int, FlowsByClient]"]):
    """The clients that may not go now, each with the orders in which its first flow is set aside."""

    def hold(self, share: ClientShare) -> None:
        """Hold a client back, if it is not yet."""
        self.setdefault(share, {})

    def release(self, share: ClientShare) -> None:
        """Let a client go again, if it is held back."""
        for flows in self.pop(share, {}).values():
            flows.back(share)


class FlowsByClient(PriorityQueue[Queue]):
    """The first flow of each client by its key, but for those that are set aside; and all flows of each client.

    Args:
        held_back: the clients that `least` passes over, for all orders together.
    """

    def __init__(self, held_back: HeldBack) -> None:
        super().__init__()
        self._held_back = held_back
        self._firsts: dict[ClientShare, Entry] = {}  # those that are set aside, too
        self._flows: dict[ClientShare, PriorityQueue[Queue]] = {}  # of clients with several

    def __len__(self) -> int:
        """Return the number of clients with flows."""
        return len(self._firsts)

    def put(self, queue: Queue, key: SortKey) -> None:
        """Add a flow, or give it another key."""
        share = queue.share
        flows = self._flows.get(share)
        if flows is None and (first := self._firsts.get(share)) is not None and first[-1] is not queue:
            flows = self._flows[share] = PriorityQueue()
            flows.put(first[-1], first[:-2])
        if flows is not None:
            flows.put(queue, key)
            self._lead(share, flows)
        else:
            super().put(queue, key)
            self._firsts[share] = self[queue]

    def discard(self, queue: Queue) -> None:
        """Remove a flow that is there."""
        share = queue.share
        flows = self._flows.get(share)
        if flows is not None:
            flows.discard(queue)
        if flows:
            self._lead(share, flows)
        else:
            self._flows.pop(share, None)
            del self._firsts[share]
            super().discard(queue)

    def _lead(self, share: ClientShare, flows: PriorityQueue[Queue]) -> None:
        """Let the first of a client's flows stand for the client."""
        before, first = self._firsts[share], flows.least()
        if first is not before:
            super().discard(before[-1])
            super().put(first[-1], first[:-2])
            self._firsts[share] = first

    def back(self, share: ClientShare) -> None:
        """Take in the first flow of a client, which was set aside, if the client still has one."""
        first = self._firsts.get(share)
        if first is not None:
            super().put(first[-1], first[:-2])

    def least(self) -> Entry:
        """Return the least key of clients that may go, followed by other things, with its flow at the end; or ()."""
        while block := self._blocks[0]:
            least: Entry = block[0]
            share = least[-1].share
            if share not in self._held_back:
                return least
            self._held_back[share][id(self)] = self
            super().discard(least[-1])
        return ()
