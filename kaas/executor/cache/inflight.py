"""Copies of objects to the device that are under way. Other requests find the objects, and wait for the copies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kaas.executor.device.streams import EventPair


class InflightCopy:
    """The copy of one object to the device.

    Fields:
        events: around the copy. submitted: the copy is in its stream. failed: it will never be there.
    """

    __slots__ = ("events", "failed", "submitted")

    def __init__(self, events: EventPair) -> None:
        self.events = events
        self.submitted = False
        self.failed = False


class InflightCopies:
    """All copies under way. For one thread at a time.

    Fields:
        under_way: by entry of the cache.
    """

    def __init__(self) -> None:
        self.under_way: dict[bytes, InflightCopy] = {}
        self._idle_events: list[EventPair] = []  # kept, since making events takes longer than recording them

    def expect(self, entries: Iterable[bytes]) -> dict[bytes, InflightCopy]:
        """Add and return copies of these entries, which are still to be submitted."""
        made = {entry: InflightCopy(self._idle_events.pop() if self._idle_events else EventPair()) for entry in entries}
        self.under_way.update(made)
        return made

    def among(self, entries: Iterable[bytes]) -> list[InflightCopy]:
        """Return the copies under way of these entries."""
        return [copy for entry in entries if (copy := self.under_way.get(entry)) is not None]

    def ended(self, copies: Mapping[bytes, InflightCopy]) -> None:
        """Remove ended copies. Failed ones stay until the cache has dropped the object."""
        self.forget([entry for entry, copy in copies.items() if not copy.failed])

    def forget(self, entries: Iterable[bytes]) -> None:
        """Remove the copies of these entries."""
        for entry in entries:
            copy = self.under_way.pop(entry, None)
            if copy is not None:
                self._idle_events.append(copy.events)

    def close(self) -> None:
        """Free the events. No copy may be under way."""
        while self._idle_events:
            self._idle_events.pop().close()
