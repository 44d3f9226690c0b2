"""A priority queue whose items get new keys: a heap in which an item's earlier entries are skipped."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item")
Keyed = tuple[float, ...]
SLACK = 64
"""Entries beyond four for each item, from which on the heap is made anew."""


class PriorityQueue(Generic[Item]):
    """Items by their keys, the least first. Equal keys: the one that was put first.

    put, discard and first take a time that grows with the logarithm of the number of items.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[Keyed, int, Item]] = []
        self._entries: dict[Item, tuple[Keyed, int, Item]] = {}
        self._puts = count()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: Item) -> bool:
        return item in self._entries

    def key(self, item: Item) -> Keyed:
        """Return the key of an item that is there."""
        return self._entries[item][0]

    def put(self, item: Item, key: Keyed) -> None:
        """Add an item, or give it another key."""
        known = self._entries.get(item)
        if known is not None and known[0] == key:
            return
        if len(self._heap) > SLACK + 4 * len(self._entries):
            self._heap = list(self._entries.values())
            heapq.heapify(self._heap)
        entry = self._entries[item] = (key, next(self._puts), item)
        heapq.heappush(self._heap, entry)

    def discard(self, item: Item) -> None:
        """Remove an item, if it is there."""
        self._entries.pop(item, None)

    def first(self) -> Item | None:
        """Return the item of the least key; None if there is none."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(heap)
        return None

    def __iter__(self) -> Iterator[Item]:
        """Return an iterator over the items by their keys. To look at the first n takes n log n steps."""
        heap, entries = self._heap, self._entries
        frontier = [(heap[0], 0)] if heap else []
        while frontier:
            entry, place = heapq.heappop(frontier)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heapq.heappush(frontier, (heap[child], child))
            if entries.get(entry[2]) is entry:
                yield entry[2]
