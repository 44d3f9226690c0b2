"""One tier of the cache: which objects lie in one memory, how much room they take, who leaves next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from kaas.executor.cache.eviction import Eviction, TwoSets

T = TypeVar("T")

GRANULE_BYTES = 512
"""Memory is counted in these: cuMemAlloc aligns to at least 256 bytes, the software GPU to 512."""
REMEMBERED = 1 << 16
"""Keys of objects that left, kept to tell a miss of something new from one for want of room."""


def granules(nbytes: int) -> int:
    """nbytes rounded up; at least one granule, since even an empty object needs an address."""
    return max(GRANULE_BYTES, -(-nbytes // GRANULE_BYTES) * GRANULE_BYTES)


class TierUse(NamedTuple):
    """What requests did in one tier: "device", "host" (page-locked memory) or "store" (whatever lies behind these).

    Fields:
        objects, nbytes: input objects that were found there: hits of this tier.
        compulsory, capacity: those that were not: never seen there before, or driven out since.
        evictions, evicted_bytes: objects that left to make room.
        seconds: spent bringing objects into this tier; of the store, spent waiting for it.
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
        return self.compulsory + self.capacity


class Tier(Generic[T]):
    """Objects by key, each with its size and a value of the caller's (where it lies), bounded in bytes.

    Fields:
        reserved_bytes: what its objects take, those included for which room has only been reserved.
    """

    def __init__(self, capacity_bytes: int, eviction: Eviction | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = 0
        self.values: dict[bytes, T] = {}
        self.sizes: dict[bytes, int] = {}
        self._eviction: Eviction = eviction or TwoSets()
        self._left: dict[bytes, None] = {}

    def victims(
        self, needed_bytes: int, kept: Collection[bytes], first: Iterable[bytes] = ()
    ) -> tuple[bytes, ...] | None:
        """Who would have to leave for needed_bytes more; None if even all that may leave are too few.

        first: those that leave in any case, if they are here.
        """
        excess = self.reserved_bytes + needed_bytes - self.capacity_bytes
        leaving = tuple(key for key in first if key in self.sizes)
        if not leaving:
            return self._eviction.victims(excess, self.sizes, kept)
        excess -= sum(self.sizes[key] for key in leaving)
        others = self._eviction.victims(excess, self.sizes, {*kept, *leaving})
        return None if others is None else leaving + others

    def returning(self, keys: Iterable[bytes]) -> int:
        """How many of these have been here before."""
        return sum(key in self._left and key not in self.values for key in keys)

    def exchange(self, victims: Iterable[bytes], loads: Mapping[bytes, int]) -> None:
        """Counts the room as if the victims had gone and the loads had come."""
        self.reserved_bytes += sum(loads.values()) - sum(self.sizes[key] for key in victims)

    def take_back(self, victims: Iterable[bytes], loads: Mapping[bytes, int]) -> None:
        """The reverse of `exchange`."""
        self.reserved_bytes -= sum(loads.values()) - sum(self.sizes[key] for key in victims)

    def add(self, key: bytes, nbytes: int, value: T) -> None:
        """An object is there, in room that was counted before."""
        self.values[key] = value
        self.sizes[key] = nbytes

    def drop(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """Forgets those of these objects that are here, with their room; gives their values."""
        dropped = {key: self.values[key] for key in keys if key in self.values}
        for key in dropped:
            self.reserved_bytes -= self.sizes[key]
            self.forget(key)
            del self._left[key]  # it was not driven out
        return dropped

    def retract(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """As `drop`, for objects that no request has used: as if they had never come."""
        retracted = {key: self.values.pop(key) for key in keys if key in self.values}
        for key in retracted:
            self.reserved_bytes -= self.sizes.pop(key)
        return retracted

    def used(self, keys: Iterable[bytes], constants: Collection[bytes]) -> None:
        self._eviction.used(keys, constants)

    def forget(self, key: bytes) -> None:
        """An object has gone, from room that is counted elsewhere."""
        del self.values[key], self.sizes[key]
        self._eviction.removed(key)
        self._left.pop(key, None)
        if len(self._left) >= REMEMBERED:
            del self._left[next(iter(self._left))]
        self._left[key] = None
