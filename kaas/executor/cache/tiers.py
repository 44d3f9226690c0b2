"""One tier of the cache: the objects in one memory, their room, and the next victims."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kaas.executor.cache.eviction import Eviction, SegmentedLru, named_first

T = TypeVar("T")

GRANULE_BYTES = 512
"""The unit in which memory is counted: cuMemAlloc aligns to at least 256 bytes, the software GPU to 512."""
REMEMBERED = 1 << 16
"""Keys of evicted objects that a tier remembers, to separate capacity misses from compulsory ones."""


def granules(nbytes: int) -> int:
    """Round nbytes up to granules: at least one, since even an empty object needs an address."""
    return max(GRANULE_BYTES, -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES)


class TierUse(NamedTuple):
    """The use of one tier by requests: "device", "host" (page-locked memory) or "store" (the source of all others).

    Fields:
        objects, nbytes: input objects that were found there: hits of this tier.
        compulsory, capacity: misses: objects that were never there before, or were evicted since.
        evictions, evicted_bytes: objects that left to make room.
        seconds: spent on bringing objects into this tier; for the store, on waiting for it.
    """

    objects: int = 0
    nbytes: int = 0
    compulsory: int = 0
    capacity: int = 0
    evictions: int = 0
    evicted_bytes: int = 0
    seconds: float = 0.0

    @property
    def misses(self) -> int:
        """Number of input objects that were not found there."""
        return self.compulsory + self.capacity


class Tier(Generic[T]):
    """Objects by key, bounded in bytes. Each has a size and a value of the caller, such as its address.

    Fields:
        reserved_bytes: bytes of the objects, including those for which room is only reserved.
    """

    def __init__(self, capacity_bytes: int, eviction: Eviction | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.values: dict[bytes, T] = {}
        self.sizes: dict[bytes, int] = {}
        self._eviction: Eviction = eviction or SegmentedLru()
        self._left: dict[bytes, None] = {}

    def victims(
        self, needed_bytes: int, kept: Collection[bytes], first: Iterable[bytes] = (), named: Iterable[bytes] = ()
    ) -> tuple[bytes, ...] | None:
        """Return the objects that must leave for needed_bytes more; None if even all that may leave are too few.

        Objects in `first` leave in any case, if they are here. Those in `named` follow in their order, as far as room
        is needed, and then those that the eviction rule chooses. Objects in `kept` stay.
        """
        excess = self.reserved_bytes + needed_bytes - self.capacity_bytes
        leaving = tuple(key for key in first if key in self.sizes)
        excess -= sum(self.sizes[key] for key in leaving)
        others = named_first(self._eviction, excess, self.sizes, {*kept, *leaving} if leaving else kept, named)
        return None if others is None else leaving + others

    def returning(self, keys: Iterable[bytes]) -> int:
        """Return the number of these objects that were here before and were evicted."""
        return sum(key in self._left and key not in self.values for key in keys)

    def exchange(self, victims: Iterable[bytes], loads: Mapping[bytes, int]) -> None:
        """Count the room as if the victims were gone and the loads were here."""
        self.reserved_bytes += sum(loads.values()) - sum(self.sizes[key] for key in victims)

    def take_back(self, victims: Iterable[bytes], loads: Mapping[bytes, int]) -> None:
        """Undo `exchange`."""
        self.reserved_bytes -= sum(loads.values()) - sum(self.sizes[key] for key in victims)

    def add(self, key: bytes, nbytes: int, value: T) -> None:
        """Add an object, whose room is counted already."""
        self.values[key] = value
        self.sizes[key] = nbytes

    def drop(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """Forget these objects and their room. Return the values of those that were here."""
        dropped = self.evict(keys)
        for key in dropped:
            del self._left[key]  # it was not evicted
        return dropped

    def evict(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """Forget these objects and their room, as evicted ones. Return the values of those that were here."""
        evicted = {key: self.values[key] for key in keys if key in self.values}
        for key in evicted:
            self.reserved_bytes -= self.sizes[key]
            self.forget(key)
        return evicted

    def retract(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """Drop objects that no request has used, as if they had never been here. Return their values."""
        retracted = {key: self.values.pop(key) for key in keys if key in self.values}
        for key in retracted:
            self.reserved_bytes -= self.sizes.pop(key)
        return retracted

    def used(self, keys: Iterable[bytes], constants: Collection[bytes]) -> None:
        """Note that a request used these objects. A function binds those in `constants`."""
        self._eviction.used(keys, constants)

    def forget(self, key: bytes) -> None:
        """Forget an evicted object, whose room the caller counts."""
        del self.values[key], self.sizes[key]
        self._eviction.removed(key)
        self._left.pop(key, None)
        if len(self._left) >= REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[key] = None
