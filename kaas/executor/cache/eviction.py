"""The eviction rule: which cached objects leave when room is needed. Values in, values out.

The simulator imports the same rule (`scheduling/simulation/simulated_memory.py`). What changes along with the rule: the
slow model of the tests (`tests/executor/cache_model.py`), and "Order of eviction" in docs/executor.md. Policies do not
know the order of the cache: `Locality._loss` estimates by dispatches which objects leave
(`scheduling/policies/locality.py`). A change of the rule makes that estimate worse, but not wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from heapq import merge
from itertools import chain
from typing import Protocol

IN_USE_REQUESTS = 1024
"""A function whose last request lies further back than this number of requests is not in use any more."""


class Eviction(Protocol):
    """The order of a tier's objects, and the choice of victims. The cache reports uses and removals."""

    def used(self, keys: Iterable[bytes], constants: Collection[bytes]) -> None:
        """Note that a request added or used these objects. A function binds those in `constants`."""

    def removed(self, key: bytes) -> None:
        """Note that an object is gone."""

    def victims(
        self, needed_bytes: int, sizes: Mapping[bytes, int], kept: Container[bytes]
    ) -> tuple[bytes, ...] | None:
        """Return objects of at least needed_bytes together, none of them in kept; None if there are not enough.

        An object of size 0 makes no room, and stays. The call changes nothing: the cache calls `removed` for objects
        that really leave.
        """


def named_first(
    rule: Eviction, needed_bytes: int, sizes: Mapping[bytes, int], kept: Collection[bytes], named: Iterable[bytes]
) -> tuple[bytes, ...] | None:
    """Return victims as `Eviction.victims` does: those that are named, in their order, then those of the rule."""
    leaving: dict[bytes, int] = {}
    for key in named:
        if needed_bytes > 0 and sizes.get(key) and key not in kept and key not in leaving:
            leaving[key] = sizes[key]
            needed_bytes -= sizes[key]
    others = rule.victims(needed_bytes, sizes, {*kept, *leaving} if leaving else kept)
    return None if others is None else (*leaving, *others)


class SegmentedLru:
    """Least recently used, in three segments.

    Objects that were used once leave first, then the rest, and last the constants of functions in use. In each segment
    the least recently used object leaves first. Objects that are used once thus cannot drive out objects that are used
    again (as in 2Q; T. Johnson, D. Shasha, 1994). Constants of functions that are not in use any more count among the
    rest.
    """

    __slots__ = ("_again", "_bound", "_now", "_once", "_place")

    def __init__(self) -> None:
        self._now = 0
        self._once: dict[bytes, int] = {}  # each segment, in this order: key -> number of the last request
        self._again: dict[bytes, int] = {}
        self._bound: dict[bytes, int] = {}
        self._place: dict[bytes, dict[bytes, int]] = {}

    def used(self, keys: Iterable[bytes], constants: Collection[bytes] = ()) -> None:
        """Put the objects at the end of their segments: of the constants, or of the objects used once or more often."""
        self._now += 1
        for key in keys:
            old = self._place.get(key)
            new = self._once if old is None else self._again
            if key in constants or old is self._bound:
                new = self._bound
            if old is not None:
                del old[key]
            new[key] = self._now
            self._place[key] = new

    def removed(self, key: bytes) -> None:
        """Forget an object. If it comes back, it counts as new."""
        place = self._place.pop(key, None)
        if place is not None:
            del place[key]

    def victims(
        self, needed_bytes: int, sizes: Mapping[bytes, int], kept: Container[bytes]
    ) -> tuple[bytes, ...] | None:
        """Return the first objects in the order of eviction that are enough together, as `Eviction.victims`."""
        chosen: list[bytes] = []
        if needed_bytes > 0:
            for key in self._order():
                if sizes[key] and key not in kept:
                    chosen.append(key)
                    needed_bytes -= sizes[key]
                    if needed_bytes <= 0:
                        break
        return tuple(chosen) if needed_bytes <= 0 else None

    def _order(self) -> Iterator[bytes]:
        horizon = self._now - IN_USE_REQUESTS
        unused = ((key, last) for key, last in self._bound.items() if last < horizon)
        rest = merge(self._again.items(), unused, key=lambda entry: entry[1])
        in_use = (key for key, last in self._bound.items() if last >= horizon)
        return chain(self._once, (key for key, _ in rest), in_use)
