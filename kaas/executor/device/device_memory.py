"""Device memory in stream order, and page-locked host memory. Addresses are ints.

Linux ends a process that takes too much host memory, without a word: `HOST_ROOM` refuses before. A software device's
memory is host memory.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from cuda.bindings import driver

import softgpu
from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.device.driver_errors import call, check, error_of


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


def clear(address: int, nbytes: int) -> None:
    """Write zeros to device memory that no stream uses, and wait for them."""
    call(driver.cuMemsetD8, address, 0, nbytes)
    call(driver.cuStreamSynchronize, 0)


def write(address: int, data: bytes) -> None:
    """Write bytes to device memory that no stream uses, and wait for them."""
    if data:
        call(driver.cuMemcpyHtoD, address, data, len(data))
        call(driver.cuStreamSynchronize, 0)  # a copy of pageable memory may return before its end


PART = 8
"""An eighth of what a look has found is taken without another look, which may take milliseconds."""


class HostRoom:
    """Checks allocations of host memory, of all devices of this process."""

    def __init__(self, look: Callable[[], int]) -> None:
        """look: returns the bytes that this process may still take."""
        self._look = look
        self._allowed_bytes = 0

    def check(self, nbytes: int, device: str) -> None:
        """Check that an allocation has room. device: its name, for errors.

        Raises:
            OutOfDeviceMemory: the machine, or a control group of this process, has not enough.
        """
        if nbytes > self._allowed_bytes:
            left = self._look()
            if left < nbytes:
                self._allowed_bytes = 0
                message = f"{device}: {nbytes} bytes of host memory are needed, and this process may take {left} more"
                raise OutOfDeviceMemory(message, device=device, needed_bytes=nbytes, free_bytes=left)
            self._allowed_bytes = max(nbytes, left // PART)
        self._allowed_bytes -= nbytes

    def has(self, nbytes: int) -> bool:
        """Return True if an allocation has room, and count it."""
        try:
            self.check(nbytes, "")
        except OutOfDeviceMemory:
            return False
        return True


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still take before Linux ends a process.

    Sources: MemAvailable of /proc/meminfo; limits of control groups, versions 1 and 2. An unreadable file sets none.
    """
    found = [*_machine(root / "proc/meminfo"), *_groups(root)]
    return max(0, min(found)) if found else 1 << 62


def _machine(meminfo: Path) -> Iterator[int]:
    for line in _lines(meminfo):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            yield int(value.split()[0]) << 10


def _groups(root: Path) -> Iterator[int]:
    """Yield what each control group of this process leaves; files that are unused for long give way."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _group(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _group(root / "sys/fs/cgroup/memory", path, *files)


def _group(mount: Path, path: str, limit: str, usage: str, idle: str) -> Iterator[int]:
    folder = mount / path.lstrip("/")
    for each in (folder, *folder.parents):
        if each != mount and mount not in each.parents:
            return
        most, used = _number(each / limit), _number(each / usage)
        if most is not None and used is not None:
            stat = dict(line.split()[:2] for line in _lines(each / "memory.stat"))
            yield most - used + int(stat.get(idle, 0))


def _number(path: Path) -> int | None:
    (text, *_) = _lines(path) or [""]
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


HOST_ROOM = HostRoom(available_bytes)


class ObjectHome(Protocol):
    """Device memory in which objects lie, each until it is freed."""

    def free(self, address: int) -> None:
        """Free memory that no stream uses any more."""

    def written_at(self, address: int) -> int:
        """Return the address at which copies write what kernels find at an address."""


class DeviceHeap(ObjectHome, Protocol):
    """Device memory that is allocated and freed."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory, for kernels. Raise OutOfDeviceMemory if there is not enough."""


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


# --- memory of several processes

_FILE = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE


