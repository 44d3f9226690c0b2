"""Device memory of one client, at addresses that its kernels cannot leave.

A window has two heaps. In one are arenas and outputs, which kernels may write. In the other are cached objects, which
kernels can only read: its pages are mapped a second time outside of the window, where copies put the bytes. Pages of
physical memory (cuMemCreate) come with the first allocation that lies in them, and go with the last one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

from cuda.bindings import driver

import softgpu
from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.device.code import LoadedLibrary, load
from kaas.executor.device.device_memory import HOST_ROOM, refusal
from kaas.executor.device.driver_errors import call
from kaas.ktask.library import Library

PAGE_BYTES = 2 << 20
"""The unit in which memory is mapped: CUDA's smallest (cuMemGetAllocationGranularity)."""
ALIGNMENT_BYTES = 256
"""The alignment that cuMemAlloc guarantees."""
WINDOW_FACTOR = 4
"""The addresses of each heap, in sizes of the device's memory: so much may be lost between allocations."""


class ClientWindow:
    """The window of one client on one device. Use it inside `device.context`, and by one thread at a time.

    Fields:
        written: the heap that kernels may write. read: the heap that they can only read. heaps: both.
    """

    def __init__(self, device: Any, name: str, memory_bytes: int) -> None:
        """Reserve addresses, which take no memory.

        Args:
            device: the driver's handle.
            name: of the device, for errors.
            memory_bytes: of the device.
        """
        self._device, self._name = device, name
        heap_bytes = 1 << (WINDOW_FACTOR * max(memory_bytes, 64 << 20) - 1).bit_length()
        self._addresses = softgpu.AddressWindow(2 * heap_bytes)
        middle = self._addresses.base + heap_bytes
        self._mirror = int(call(driver.cuMemAddressReserve, heap_bytes, 0, 0, 0))
        self._heap_bytes = heap_bytes
        properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(device)
        self.written = Heap(self._addresses.start, middle, None, properties, name)
        self.read = Heap(middle, self._addresses.end, self._mirror, properties, name)
        self.heaps = self.written, self.read

    def load(self, library: Library) -> LoadedLibrary:
        """Load a library whose kernels are confined to the window; see `code.load`."""
        with self._addresses.confined():
            return load(library, self._device, self._name)

    def close(self) -> None:
        """Give the addresses back. All memory must be free, and all libraries unloaded."""
        self._addresses.close()
        call(driver.cuMemAddressFree, self._mirror, self._heap_bytes)


class Heap:
    """A part of a window from which memory is allocated.

    Args:
        start, end: the addresses. mirror: where pages are mapped a second time, to be written; None: kernels write
            them. properties: of the physical memory. name: of the device, for errors.
    """

    def __init__(self, start: int, end: int, mirror: int | None, properties: Any, name: str) -> None:
        self._start, self._mirror = start, mirror
        self._properties, self._name = properties, name
        self._holes = [(start, end)]  # by address, none beside another
        self._sizes: dict[int, int] = {}  # of allocations, by address
        self._pages: dict[int, tuple[Any, int]] = {}  # by number: the memory, and the allocations that lie in it

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, for kernels. Its bytes are undefined, but never another client's.

        Raises:
            OutOfDeviceMemory: the device has not enough.
        """
        HOST_ROOM.check(nbytes, self._name)
        nbytes = max(1, -(-nbytes // ALIGNMENT_BYTES)) * ALIGNMENT_BYTES
        place = next((at for at, (start, end) in enumerate(self._holes) if end - start >= nbytes), None)
        if place is None:
            message = f"the window has no {nbytes} addresses left"
            raise OutOfDeviceMemory(message, device=self._name, needed_bytes=nbytes)
        start, end = self._holes.pop(place)
        if start + nbytes < end:
            self._holes.insert(place, (start + nbytes, end))
        self._sizes[start] = nbytes
        taken = []
        try:
            for page in self._pages_of(start):
                self._take(page)
                taken.append(page)
        except KaasError:
            del self._sizes[start]
            for page in taken:
                self._give(page)
            self._add_hole(start, start + nbytes)
            raise
        return start

    def written_at(self, address: int) -> int:
        """Return the address at which copies write what kernels find at an address."""
        return address if self._mirror is None else address - self._start + self._mirror

    def free(self, address: int) -> None:
        """Free memory that no stream uses any more."""
        pages = list(self._pages_of(address))
        self._add_hole(address, address + self._sizes.pop(address))
        for page in pages:
            self._give(page)

    @property
    def used_bytes(self) -> int:
        """Bytes of physical memory."""
        return len(self._pages) * PAGE_BYTES

    def _pages_of(self, address: int) -> Iterator[int]:
        first, last = address - self._start, address - self._start + self._sizes[address] - 1
        return iter(range(first // PAGE_BYTES, last // PAGE_BYTES + 1))

    def _take(self, page: int) -> None:
        memory, users = self._pages.get(page, (None, 0))
        if not users:
            memory = self._new_page(page)
        self._pages[page] = memory, users + 1

    def _new_page(self, page: int) -> Any:
        status, memory = driver.cuMemCreate(PAGE_BYTES, self._properties, 0)
        if status:
            raise refusal("cuMemCreate", int(status), PAGE_BYTES, self._name)
        flags = driver.CUmemAccess_flags
        write = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        kernels = write if self._mirror is None else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        self._map(self._start + page * PAGE_BYTES, memory, kernels)
        if self._mirror is not None:
            self._map(self._mirror + page * PAGE_BYTES, memory, write)
        return memory

    def _map(self, address: int, memory: Any, flags: Any) -> None:
        access = driver.CUmemAccessDesc()
        access.location, access.flags = self._properties.location, flags
        call(driver.cuMemMap, address, PAGE_BYTES, 0, memory, 0)
        call(driver.cuMemSetAccess, address, PAGE_BYTES, [access], 1)

    def _give(self, page: int) -> None:
        memory, users = self._pages[page]
        if users > 1:
            self._pages[page] = memory, users - 1
            return
        del self._pages[page]
        call(driver.cuMemUnmap, self._start + page * PAGE_BYTES, PAGE_BYTES)
        if self._mirror is not None:
            call(driver.cuMemUnmap, self._mirror + page * PAGE_BYTES, PAGE_BYTES)
        call(driver.cuMemRelease, memory)

    def _add_hole(self, start: int, end: int) -> None:
        at = bisect_left(self._holes, (start, end))
        if at < len(self._holes) and self._holes[at][0] == end:
            end = self._holes.pop(at)[1]
        if at and self._holes[at - 1][1] == start:
            start = self._holes.pop(at - 1)[0]
        insort(self._holes, (start, end))
