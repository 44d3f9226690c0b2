"""Readers of working sets: the first that reads each set, and the first of all that finds its set on a device."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeVar

from kaas.scheduling.policies.holdings import NOTHING, WorkingSet
from kaas.scheduling.policies.orders import Entry, PriorityQueue, SortKey

Reader = TypeVar("Reader")


class Readers(dict[Reader, WorkingSet]):
    """Items by the working sets that they read, and by their keys. It is a dict, which only its methods change.

    Args:
        make: makes the queue of the readers of one working set.
    Fields:
        sets: the readers of each working set. homeless: the sets that no device holds whole, as far as `whole_changed`
            is called.
    """

    def __init__(self, make: Callable[[], PriorityQueue[Reader]]) -> None:
        super().__init__()
        self._make = make
        self.sets: dict[WorkingSet, PriorityQueue[Reader]] = {}
        self.homeless: dict[WorkingSet, None] = {}

    def put(self, item: Reader, key: SortKey, reads: WorkingSet) -> None:
        """Add an item, or give it another key or working set."""
        if self.get(item, reads) is not reads:
            self.discard(item)
        self[item] = reads
        readers = self.sets.get(reads)
        if readers is None:
            readers = self.sets[reads] = self._make()
            self.whole_changed(reads)
        readers.put(item, key)

    def discard(self, item: Reader) -> None:
        """Remove an item, if it is there."""
        reads = self.pop(item, None)
        if reads is not None:
            self.sets[reads].discard(item)
            if not self.sets[reads]:
                del self.sets[reads]
                self.homeless.pop(reads, None)

    def whole_changed(self, reads: WorkingSet) -> None:
        """Take in that a device holds a working set whole, or none any more."""
        if reads.whole:
            self.homeless.pop(reads, None)
        elif reads.nbytes and reads in self.sets:
            self.homeless[reads] = None

    def first_of(self, reads: WorkingSet) -> Reader | None:
        """Return the first item that reads a working set, of those that may go; None if there is none."""
        readers = self.sets.get(reads)
        return least[-1] if readers is not None and (least := readers.least()) else None

    def leasts(self, held: dict[WorkingSet, None]) -> list[Entry]:
        """Return `least` of the readers of each of these sets, but for sets that none reads that may go."""
        readers = self.sets
        if len(readers) < len(held):
            return [least for reads, own in readers.items() if reads in held and (least := own.least())]
        return [least for reads in held if reads in readers and (least := readers[reads].least())]


class ReaderQueue(PriorityQueue[Reader]):
    """Items by their keys, each with the working set that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self._readers: Readers[Reader] = Readers(PriorityQueue)

    def put_reader(self, item: Reader, key: SortKey, reads: WorkingSet) -> None:
        """Add an item, or give it another key or working set."""
        self._readers.put(item, key, reads)
        self.put(item, key)

    def discard(self, item: Reader) -> None:
        """Remove an item, if it is there."""
        super().discard(item)
        self._readers.discard(item)

    def first_reading(self, held: Collection[WorkingSet]) -> Reader | None:
        """Return the first item that reads one of these sets, or nothing; None if there is none.

        All items are walked through by their keys, and the sets in turns with them, until either walk is complete.
        """
        readers = self._readers
        found = readers.first_of(NOTHING)
        for item, reads in zip(self, held, strict=False):
            if readers.get(item, NOTHING) in held:
                return item if found is None else min(item, found, key=self.key)
            first = readers.first_of(reads)
            if first is not None and (found is None or self.key(first) < self.key(found)):
                found = first
        return found
