"""Device memory in stream order, and page-locked host memory. Addresses are ints."""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver

from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.device.driver_errors import call, check, error_of
from kaas.executor.device.host_room import HOST_ROOM


def free_bytes() -> int:
    """Return the bytes that the driver could still hand out on the current device."""
    free, _ = call(driver.cuMemGetInfo)
    return int(free)


def refusal(name: str, status: int, nbytes: int, device: str) -> KaasError:
    """Return the error of a call that allocated no memory."""
    error = error_of(name, status, device)
    if isinstance(error, OutOfDeviceMemory):
        error.needed_bytes, error.free_bytes = nbytes, free_bytes()
    return error


class DeviceHeap(Protocol):
    """Device memory that is allocated and freed."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, for kernels. Raise OutOfDeviceMemory if there is not enough."""

    def free(self, address: int) -> None:
        """Free memory that no stream uses any more."""

    def written_at(self, address: int) -> int:
        """Return the address at which copies write what kernels find at an address."""


class MemoryPool:
    """Device memory in stream order (cuMemAllocFromPoolAsync). Freed memory stays in the pool, to be used again.

    The pool has a stream of its own, on which nothing else runs. Callers free unused memory, allocate, and `settle`;
    then every stream may use the memory.
    """

    def __init__(self, handle: Any, device: str, *, on_host: bool) -> None:
        """Make the pool's stream, and let the pool keep freed memory.

        `device` is the device's name, for errors. on_host: the device's memory is host memory.
        """
        self._on_host = on_host
        self._handle = handle
        self._device = device
        self._stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        attributes = driver.CUmemPool_attribute
        self._used = attributes.CU_MEMPOOL_ATTR_USED_MEM_CURRENT
        keep_all = driver.cuuint64_t((1 << 64) - 1)
        call(driver.cuMemPoolSetAttribute, handle, attributes.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep_all)

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory. Raise OutOfDeviceMemory if there is not enough."""
        if self._on_host:
            HOST_ROOM.check(nbytes, self._device)
        status, address = driver.cuMemAllocFromPoolAsync(nbytes, self._handle, self._stream)
        if status:
            raise refusal("cuMemAllocFromPoolAsync", int(status), nbytes, self._device)
        return int(address)

    def free(self, address: int) -> None:
        """Free memory that no stream uses any more."""
        check("cuMemFreeAsync", driver.cuMemFreeAsync(address, self._stream)[0])

    def written_at(self, address: int) -> int:
        """Return the address itself: kernels may write this memory, and so may copies."""
        return address

    def settle(self) -> None:
        """Wait for the calls of `allocate` and `free`, which wait for no kernel and no copy."""
        check("cuStreamSynchronize", driver.cuStreamSynchronize(self._stream)[0])

    def used_bytes(self) -> int:
        """Return the bytes that are allocated and not freed."""
        return int(call(driver.cuMemPoolGetAttribute, self._handle, self._used))

    def trim(self) -> None:
        """Give the driver back the idle memory, as far as no object lies beside it (cuMemPoolTrimTo)."""
        self.settle()
        call(driver.cuMemPoolTrimTo, self._handle, 0)

    def close(self) -> None:
        """Destroy the pool. All its memory must be free."""
        self.settle()
        call(driver.cuMemPoolDestroy, self._handle)
        call(driver.cuStreamDestroy, self._stream)


class HostMemory:
    """Page-locked host memory. address, nbytes: its place and size; data: its bytes, as an array."""

    __slots__ = ("address", "data", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.data = np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))

    def close(self) -> None:
        """Unlock and free the memory."""
        call(driver.cuMemFreeHost, self.address)
