"""Cached objects that outlive this process: constants in pages whose file the pool has too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from kaas.errors import KaasError
from kaas.executor.cache.journal import CacheFiles, CacheJournal, KeptGroup, KeptObject
from kaas.executor.device.device_memory import DeviceHeap
from kaas.executor.device.windows.pages import Pages, pages_of
from kaas.executor.device.windows.window import Allocated, SharedPages, laid_out
from kaas.executor.inputs import Inputs
from kaas.executor.objects import CachedObject, HeldValue

LEAST_BYTES = 16 << 20
"""Constants of one function that have so many bytes together have pages of their own, also without windows: their last
page is not full, which counts the less the more there are."""


class KeptObjects:
    """Such objects of one executor. Use it inside `device.context`, and by one thread at a time."""

    def __init__(self, pages: Pages, files: CacheFiles) -> None:
        """pages: of the device, which has none yet. files: both are of this executor alone until it ends."""
        self._pages, self._file = pages, files.memory
        self._journal = CacheJournal(files.journal)
        self._next = 1 + max((group.number for group in self._journal.groups), default=0)
        self.spoil = self._journal.spoil

    def adopt(self, capacity_bytes: int) -> Iterator[tuple[KeptObject, CachedObject]]:
        """Yield what the executor before has left, mapped; nothing if that is more than capacity_bytes."""
        groups = self._journal.groups
        if sum(each.nbytes for group in groups for each in group.objects) > capacity_bytes:
            groups = []
        try:
            shared = self._mapped(groups)
        except (KaasError, IndexError):
            self._journal.spoil()  # no file has the pages of this executor
            return
        if not groups:
            self._journal.empty()
        for group, pages in zip(groups, shared, strict=True):
            pages.on_free = partial(self._left, group.number, pages)
            for each, address in zip(group.objects, pages.places, strict=True):
                yield each, CachedObject(address, each.nbytes, each.dtype, each.shape, pages)

    def _mapped(self, groups: Sequence[KeptGroup]) -> list[SharedPages]:
        """Return the memory of groups, and give all other memory in the file back."""
        used = [sorted({page for each in group.objects for page in _pages_of(each)}) for group in groups]
        offsets = [group.offsets[page] for group, pages in zip(groups, used, strict=True) for page in pages]
        handles = iter(self._pages.adopt(self._file, offsets))
        adopted = [{page: next(handles) for page in pages} for pages in used]
        made: list[SharedPages] = []
        try:
            for group, pages in zip(groups, adopted, strict=True):
                sizes = {each.place: each.nbytes for each in group.objects}
                made.append(SharedPages(self._pages, sizes, adopted=pages))
        except KaasError:
            for shared in made:
                shared.close()
            self._pages.give(page for pages in adopted[len(made) + 1 :] for page in pages.values())
            raise
        return made

    def place(self, loads: Mapping[bytes, int], inputs: Inputs) -> Iterator[Allocated]:
        """Allocate constants that have enough bytes together, for kernels that no window confines.

        Raises:
            OutOfDeviceMemory: the device has not enough. Memory that was yielded stays.
        """
        tuples: dict[bytes, list[bytes]] = {}
        for key in loads:
            if key in inputs.constants and key not in inputs.parts:
                tuples.setdefault(inputs.constants[key], []).append(key)
        for keys in tuples.values():
            if sum(loads[key] for key in keys) >= LEAST_BYTES:
                shared = SharedPages(self._pages, laid_out([loads[key] for key in keys]), cleared=False)
                yield from [(key, shared, address) for key, address in zip(keys, shared.places, strict=True)]

    def came(self, loaded: Mapping[bytes, CachedObject], inputs: Inputs) -> None:
        """Take in objects whose bytes are all on the device."""
        groups: dict[SharedPages, list[KeptObject]] = {}
        for key, there in loaded.items():
            if isinstance(there.home, SharedPages) and key not in inputs.parts:
                value = there.nbytes, there.dtype, there.shape, inputs.constants.get(key)
                groups.setdefault(there.home, []).append(KeptObject(there.address - there.home.start, key, *value))
        for shared, objects in groups.items():
            self._journal.add(KeptGroup(self._next, shared.offsets(), objects))
            shared.on_free = partial(self._left, self._next, shared)
            self._next += 1

    def _left(self, number: int, shared: SharedPages, address: int) -> None:
        self._journal.left(number, address - shared.start)


def _pages_of(kept: KeptObject) -> range:
    return pages_of(kept.place, kept.nbytes)


def placed(
    loads: Mapping[bytes, int], inputs: Inputs, heap: DeviceHeap, kept: KeptObjects | None
) -> Iterator[Allocated]:
    """Map objects that another process holds, and allocate the others, for kernels that no window confines.

    Raises:
        OutOfDeviceMemory: the device has not enough. Memory that was yielded stays.
    """
    rest = dict(loads)
    for key in loads:
        held = inputs.fetched[key].data if key in inputs.fetched else None
        if isinstance(held, HeldValue):
            del rest[key]
            yield key, held.memory, held.memory.take(held.whole_bytes) + held.offset_bytes
    for each in () if kept is None else kept.place(rest, inputs):
        del rest[each[0]]
        yield each
    for key, nbytes in rest.items():
        yield key, heap, heap.allocate(nbytes)
