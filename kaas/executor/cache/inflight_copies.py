"""Objects on their way to the device: a request may find one there while another request is still bringing it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kaas.executor.device.device import Watch


class Arrival:
    """One object on its way.

    Fields:
        watch: of its copy. submitted: the copy is in its stream. failed: it never will be.
    """

    __slots__ = ("failed", "submitted", "watch")

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.submitted = False
        self.failed = False


class Arrivals:
    """All of them, by entry of the cache. For one thread at a time."""

    def __init__(self) -> None:
        self._under_way: dict[bytes, Arrival] = {}
        self._watches: list[Watch] = []  # to be used again: a driver takes longer to make them than to record them

    def expect(self, entries: Iterable[bytes]) -> dict[bytes, Arrival]:
        made = {entry: Arrival(self._watches.pop() if self._watches else Watch()) for entry in entries}
        self._under_way.update(made)
        return made

    def among(self, entries: Iterable[bytes]) -> list[Arrival]:
        """The arrivals of those of these entries that are on their way."""
        if not self._under_way:
            return []
        return [arrival for entry in entries if (arrival := self._under_way.get(entry)) is not None]

    def ended(self, arrivals: Mapping[bytes, Arrival]) -> None:
        """Their copies are over. Those that failed stay known until the cache has dropped the object."""
        self.forget([entry for entry, arrival in arrivals.items() if not arrival.failed])

    def forget(self, entries: Iterable[bytes]) -> None:
        for entry in entries:
            arrival = self._under_way.pop(entry, None)
            if arrival is not None:
                self._watches.append(arrival.watch)

    def close(self) -> None:
        """Once nothing is on its way."""
        while self._watches:
            self._watches.pop().close()
