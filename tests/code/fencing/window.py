"""A window of addresses on device 0, as the host of several tenants makes it, and modules whose kernels stay in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cuda.bindings import driver

from kaas.code.fencing import Fenced, fence
from softgpu.tests.compiler.corpus import device
from softgpu.tests.compiler.corpus.case import HERE, Arrays, Case, Launch
from softgpu.tests.compiler.corpus.device import call

SIZE = 4 << 30
"""Bytes of the window. All its addresses have memory, the same at each multiple of MEMORY: no confined access fails."""
MEMORY = 64 << 20
GUARD = 4 << 30
"""Bytes on each side of the window, without memory."""


def _properties() -> driver.CUmemAllocationProp:
    made = driver.CUmemAllocationProp()
    made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = 0
    return made


@dataclass
class Window:
    """base: the first address; the addresses from there to `end` are given out."""

    base: int
    end: int = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.base

    def allocate(self, size: int, alignment: int = 256) -> int:
        """Return the address of new memory, filled with zeros."""
        address = -(-self.end // alignment) * alignment
        self.end = address + max(size, 1)
        assert self.end <= self.base + MEMORY
        call(driver.cuMemsetD8(address, 0, max(size, 1)))
        return address

    def put(self, array: np.ndarray) -> int:
        """Return the address of a copy."""
        address = self.allocate(array.nbytes)
        call(driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))
        return address


@contextmanager
def _memory(before: int, mapped: int, times: int, after: int) -> Iterator[int]:
    """Memory, at several addresses, with addresses around it that have none; the first address."""
    whole = before + mapped * times + after
    reserved = int(call(driver.cuMemAddressReserve(whole, SIZE, 0, 0)))
    memory = call(driver.cuMemCreate(mapped, _properties(), 0))
    access = driver.CUmemAccessDesc()
    access.location, access.flags = _properties().location, driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    for place in range(times):
        call(driver.cuMemMap(reserved + before + place * mapped, mapped, 0, memory, 0))
    call(driver.cuMemSetAccess(reserved + before, mapped * times, [access], 1))
    try:
        yield reserved + before
    finally:
        call(driver.cuMemUnmap(reserved + before, mapped * times))
        call(driver.cuMemRelease(memory))
        call(driver.cuMemAddressFree(reserved, whole))


@contextmanager
def window() -> Iterator[Window]:
    """A window full of memory."""
    device.use_device()
    with _memory(GUARD, MEMORY, SIZE // MEMORY, GUARD) as base:
        yield Window(base)


@contextmanager
def outside() -> Iterator[int]:
    """Memory of another tenant; confined, its addresses lie in the middle of the window."""
    with _memory(SIZE // 2 + MEMORY // 2, 2 << 20, 1, SIZE) as base:
        yield base


class Module(device.Library):
    """A module that is confined to a window. address: of its block of variables."""

    def __init__(self, ptx: str, within: Window) -> None:
        self.fenced: Fenced = fence(ptx)
        self._library = call(driver.cuLibraryLoadData(self.fenced.ptx.encode() + b"\0", [], [], 0, [], [], 0))
        block = self.fenced.variables
        self.address = within.allocate(block.size_bytes, max(block.alignment, 256))
        self.write(self.address, block.at(self.address))
        values = np.frombuffer(self.fenced.values(within.base, SIZE, self.address), np.uint8)
        constant, size = call_two(driver.cuLibraryGetGlobal(self._library, self.fenced.window.encode()))
        assert size == values.nbytes
        call(driver.cuMemcpyHtoD(constant, values.ctypes.data, values.nbytes))

    def write(self, address: int, content: bytes) -> None:
        """Write bytes to the device."""
        array = np.frombuffer(content, np.uint8)
        if array.nbytes:
            call(driver.cuMemcpyHtoD(address, array.ctypes.data, array.nbytes))

    def variable(self, name: str) -> np.ndarray:
        """Return the bytes of a variable."""
        offset, size = self.fenced.variables.places[name]
        return read(self.address + offset, np.empty(size, np.uint8))


def read(address: int, array: np.ndarray) -> np.ndarray:
    """Fill an array from the device, and return it."""
    call(driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
    return array


def call_two(result: Any) -> tuple[int, int]:
    """Return the two values of a call of the driver that must succeed."""
    status, first, second = result
    assert status == driver.CUresult.CUDA_SUCCESS, status
    return int(first), int(second)


def run(case: Case) -> Arrays:
    """Return the contents of the arrays under test after the launches, in a window, of a case of the corpus."""
    with window() as within:
        module = Module((HERE / case.image).read_text(), within)
        addresses = {name: within.put(np.ascontiguousarray(array)) for name, array in case.arrays.items()}
        for one in case.launches:
            module.launch(one, addresses)
        with device.ending():
            call(driver.cuCtxSynchronize())
        found = {
            name: read(addresses[name], np.empty(case.arrays[name].shape, case.arrays[name].dtype))
            for name in case.expected
        }
        module.close()
    return found


def launch(ptx: str, arrays: Arrays, *launches: Launch) -> Arrays:
    """Return the arrays after launches of kernels of a module in a window."""
    with window() as within:
        module = Module(ptx, within)
        addresses = {name: within.put(array) for name, array in arrays.items()}
        for one in launches:
            module.launch(one, addresses)
        with device.ending():
            call(driver.cuCtxSynchronize())
        found = {name: read(addresses[name], np.empty_like(array)) for name, array in arrays.items()}
        module.close()
    return found
