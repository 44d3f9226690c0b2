"""The objects that each device holds, or that are on their way to it, and which devices hold what a request reads.

The state comes from requests' inputs, from dispatches and from `Residency`: the objects of a dispatched request count
as present, since the worker loads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kaas.scheduling.events import ObjectUse, PhysicalDevice, Residency

KEPT_SETS = 50_000
"""Working sets without a request that are kept, so that the next request of a function need not look at each object."""


@dataclass(slots=True, eq=False)
class WorkingSet:
    """The objects that a request reads. Requests that read the same objects share one.

    Fields:
        sizes: bytes of each object, by key. nbytes: their sum. held: bytes of them on each device that holds some.
        near: the devices that hold at least half of the bytes. whole: those that hold all objects.
        constants: the objects that the function binds, as a working set; this one if these are all.
        function: the one whose request read it last, if the policy keeps that.
        users: requests and working sets that refer to this one.
    """

    uses: tuple[ObjectUse, ...] = ()
    sizes: dict[bytes, int] = field(default_factory=dict)
    nbytes: int = 0
    held: dict[int, int] = field(default_factory=dict)
    near: dict[int, None] = field(default_factory=dict)
    whole: dict[int, None] = field(default_factory=dict)
    users: int = 0
    function: str = ""
    constants: WorkingSet = field(init=False)

    def __post_init__(self) -> None:
        self.constants = self

    def missing_bytes(self, device: int) -> int:
        """Return the bytes that a device lacks."""
        return self.nbytes - self.held.get(device, 0)


NOTHING = WorkingSet()
"""The working set of requests that read no object which caches can hold."""


@dataclass(slots=True)
class DeviceMemory:
    """A device's memory.

    Fields:
        capacity_bytes: None if it is not known. free_bytes: those that no object takes; 0 if the size is not known.
        used: the objects that the device holds or gets, each with the number of the dispatch that used it last.
        coming: objects on their way, with the number of requests that bring it.
        bringers: the client and the function whose request brought an object; prefetched ones have none.
        given_up: objects that leave for requests or orders, of which no event has said so yet.
        near, whole: working sets of which the device holds at least half, and all.
    """

    capacity_bytes: int | None
    used_bytes: int = 0
    free_bytes: int = field(init=False)
    used: dict[bytes, int] = field(default_factory=dict)
    coming: dict[bytes, int] = field(default_factory=dict)
    bringers: dict[bytes, Hashable] = field(default_factory=dict)
    given_up: dict[bytes, None] = field(default_factory=dict)
    near: dict[WorkingSet, None] = field(default_factory=dict)
    whole: dict[WorkingSet, None] = field(default_factory=dict)
    _oldest: list[bytes] | None = None

    def __post_init__(self) -> None:
        self.resized(self.capacity_bytes)

    @property
    def most_bytes(self) -> float:
        """The size; infinite if it is not known."""
        return math.inf if self.capacity_bytes is None else self.capacity_bytes

    def resized(self, capacity_bytes: int | None) -> None:
        """Take in the size of the memory."""
        self.capacity_bytes = capacity_bytes
        self.free_bytes = 0 if capacity_bytes is None else capacity_bytes - self.used_bytes

    def taken(self, nbytes: int) -> None:
        """Take in that objects take so many more bytes, or fewer."""
        self.used_bytes += nbytes
        if self.capacity_bytes is not None:
            self.free_bytes -= nbytes
        self._oldest = None

    def oldest_first(self) -> list[bytes]:
        """Return the objects by their last use, and by key among equals."""
        if self._oldest is None:
            self._oldest = sorted(self.used, key=lambda key: (self.used[key], key))
        return self._oldest

    def changed(self) -> None:
        """Take in that an object was used."""
        self._oldest = None


class Holdings:
    """The objects on each device, by key. Arenas are not known: two functions may fit here that do not fit there.

    Fields:
        memories: by the device's index. uneven: they differ in size, as far as that is known.
        dispatches: the number of the last dispatch that reads objects.
        near_changed: called with each working set that comes near a first device, or is near none any more.
        whole_changed: called with each that a first device holds whole, or none any more.
        leaving: a device, and the objects that leave it with the next event.
    """

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self.memories = {device.index: DeviceMemory(device.memory_bytes) for device in devices}
        self.uneven = _uneven(self.memories)
        self.dispatches = 0
        self.leaving: tuple[int, tuple[bytes, ...]] | None = None
        self.near_changed: list[Callable[[WorkingSet], None]] = []
        self.whole_changed: list[Callable[[WorkingSet], None]] = []
        self._sizes: dict[bytes, int] = {}  # of objects on devices; 0 until a request says the size
        self._holders: dict[bytes, set[int]] = {}
        self._sets: dict[tuple[ObjectUse, ...], WorkingSet] = {}
        self._idle: dict[WorkingSet, None] = {}
        self._readers: dict[bytes, dict[WorkingSet, None]] = {}

    def size(self, key: bytes) -> int:
        """Return the bytes of an object that some device holds."""
        return self._sizes[key]

    # --- working sets

    def working_set(self, uses: tuple[ObjectUse, ...]) -> WorkingSet:
        """Return the working set of a request with these inputs; `release` ends its use. Empty objects are left out."""
        for use in uses:
            if use.key is not None:
                break
        else:
            return NOTHING
        found = self._sets.get(uses)
        if found is None:
            found = self._new_set(uses)
            if found is NOTHING:
                return found
        self.retain(found)
        return found

    def retain(self, working_set: WorkingSet) -> None:
        """Keep a working set, which is known, until one more `release`."""
        if working_set is NOTHING:
            return
        if not working_set.users:
            self._idle.pop(working_set, None)
        working_set.users += 1

    def release(self, working_set: WorkingSet) -> None:
        """Take in that a request no longer needs its working set."""
        if working_set is NOTHING:
            return
        working_set.users -= 1
        if not working_set.users:
            self._idle[working_set] = None
            if len(self._idle) > KEPT_SETS:
                self._forget(next(iter(self._idle)))

    def _new_set(self, uses: tuple[ObjectUse, ...]) -> WorkingSet:
        sizes = {use.key: use.nbytes for use in uses if use.key is not None and use.nbytes}
        if not sizes:
            return NOTHING
        made = WorkingSet(uses, sizes, sum(sizes.values()))
        bound = tuple(use for use in uses if use.constant and use.key in sizes)
        if len({use.key for use in bound}) < len(sizes):
            made.constants = self.working_set(bound)
        self._sets[uses] = made
        for key, nbytes in sizes.items():
            self._readers.setdefault(key, {})[made] = None
            if key in self._sizes:
                self._grow(key, nbytes)
            for device in self._holders.get(key, ()):
                self._hold(made, device, nbytes)
        return made

    def _forget(self, working_set: WorkingSet) -> None:
        del self._idle[working_set], self._sets[working_set.uses]
        for key in working_set.sizes:
            readers = self._readers[key]
            del readers[working_set]
            if not readers:
                del self._readers[key]
        for device in working_set.near:
            del self.memories[device].near[working_set]
        for device in working_set.whole:
            del self.memories[device].whole[working_set]
        if working_set.constants is not working_set:
            self.release(working_set.constants)

    def _hold(self, working_set: WorkingSet, device: int, more_bytes: int) -> None:
        """Count more bytes of a working set on a device, or fewer."""
        held_bytes = working_set.held.get(device, 0) + more_bytes
        memory = self.memories[device]
        if held_bytes:
            working_set.held[device] = held_bytes
        else:
            del working_set.held[device]
        near, whole = bool(working_set.near), bool(working_set.whole)
        _mark(working_set.near, memory.near, device, working_set, 2 * held_bytes >= working_set.nbytes)
        if bool(working_set.near) != near:
            for changed in self.near_changed:
                changed(working_set)
        _mark(working_set.whole, memory.whole, device, working_set, held_bytes == working_set.nbytes)
        if bool(working_set.whole) != whole:
            for changed in self.whole_changed:
                changed(working_set)

    # --- events

    def ready(self, device: int, memory_bytes: int) -> None:
        """Take in that a worker with an empty cache of this size is up."""
        memory = self.memories[device]
        if memory.capacity_bytes != memory_bytes:
            memory.resized(memory_bytes)
            self.uneven = _uneven(self.memories)

    def dispatched(self, sizes: Mapping[bytes, int], device: int, bringer: Hashable) -> tuple[bytes, ...]:
        """Count the objects as present on a device, and as used now. Return those that the request brings."""
        brings = self.expect(sizes, device)
        self.dispatches += 1
        memory = self.memories[device]
        if brings:
            memory.bringers |= dict.fromkeys(brings, bringer)
        for key in sizes:
            memory.used[key] = self.dispatches
        memory.changed()
        return brings

    def expect(self, sizes: Mapping[bytes, int], device: int) -> tuple[bytes, ...]:
        """Count objects as present that are on their way to a device; return them for `arrived`."""
        memory = self.memories[device]
        coming, used = memory.coming, memory.used
        for key in sizes:
            if key not in used or key in coming:
                break
        else:
            return ()
        brings = tuple(key for key in sizes if key in coming or key not in used)
        for key in brings:
            memory.coming[key] = memory.coming.get(key, 0) + 1
            self._add(key, device, sizes[key])
        return brings

    def give_up(self, keys: Sequence[bytes], device: int) -> None:
        """Take in that objects leave a device for a request or an order: no request finds them there any more."""
        given_up = self.memories[device].given_up
        for key in keys:
            self._remove(key, device)
            given_up[key] = None

    def kept(self, keys: Sequence[bytes], device: int) -> None:
        """Take in that the request or order for which objects were to leave has ended: what has not left is there."""
        given_up = self.memories[device].given_up
        for key in keys:
            if key in given_up:
                self._add(key, device, 0)

    def ended(self, brings: Sequence[bytes], device: int, *, found: bool = False) -> None:
        """Take in that a request has ended: what it was to bring and no worker reported as loaded is not there.

        found: the request has loaded nothing and succeeded, so all was there.
        """
        memory = self.memories[device]
        for key in brings:
            if key in memory.coming:
                memory.coming[key] -= 1
                if found or not memory.coming[key]:
                    del memory.coming[key]
                    if not found:
                        self._remove(key, device)

    def moved(self, event: Residency, device: int) -> None:
        """Take in which objects were loaded on a device. Those that left it go with the next event, by `let_go`."""
        memory = self.memories[device]
        for key in event.loaded:
            memory.coming.pop(key, None)
            self._add(key, device, 0)
        if event.evicted:
            self.leaving = device, event.evicted

    def let_go(self, device: int = -1, since: int = 0) -> None:
        """Remove the objects that have left a device.

        Requests that run at a time end in any order, so the objects may be back: for a later request that has ended
        before.

        Args:
            device: that of the request or order for which they left; -1: not known.
            since: the number of the request's dispatch, or of the last one before the order. What was used after that
                is back, or comes back.
        """
        assert self.leaving is not None, "some objects leave"
        (where, evicted), self.leaving = self.leaving, None
        memory = self.memories[where]
        for key in evicted:
            memory.given_up.pop(key, None)
            if key not in memory.coming and (device != where or memory.used.get(key, 0) <= since):
                self._remove(key, where)

    def emptied(self, device: int) -> None:
        """Take in that the worker of a device ended, and its cache with it."""
        memory = self.memories[device]
        memory.coming.clear()
        memory.given_up.clear()
        for key in list(memory.used):
            self._remove(key, device)

    # --- victims

    def least_recently_used(self, reads: WorkingSet, device: int, kept: Iterable[WorkingSet] = ()) -> tuple[bytes, ...]:
        """Return the objects that leave a device for a request, those used longest ago first.

        kept: objects of these working sets stay.
        """
        memory, stay = self.memories[device], [reads, *kept]
        needed_bytes = reads.missing_bytes(device) - memory.free_bytes
        if memory.capacity_bytes is None or needed_bytes <= 0:
            return ()
        victims = []
        for key in memory.oldest_first():
            if not any(key in each.sizes for each in stay):
                victims.append(key)
                needed_bytes -= self._sizes[key]
                if needed_bytes <= 0:
                    break
        return tuple(victims)

    # --- state

    def _grow(self, key: bytes, nbytes: int) -> None:
        """Take in that an object has this many bytes at least: a view of an object may be smaller than the object."""
        more_bytes = nbytes - self._sizes[key]
        if more_bytes > 0:
            self._sizes[key] = nbytes
            for device in self._holders[key]:
                self.memories[device].taken(more_bytes)

    def _add(self, key: bytes, device: int, nbytes: int) -> None:
        memory = self.memories[device]
        if key in memory.used:
            return
        memory.given_up.pop(key, None)
        readers = self._readers.get(key, ())
        if key not in self._sizes:
            self._sizes[key] = max(nbytes, *(each.sizes[key] for each in readers)) if readers else nbytes
        memory.used[key] = self.dispatches
        memory.taken(self._sizes[key])
        self._holders.setdefault(key, set()).add(device)
        for reader in readers:
            self._hold(reader, device, reader.sizes[key])

    def _remove(self, key: bytes, device: int) -> None:
        memory = self.memories[device]
        if key not in memory.used:
            return
        del memory.used[key]
        memory.bringers.pop(key, None)
        memory.taken(-self._sizes[key])
        holders = self._holders[key]
        holders.discard(device)
        if not holders:
            del self._holders[key], self._sizes[key]
        for reader in self._readers.get(key, ()):
            self._hold(reader, device, -reader.sizes[key])


def _uneven(memories: Mapping[int, DeviceMemory]) -> bool:
    return len({memory.capacity_bytes for memory in memories.values()}) > 1


def _mark(
    devices: dict[int, None], sets: dict[WorkingSet, None], device: int, working_set: WorkingSet, there: bool
) -> None:
    """Make a device one of a working set's, and the set one of the device's; or neither."""
    if there == (device in devices):
        return
    if there:
        devices[device] = sets[working_set] = None
    else:
        del devices[device], sets[working_set]
