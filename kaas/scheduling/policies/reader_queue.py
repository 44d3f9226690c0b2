"""A priority queue of what reads working sets: also the first that finds its working set on a device."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from kaas.scheduling.policies.holdings import NOTHING, WorkingSet
from kaas.scheduling.policies.orders import PriorityQueue, SortKey

Reader = TypeVar("Reader")


class ReaderQueue(PriorityQueue[Reader]):
    """Items by their keys, each with the working set that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self._reads: dict[Reader, WorkingSet] = {}
        self._readers: dict[WorkingSet, PriorityQueue[Reader]] = {}

    def put_reader(self, item: Reader, key: SortKey, reads: WorkingSet) -> None:
        """Add an item, or give it another key or working set."""
        if item in self and self._reads[item] is not reads:
            self.discard(item)
        self.put(item, key)
        self._reads[item] = reads
        self._readers.setdefault(reads, PriorityQueue()).put(item, key)

    def discard(self, item: Reader) -> None:
        """Remove an item, if it is there."""
        super().discard(item)
        reads = self._reads.pop(item, None)
        if reads is not None:
            self._readers[reads].discard(item)
            if not self._readers[reads]:
                del self._readers[reads]

    def first_reading(self, held: Collection[WorkingSet]) -> Reader | None:
        """Return the first item that reads one of these sets, or nothing; None if there is none.

        All items are walked through by their keys, and the sets in turns with them, until either walk is complete.
        """
        found = self.first_of(NOTHING)
        for item, reads in zip(self, held, strict=False):
            if self._reads[item] in held:
                return item if found is None else min(item, found, key=self.key)
            first = self.first_of(reads)
            if first is not None and (found is None or self.key(first) < self.key(found)):
                found = first
        return found

    def reads(self, reads: WorkingSet) -> bool:
        """Return True if an item reads a working set."""
        return reads in self._readers

    def first_of(self, reads: WorkingSet) -> Reader | None:
        """Return the first item that reads a working set."""
        readers = self._readers.get(reads)
        return None if readers is None else readers.first()
