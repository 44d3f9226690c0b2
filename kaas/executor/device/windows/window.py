"""Device memory of one client, at addresses that its kernels cannot leave.

A window has two heaps. In one are arenas and outputs, which kernels may write. In the other are cached objects, which
kernels can only read: its pages are mapped a second time outside of the window, where copies put the bytes. Pages of
physical memory (cuMemCreate) come with the first allocation that lies in them, and go with the last one.

Objects of a page or more have pages of their own, `SharedPages`, which are mapped in the window of every client that
names them: each is on the device once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, Protocol

from cuda.bindings import driver

from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.device.code import LoadedLibrary
from kaas.executor.device.device_memory import ObjectHome
from kaas.executor.device.driver_errors import call
from kaas.executor.device.windows.pages import PAGE_BYTES, Pages, pages_of, rows, unmap
from kaas.ktask.library import Library
from softgpu import adoption

ALIGNMENT_BYTES = 256
"""The alignment that cuMemAlloc guarantees."""

Allocated = tuple[bytes, ObjectHome, int]
"""An object that has been allocated: its key, its memory, and its address there."""


class Addresses(Protocol):
    """Addresses that confined kernels cannot leave: from `base` to `end`. Memory may be mapped from `start` on."""

    base: int
    start: int
    end: int

    def close(self) -> None:
        """Give the addresses back. No memory may be mapped there."""


class ClientWindow(ABC):
    """The window of one client on one device. Use it inside `device.context`, and by one thread at a time.

    Any thread may use the heaps and load code meanwhile.

    Fields:
        written: the heap that kernels may write. read: the heap that they can only read. heaps: both.
    """

    def __init__(self, pages: Pages, addresses: Addresses) -> None:
        """Divide addresses into the heaps, which take no memory yet.

        Args:
            pages: of the device.
            addresses: of the window, which closes them.
        """
        self._pages, self._addresses = pages, addresses
        middle = (addresses.base + addresses.end) // 2
        self._heap_bytes = addresses.end - middle
        try:
            self._mirror = int(call(driver.cuMemAddressReserve, self._heap_bytes, 0, 0, 0))
        except BaseException:
            addresses.close()
            raise
        self.written = Heap(addresses.start, middle, None, pages)
        self.read = Heap(middle, addresses.end, self._mirror, pages)
        self.heaps = self.written, self.read
        self._seen: dict[SharedPages, int] = {}  # with the distance from their own addresses to this window's

    def place(self, sizes: Mapping[bytes, int], tuples: Mapping[bytes, bytes]) -> Iterator[Allocated]:
        """Allocate objects that kernels of this window read.

        Args:
            sizes: bytes by key.
            tuples: the keys of the tuples of constants to which some of them belong.

        Raises:
            OutOfDeviceMemory: the device has not enough. Memory that was yielded stays.
        """
        together: dict[bytes, dict[bytes, int]] = {}
        for key, nbytes in sizes.items():
            together.setdefault(tuples.get(key, key), {})[key] = nbytes
        for group in together.values():
            if sum(group.values()) < PAGE_BYTES:
                for key, nbytes in group.items():
                    yield key, self.read, self.read.allocate(nbytes)
            else:
                shared = SharedPages(self._pages, laid_out(group.values()))
                if not self.reaches(shared):
                    shared.close()
                    raise self.read.full(shared.nbytes)
                yield from [(key, shared, address) for key, address in zip(group, shared.places, strict=True)]

    def reaches(self, home: ObjectHome) -> bool:
        """Return True if kernels of this window find what has its home there; shared memory is mapped first.

        Shared memory is not found if the window has no addresses left for it, or if this process can map no more.
        """
        if not isinstance(home, SharedPages):
            return home in self.heaps
        if home not in self._seen:
            start = self.read.reserve(home.nbytes)
            if start is None:
                return False
            if not home.show(self, start):
                self.read.release(start, home.nbytes)
                return False
            self._seen[home] = start - home.start
        return True

    def seen_at(self, address: int, home: ObjectHome) -> int:
        """Return the address at which kernels of this window find an object that it `reaches`."""
        return address + self._seen[home] if isinstance(home, SharedPages) else address

    def forget(self, shared: SharedPages) -> None:
        """Give the addresses of shared memory back, of which nothing is mapped any more."""
        self.read.release(self.seen_at(shared.start, shared), shared.nbytes)
        del self._seen[shared]

    @abstractmethod
    def load(self, library: Library) -> LoadedLibrary:
        """Load a library whose kernels are confined to the window; see `code.load`."""

    def close(self) -> None:
        """Give the addresses back. All memory of the heaps must be free, and all libraries unloaded."""
        for shared in list(self._seen):
            shared.hide(self)
        self._addresses.close()
        call(driver.cuMemAddressFree, self._mirror, self._heap_bytes)


def window_bytes(memory_bytes: int, factor: int) -> int:
    """Return the addresses of a window, a power of two: each heap has so many times the device's memory, or more."""
    return 2 << (factor * max(memory_bytes, 64 << 20) - 1).bit_length()


