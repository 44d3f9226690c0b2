"""The memory of a device in virtual time, by functions. Times are whole picoseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kaas.executor.cache.eviction import SegmentedLru, named_first


@dataclass(frozen=True, slots=True)
class FunctionPlace:
    """A function's memory on a device. ready_ps: the time at which it is loaded. loaded: its load begins now."""

    ready_ps: int
    loaded: bool
    evicted: tuple[bytes, ...]


class SimulatedMemory:
    """Functions used once leave first, then the others, in each set the one used longest ago; running ones stay.

    Args:
        size_bytes: of the memory. copies: counts the devices that hold each function; all devices share it.
    """

    def __init__(self, size_bytes: int, copies: Counter[bytes] | None = None) -> None:
        self.size_bytes = size_bytes
        self._copies = Counter[bytes]() if copies is None else copies
        self._sizes: dict[bytes, int] = {}
        self._ready_ps: dict[bytes, int] = {}
        self._used_bytes = 0
        self._eviction = SegmentedLru()
        self._running: Counter[bytes] = Counter()

    @property
    def held(self) -> tuple[bytes, ...]:
        """Keys of the functions whose memory is there."""
        return tuple(self._sizes)

    def holds_from_start(self, key: bytes, size: int) -> None:
        """Add the memory of a function that is there from the start, as if it had been used twice."""
        self._add(key, size, 0)
        self._eviction.used((key,))
        self._eviction.used((key,))

    def place(
        self, key: bytes, size: int, now_ps: int, load_ps: int, named: Sequence[bytes] = ()
    ) -> FunctionPlace | None:
        """Make sure that a function's memory is there, as the one used last.

        Functions in named leave first, in this order, as far as room is needed. Return None if the running functions
        leave no room now.
        """
        evicted: tuple[bytes, ...] = ()
        loaded = key not in self._sizes
        if loaded:
            excess_bytes = self._used_bytes + size - self.size_bytes
            victims = named_first(self._eviction, excess_bytes, self._sizes, +self._running, named)
            if victims is None:
                return None
            evicted = victims
            self.drop(victims)
            self._add(key, size, now_ps + load_ps)
        self._eviction.used((key,))
        return FunctionPlace(max(now_ps, self._ready_ps[key]), loaded, evicted)

    def make_room(self, sizes: Mapping[bytes, int], named: Sequence[bytes] = ()) -> tuple[bytes, ...] | None:
        """Drop the memory that must leave for all of these functions, some of which may be there.

        Functions in named leave first. Return None, and drop nothing, if the running functions leave no room.
        """
        needed_bytes = sum(size for key, size in sizes.items() if key not in self._sizes)
        kept = {*sizes, *+self._running}
        excess_bytes = self._used_bytes + needed_bytes - self.size_bytes
        victims = named_first(self._eviction, excess_bytes, self._sizes, kept, named)
        if victims is not None:
            self.drop(victims)
        return victims

    def begin(self, key: bytes) -> None:
        """Count a request of a function that runs."""
        self._running[key] += 1

    def end(self, key: bytes) -> None:
        """Count a request of a function that has ended."""
        self._running[key] -= 1

    def idle(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return the keys of the functions whose memory is there and that do not run."""
        return tuple(key for key in dict.fromkeys(keys) if key in self._sizes and not self._running[key])

    def drop(self, keys: Collection[bytes]) -> None:
        """Drop the memory of these functions."""
        for key in keys:
            self._used_bytes -= self._sizes.pop(key)
            self._copies[key] -= 1
            del self._ready_ps[key]
            self._eviction.removed(key)

    def _add(self, key: bytes, size: int, ready_ps: int) -> None:
        self._sizes[key] = size
        self._copies[key] += 1
        self._ready_ps[key] = ready_ps
        self._used_bytes += size
