"""Memory of a device in stream order, and page-locked memory of the host. Addresses are ints."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cuda.bindings import driver

from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.device.driver_errors import call, check, error_of


def free_bytes() -> int:
    """Return the bytes that the driver could still hand out on the current device."""
    free, _ = call(driver.cuMemGetInfo)
    return int(free)


def refusal(name: str, status: int, nbytes: int, device: str) -> KaasError:
    """Return the error of a call that gave no memory."""
    error = error_of(name, status, device)
    if isinstance(error, OutOfDeviceMemory):
        error.needed_bytes, error.free_bytes = nbytes, free_bytes()
    return error


class MemoryPool:
    """Device memory in stream order (cuMemAllocFromPoolAsync): what was freed stays here for what comes.

    It has a stream of its own, on which nothing else runs. Free unused memory, allocate, and `settle`: then
    every stream may use the memory.
    """

    def __init__(self, handle: Any, device: str) -> None:
        """
        Args:
            device: its name, for errors.
        """
        self._handle = handle
        self._device = device
        self._stream = call(driver.cuStreamCreate, driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        attributes = driver.CUmemPool_attribute
        self._reserved, self._used = (
            attributes.CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
            attributes.CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        )
        keep_all = driver.cuuint64_t((1 << 64) - 1)
        call(driver.cuMemPoolSetAttribute, handle, attributes.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, keep_all)

    def allocate(self, nbytes: int) -> int:
        """
        Raises:
            OutOfDeviceMemory
        """
        status, address = driver.cuMemAllocFromPoolAsync(nbytes, self._handle, self._stream)
        if status:
            raise refusal("cuMemAllocFromPoolAsync", int(status), nbytes, self._device)
        return int(address)

    def free(self, address: int) -> None:
        check("cuMemFreeAsync", driver.cuMemFreeAsync(address, self._stream)[0])

    def settle(self) -> None:
        """Waits for the memory calls themselves: no kernel and no copy stands before them."""
        check("cuStreamSynchronize", driver.cuStreamSynchronize(self._stream)[0])

    def used_bytes(self) -> int:
        """What was allocated and not freed."""
        return int(call(driver.cuMemPoolGetAttribute, self._handle, self._used))

    def idle_bytes(self) -> int:
        """Unused bytes that the pool holds: `free_bytes` counts it as taken."""
        return int(call(driver.cuMemPoolGetAttribute, self._handle, self._reserved)) - self.used_bytes()

    def close(self) -> None:
        """Gives all back; everything must have been freed."""
        self.settle()
        call(driver.cuMemPoolDestroy, self._handle)
        call(driver.cuStreamDestroy, self._stream)


class HostMemory:
    """Page-locked memory of the host. address, nbytes: where it lies; data: the same, as bytes to write."""

    __slots__ = ("address", "data", "nbytes")

    def __init__(self, address: int, nbytes: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.data = np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))

    def close(self) -> None:
        call(driver.cuMemFreeHost, self.address)