class Heap:
    """A part of a window from which memory is allocated.

    Args:
        start, end: the addresses. mirror: where pages are mapped a second time, to be written; None: kernels write
            them. pages: the device's.
    """

    def __init__(self, start: int, end: int, mirror: int | None, pages: Pages) -> None:
        self._start, self._mirror = start, mirror
        self._memory = pages
        self._lock = Lock()
        self._holes = [(start, end)]  # by address, none beside another
        self._sizes: dict[int, int] = {}  # of allocations, by address
        self._pages: dict[int, Any] = {}  # by number
        self._users: Counter[int] = Counter()  # the allocations that lie in each page

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, for kernels. Its bytes are undefined, but never another client's.

        Raises:
            OutOfDeviceMemory: the device has not enough.
        """
        self._memory.check(nbytes)
        with self._lock:
            return self._allocate(aligned(nbytes))

    def _allocate(self, nbytes: int) -> int:
        start = self._take_hole(nbytes, ALIGNMENT_BYTES)
        if start is None:
            raise self.full(nbytes)
        self._sizes[start] = nbytes
        pages = self._pages_of(start)
        try:
            self._take([page for page in pages if not self._users[page]])
        except KaasError:
            del self._sizes[start]
            self._add_hole(start, start + nbytes)
            raise
        self._users.update(pages)
        return start

    def full(self, nbytes: int) -> OutOfDeviceMemory:
        """Return the error of an allocation for which there are no addresses."""
        message = f"the window has no {nbytes} addresses left"
        return OutOfDeviceMemory(message, device=self._memory.name, needed_bytes=nbytes)

    def reserve(self, nbytes: int) -> int | None:
        """Return the first of so many addresses, for whole pages that others map there; None if there are none."""
        with self._lock:
            return self._take_hole(nbytes, PAGE_BYTES)

    def release(self, start: int, nbytes: int) -> None:
        """Give reserved addresses back, where nothing is mapped."""
        with self._lock:
            self._add_hole(start, start + nbytes)

    def written_at(self, address: int) -> int:
        """Return the address at which copies write what kernels find at an address."""
        return address if self._mirror is None else address - self._start + self._mirror

    def free(self, address: int) -> None:
        """Free memory that no stream uses any more."""
        with self._lock:
            pages = self._pages_of(address)
            self._add_hole(address, address + self._sizes.pop(address))
            self._users.subtract(pages)
            self._give([page for page in pages if not self._users[page]])

    @property
    def used_bytes(self) -> int:
        """Bytes of physical memory."""
        return len(self._pages) * PAGE_BYTES

    def _pages_of(self, address: int) -> range:
        return pages_of(address - self._start, self._sizes[address])

    def _take(self, pages: Sequence[int]) -> None:
        """Map pages. They are in a row, since others lie in the first and the last page of an allocation only."""
        if not pages:
            return
        address = self._start + pages[0] * PAGE_BYTES
        written = self.written_at(address)
        made = self._memory.make(written, len(pages))
        if self._mirror is not None:
            try:
                self._memory.map(address, made, writable=False)
            except BaseException:
                unmap(written, len(pages))
                self._memory.give(made)
                raise
        self._pages.update(zip(pages, made, strict=True))

    def _give(self, pages: Sequence[int]) -> None:
        if not pages:
            return
        address = self._start + pages[0] * PAGE_BYTES
        for start in {address, self.written_at(address)}:
            unmap(start, len(pages))
        self._memory.give([self._pages.pop(page) for page in pages])

    def _take_hole(self, nbytes: int, alignment: int) -> int | None:
        for at, (first, end) in enumerate(self._holes):
            start = -(-first // alignment) * alignment
            if end - start >= nbytes:
                self._holes[at : at + 1] = [
                    each for each in ((first, start), (start + nbytes, end)) if each[0] < each[1]
                ]
                return start
        return None

    def _add_hole(self, start: int, end: int) -> None:
        at = bisect_left(self._holes, (start, end))
        if at < len(self._holes) and self._holes[at][0] == end:
            end = self._holes.pop(at)[1]
        if at and self._holes[at - 1][1] == start:
            start = self._holes.pop(at - 1)[0]
        insort(self._holes, (start, end))


class SharedPages:
    """Memory of one object, or of constants of one function, which every client may read that names them.

    The first of its addresses, outside of all windows, is where copies write it. A window shows all of it at other
    addresses, since a client that names one of the constants names all of them. Pages that nothing uses go before the
    others.

    Fields:
        start, nbytes: its addresses. places: those of the objects, in the order of their sizes. on_free: called with
            the address of an object before its memory goes.
    """

    def __init__(
        self, pages: Pages, sizes: Mapping[int, int], *, adopted: Mapping[int, Any] | None = None, cleared: bool = True
    ) -> None:
        """Allocate the memory, or map pages that there are.

        Args:
            pages: of the device.
            sizes: bytes of each object, by its distance from the start.
            adopted: the pages with the objects' bytes, by number; None: new ones are made.
            cleared: as of `Pages.make`.

        Raises:
            OutOfDeviceMemory: the device has not enough.
        """
        last, self.on_free = max(sizes), _nothing
        self.nbytes = -(-(last + aligned(sizes[last])) // PAGE_BYTES) * PAGE_BYTES
        if adopted is None:
            pages.check(self.nbytes)
        self.start = int(call(driver.cuMemAddressReserve, self.nbytes, PAGE_BYTES, 0, 0))
        self._sizes = {self.start + start: nbytes for start, nbytes in sizes.items()}
        self.places = list(self._sizes)
        self._pages = pages
        self._memory: dict[int, Any] = {}  # by number
        self._users = Counter(page for place in self.places for page in self._pages_of(place))
        self._windows: set[ClientWindow] = set()
        try:
            if adopted is None:
                made = pages.make(self.start, self.nbytes // PAGE_BYTES, cleared=cleared)
                self._memory.update(enumerate(made))
            else:
                for row in rows(adopted):
                    pages.map(self.start + row.start * PAGE_BYTES, [adopted[page] for page in row], writable=True)
                    self._memory.update((page, adopted[page]) for page in row)
        except KaasError:
            pages.give([adopted[page] for page in adopted if page not in self._memory] if adopted else ())
            self.close()
            raise

    def offsets(self) -> list[int]:
        """Return the places of all pages in the file of the device's memory, on a software device."""
        return [adoption.offset(page) for page in self._memory.values()]

    def show(self, window: ClientWindow, start: int) -> bool:
        """Map the memory for reading at the addresses of a window from start on.

        Return False, with nothing mapped there, if this process can map no more.
        """
        shown: list[range] = []
        try:
            for row in rows(self._memory):
                pages = [self._memory[page] for page in row]
                self._pages.map(start + row.start * PAGE_BYTES, pages, writable=False)
                shown.append(row)
        except OutOfDeviceMemory:
            for row in shown:
                unmap(start + row.start * PAGE_BYTES, len(row))
            return False
        self._windows.add(window)
        return True

    def hide(self, window: ClientWindow) -> None:
        """Unmap the memory in a window."""
        start = window.seen_at(self.start, self)
        for row in rows(self._memory):
            unmap(start + row.start * PAGE_BYTES, len(row))
        self._windows.remove(window)
        window.forget(self)

    def written_at(self, address: int) -> int:
        """Return the address itself, which is outside of all windows."""
        return address

    def free(self, address: int) -> None:
        """Free one of the objects, which no stream uses any more."""
        self.on_free(address)
        pages = self._pages_of(address)
        self._users.subtract(pages)
        self._free([page for page in pages if not self._users[page]])
        del self._sizes[address]
        if not self._sizes:
            self.close()

    def close(self) -> None:
        """Free what is left, and give the addresses back."""
        self._free(list(self._memory))
        for window in list(self._windows):
            self.hide(window)
        call(driver.cuMemAddressFree, self.start, self.nbytes)

    def _pages_of(self, place: int) -> range:
        return pages_of(place - self.start, self._sizes[place])

    def _free(self, pages: Sequence[int]) -> None:
        for row in rows(pages):
            for start in (self.start, *(window.seen_at(self.start, self) for window in self._windows)):
                unmap(start + row.start * PAGE_BYTES, len(row))
        self._pages.give([self._memory.pop(page) for page in pages])


def laid_out(sizes: Iterable[int]) -> dict[int, int]:
    """Return sizes by the places that objects have one behind the other."""
    ends = list(accumulate(map(aligned, sizes := list(sizes))))
    return dict(zip([0, *ends], sizes, strict=False))


def _nothing(address: int) -> None:
    """Take in that an object goes that nobody has asked about."""


def aligned(nbytes: int) -> int:
    """Return the bytes that an allocation takes."""
    return max(1, -(-nbytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
