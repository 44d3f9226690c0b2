"""Physical memory of a device, in pages that are mapped at addresses of windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from cuda.bindings import driver

import softgpu
from kaas.errors import KaasError
from kaas.executor.device.device_memory import HOST_ROOM, clear, refusal
from kaas.executor.device.driver_errors import call
from softgpu import adoption

PAGE_BYTES = 2 << 20
"""The unit in which memory is mapped: CUDA's smallest (cuMemGetAllocationGranularity)."""


class Pages:
    """Physical memory of one device, page by page. Any thread may use it.

    Pages that are given back stay here, to be used again by any window: the system takes long to make new ones.

    Fields:
        device: the driver's handle. name: of the device, for errors.
    """

    def __init__(self, device: Any, name: str, *, on_host: bool) -> None:
        """on_host: the device's memory is host memory, where new pages are zeros."""
        self.device, self.name = device, name
        self._on_host = on_host
        self._lock = Lock()
        self._spare: list[Any] = []
        properties = self._properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(device)

    @property
    def spare_bytes(self) -> int:
        """Bytes of the pages that are to be used again."""
        return len(self._spare) * PAGE_BYTES

    def check(self, nbytes: int) -> None:
        """Raise OutOfDeviceMemory if so much memory has no room on the host."""
        if self._on_host:
            HOST_ROOM.check(max(0, nbytes - self.spare_bytes), self.name)

    def adopt(self, file: int, offsets: Sequence[int]) -> list[Any]:
        """Return the pages at these offsets of a memory file, in which all pages of this device lie from now on.

        Raises:
            KaasError: the device has pages already, or the file has none there. All in the file may be lost.
        """
        try:
            return list(adoption.adopt(file, offsets, int(self.device)))
        except softgpu.SoftgpuError as error:
            raise KaasError(f"{self.name}: {error}") from None

    def make(self, address: int, count: int, *, cleared: bool = True) -> list[Any]:
        """Return pages, which are mapped one behind the other from an address on, where copies may write.

        cleared: they are zeros. Otherwise they may have bytes of earlier uses.

        Raises:
            OutOfDeviceMemory: the device has not enough.
        """
        made = self._again(count)
        used = len(made) if self._on_host else count  # a GPU may have new ones from another process
        try:
            while len(made) < count:
                made.append(self._new())
            self.map(address, made, writable=True)
        except BaseException:
            self.give(made)
            raise
        if used and cleared:
            clear(address, used * PAGE_BYTES)
        return made

    def give(self, pages: Iterable[Any]) -> None:
        """Give pages back, which are mapped nowhere any more."""
        with self._lock:
            self._spare.extend(pages)

    def trim(self) -> None:
        """Give the driver back the pages that nothing uses."""
        for page in self._again(len(self._spare)):
            call(driver.cuMemRelease, page)

    def map(self, address: int, pages: Sequence[Any], *, writable: bool) -> None:
        """Map pages one behind the other from an address on: all of them, or none."""
        access, flags = driver.CUmemAccessDesc(), driver.CUmemAccess_flags
        access.location = self._properties.location
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        count = 0
        try:
            for page in pages:
                call(driver.cuMemMap, address + count * PAGE_BYTES, PAGE_BYTES, 0, page, 0)
                count += 1
            call(driver.cuMemSetAccess, address, count * PAGE_BYTES, [access], 1)
        except BaseException:
            if count:
                unmap(address, count)
            raise

    def _again(self, count: int) -> list[Any]:
        """Return up to so many pages that are to be used again, neighbours beside each other."""
        with self._lock:
            at = max(0, len(self._spare) - count)
            pages = self._spare[at:]
            del self._spare[at:]
        return pages

    def _new(self) -> Any:
        status, page = driver.cuMemCreate(PAGE_BYTES, self._properties, 0)
        if status:
            raise refusal("cuMemCreate", int(status), PAGE_BYTES, self.name)
        return page


def unmap(address: int, count: int) -> None:
    """Unmap so many pages from an address on."""
    call(driver.cuMemUnmap, address, count * PAGE_BYTES)


def pages_of(offset: int, nbytes: int) -> range:
    """Return the numbers of the pages in which some bytes lie; 0 bytes lie in one page."""
    return range(offset // PAGE_BYTES, (offset + max(1, nbytes) - 1) // PAGE_BYTES + 1)


def rows(pages: Iterable[int]) -> Iterator[range]:
    """Yield numbers of pages, which are in order, as rows without gaps."""
    row = range(0)
    for page in pages:
        if row and page != row.stop:
            yield row
            row = range(0)
        row = range(row.start if row else page, page + 1)
    if row:
        yield row
