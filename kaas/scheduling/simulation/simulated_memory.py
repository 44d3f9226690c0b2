"""The memory of a device and of its host in virtual time, by functions. Times are whole picoseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from kaas.executor.cache.eviction import SegmentedLru, named_first


class FunctionPlace(msgspec.Struct, frozen=True, gc=False):
    """A function's memory on a device.

    Fields:
        loaded: its load begins now. fetched: the load begins with a fetch, since the host lacks it. evicted: the
            functions that left the device for it.
    """

    loaded: bool
    fetched: bool = False
    evicted: tuple[bytes, ...] = ()


HERE = FunctionPlace(loaded=False)
"""The place of a function whose memory is there, or on its way."""


class SimulatedHostMemory:
    """Functions in page-locked memory: the one used longest ago leaves first.

    A function comes to the device through this memory and stays in both, as in an executor. A function that finds no
    room beside those that run passes by.

    Args:
        size_bytes: of the memory; None for any number of functions.
    """

    def __init__(self, size_bytes: int | None = None) -> None:
        self.size_bytes = size_bytes
        self._sizes: dict[bytes, int] = {}  # the one used last at the end
        self._used_bytes = 0

    def __contains__(self, key: bytes) -> bool:
        return key in self._sizes

    def load(self, key: bytes, size: int, kept: Container[bytes]) -> bool:
        """Take in that a function's memory passes on its way to the device. Return True if it has to be fetched.

        kept: the functions that run, whose memory stays.
        """
        if key in self._sizes:
            self._sizes[key] = self._sizes.pop(key)
            return False
        if self.size_bytes is not None:
            excess_bytes = self._used_bytes + size - self.size_bytes
            victims = []
            for other, nbytes in self._sizes.items():
                if excess_bytes <= 0:
                    break
                if other not in kept:
                    victims.append(other)
                    excess_bytes -= nbytes
            if excess_bytes > 0:
                return True
            self.drop(victims)
        self._sizes[key] = size
        self._used_bytes += size
        return True

    def drop(self, keys: Iterable[bytes]) -> None:
        """Drop the memory of these functions."""
        for key in keys:
            self._used_bytes -= self._sizes.pop(key, 0)


class SimulatedMemory:
    """The function used longest ago leaves first, as an executor's constants do; running ones stay.

    Args:
        size_bytes: of the memory. copies: counts the devices that hold each function; all devices share it.
        host: the page-locked memory beside it.

    Fields:
        ready_ps: the time at which each function that is there, or on its way, is loaded; None if it is not known yet.
    """

    def __init__(
        self, size_bytes: int, copies: Counter[bytes] | None = None, host: SimulatedHostMemory | None = None
    ) -> None:
        self.size_bytes = size_bytes
        self.host = host or SimulatedHostMemory()
        self.ready_ps: dict[bytes, int | None] = {}
        self._copies = Counter[bytes]() if copies is None else copies
        self._sizes: dict[bytes, int] = {}
        self._used_bytes = 0
        self._eviction = SegmentedLru()
        self._running: dict[bytes, int] = {}

    def emptied(self) -> SimulatedMemory:
        """Drop all functions, and return the empty memory of the device's next process."""
        self.drop(self.held)
        return SimulatedMemory(self.size_bytes, self._copies, SimulatedHostMemory(self.host.size_bytes))

    @property
    def held(self) -> tuple[bytes, ...]:
        """Keys of the functions whose memory is there."""
        return tuple(self._sizes)

    def holds_from_start(self, key: bytes, size: int) -> None:
        """Add the memory of a function that is there from the start, as if it had been used."""
        self.host.load(key, size, self._running)
        self._add(key, size)
        self.ready_ps[key] = 0
        self._eviction.used((key,), (key,))

    def place(self, key: bytes, size: int, named: Sequence[bytes] = ()) -> FunctionPlace | None:
        """Make sure that a function's memory is there, as the one used last, or comes.

        Functions in named leave first, in this order, as far as room is needed. Return None if the running functions
        leave no room now.
        """
        if key in self._sizes:
            self._eviction.used((key,), (key,))
            return HERE
        excess_bytes = self._used_bytes + size - self.size_bytes
        evicted: tuple[bytes, ...] = ()
        if excess_bytes > 0:
            victims = named_first(self._eviction, excess_bytes, self._sizes, self._running, named)
            if victims is None:
                return None
            evicted = victims
            self.drop(evicted)
        self._add(key, size)
        self.ready_ps[key] = None
        self._eviction.used((key,), (key,))
        return FunctionPlace(True, self.host.load(key, size, self._running), evicted)

    def make_room(self, sizes: Mapping[bytes, int], named: Sequence[bytes] = ()) -> tuple[bytes, ...] | None:
        """Drop the memory that must leave for all of these functions, some of which may be there.

        Functions in named leave first. Return None, and drop nothing, if the running functions leave no room.
        """
        needed_bytes = sum(size for key, size in sizes.items() if key not in self._sizes)
        kept = {*sizes, *self._running}
        excess_bytes = self._used_bytes + needed_bytes - self.size_bytes
        victims = named_first(self._eviction, excess_bytes, self._sizes, kept, named)
        if victims is not None:
            self.drop(victims)
        return victims

    def begin(self, key: bytes) -> None:
        """Count a request of a function that runs."""
        self._running[key] = self._running.get(key, 0) + 1

    def end(self, key: bytes) -> None:
        """Count a request of a function that has ended."""
        if not (left := self._running[key] - 1):
            del self._running[key]
        else:
            self._running[key] = left

    def idle(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return the keys of the functions whose memory is there and that do not run."""
        return tuple(key for key in dict.fromkeys(keys) if key in self._sizes and key not in self._running)

    def drop(self, keys: Collection[bytes]) -> None:
        """Drop the memory of these functions. Host memory keeps what it has."""
        for key in keys:
            self._used_bytes -= self._sizes.pop(key)
            self._copies[key] -= 1
            del self.ready_ps[key]
            self._eviction.removed(key)

    def _add(self, key: bytes, size: int) -> None:
        self._sizes[key] = size
        self._copies[key] += 1
        self._used_bytes += size
