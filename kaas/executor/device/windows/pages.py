"""Physical memory of a device, in pages that are mapped at addresses of windows."""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from kaas.executor.device.device_memory import HOST_ROOM, clear, refusal
from kaas.executor.device.driver_errors import call

PAGE_BYTES = 2 << 20
"""The unit in which memory is mapped: CUDA's smallest (cuMemGetAllocationGranularity)."""


class Pages:
    """Physical memory of one device, page by page.

    Args:
        device: the driver's handle. name: of the device, for errors. on_host: its memory is host memory, which begins
            as zeros.
    """

    def __init__(self, device: Any, name: str, *, on_host: bool) -> None:
        self._on_host = on_host
        properties = self._properties = driver.CUmemAllocationProp()
        properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(device)
        self.name = name

    def check(self, nbytes: int) -> None:
        """Raise OutOfDeviceMemory if so much memory has no room on the host."""
        if self._on_host:
            HOST_ROOM.check(nbytes, self.name)

    def make(self, address: int) -> Any:
        """Return the handle of a new page, which is mapped at an address, where copies may write it.

        Raises:
            OutOfDeviceMemory: the device has not enough.
        """
        status, memory = driver.cuMemCreate(PAGE_BYTES, self._properties, 0)
        if status:
            raise refusal("cuMemCreate", int(status), PAGE_BYTES, self.name)
        try:
            self.map(address, memory, writable=True)
        except BaseException:
            call(driver.cuMemRelease, memory)
            raise
        if not self._on_host:  # a GPU may have it from another client, with the bytes that were there
            clear(address, PAGE_BYTES)
        return memory

    def map(self, address: int, memory: Any, *, writable: bool) -> None:
        """Map a page at an address."""
        access, flags = driver.CUmemAccessDesc(), driver.CUmemAccess_flags
        access.location = self._properties.location
        access.flags = flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE if writable else flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        call(driver.cuMemMap, address, PAGE_BYTES, 0, memory, 0)
        call(driver.cuMemSetAccess, address, PAGE_BYTES, [access], 1)


def unmap(address: int) -> None:
    """Unmap the page at an address."""
    call(driver.cuMemUnmap, address, PAGE_BYTES)


def pages_of(offset: int, nbytes: int) -> range:
    """Return the numbers of the pages in which some bytes lie; 0 bytes lie in one page."""
    return range(offset // PAGE_BYTES, (offset + max(1, nbytes) - 1) // PAGE_BYTES + 1)