def sealed_file(values: Sequence[tuple[int, Any]], whole_bytes: int, ordinal: int, device: str) -> int:
    """Make device memory of values, and return its descriptor, by which other processes map it and read.

    Memory of a software device is sealed: no process can write it. The driver of a GPU lets each process that has a
    descriptor map the memory as it likes.

    Args:
        values: each with its offset, a multiple of 256.
        whole_bytes: of the memory, a multiple of the driver's granularity.
        ordinal: the number of the device.
        device: its name, for errors.

    Raises:
        OutOfDeviceMemory: the device, or the machine, has not enough.
    """
    sealed = bool(softgpu.loaded_devices())
    if sealed:
        HOST_ROOM.check(whole_bytes, device)
    properties = driver.CUmemAllocationProp()
    properties.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = ordinal
    properties.requestedHandleTypes = _FILE
    status, memory = driver.cuMemCreate(whole_bytes, properties, 0)
    if status:
        raise refusal("cuMemCreate", int(status), whole_bytes, device)
    try:
        mapped = _Mapping(memory, whole_bytes, _WRITE)
        try:
            for offset_bytes, value in values:
                data = np.frombuffer(value, np.uint8) if len(value) else np.empty(0, np.uint8)
                if data.nbytes:
                    call(driver.cuMemcpyHtoD, mapped.address + offset_bytes, data.ctypes.data, data.nbytes)
            call(driver.cuStreamSynchronize, 0)  # a copy of pageable memory may return before its end
        finally:
            mapped.close()
        if sealed:
            softgpu.seal(memory)
        return int(call(driver.cuMemExportToShareableHandle, memory, _FILE, 0))
    finally:
        call(driver.cuMemRelease, memory)


class HeldMemory:
    """Device memory that another process has made, which kernels here can only read. It is mapped while it is used."""

    def __init__(self, file: int) -> None:
        """Keep a copy of its descriptor.

        Raises:
            OSError: this process has no descriptor left.
        """
        self._file = os.dup(file)
        self._mapping: _Mapping | None = None
        self._uses = 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def take(self, whole_bytes: int) -> int:
        """Return the address of the memory, which has so many bytes. One `free` ends this use.

        Raises:
            OutOfDeviceMemory: the driver has no room. DeviceError: the descriptor is of no sealed device memory.
        """
        if self._mapping is None:
            memory = call(driver.cuMemImportFromShareableHandle, self._file, _FILE)
            try:
                self._mapping = _Mapping(memory, whole_bytes, _READ)
            finally:
                call(driver.cuMemRelease, memory)  # it stays while it is mapped
        self._uses += 1
        return self._mapping.address

    def free(self, address: int) -> None:  # noqa: ARG002 - it is one mapping
        """End one use; no kernel and no stream reads there any more."""
        self._uses -= 1
        if not self._uses and self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def free_idle(self) -> None:
        """End one use, once the device has done all its work."""
        call(driver.cuCtxSynchronize)
        self.free(0)

    def written_at(self, address: int) -> int:
        """Return the address itself; nothing can write there."""
        return address


class _Mapping:
    """Memory at addresses of its own, from `address` on."""

    def __init__(self, memory: Any, nbytes: int, flags: Any) -> None:
        """Map memory of a handle; flags: of its access."""
        self._nbytes = nbytes
        self.address = int(call(driver.cuMemAddressReserve, nbytes, 0, 0, 0))
        try:
            call(driver.cuMemMap, self.address, nbytes, 0, memory, 0)
            try:
                access = driver.CUmemAccessDesc()
                access.location = call(driver.cuMemGetAllocationPropertiesFromHandle, memory).location
                access.flags = flags
                call(driver.cuMemSetAccess, self.address, nbytes, [access], 1)
            except BaseException:
                call(driver.cuMemUnmap, self.address, nbytes)
                raise
        except BaseException:
            call(driver.cuMemAddressFree, self.address, nbytes)
            raise

    def close(self) -> None:
        """Unmap it, and give the addresses back."""
        call(driver.cuMemUnmap, self.address, self._nbytes)
        call(driver.cuMemAddressFree, self.address, self._nbytes)
