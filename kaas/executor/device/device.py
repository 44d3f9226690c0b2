"""A device of the CUDA driver: how it is opened, what it can do, and the context of its calls.

The folder is the only importer of cuda.*: `memory`, `code`, `streams` and `graphs` hold what a device has, and every
status of the driver goes through `driver_errors.check`, which makes a typed error of it. Resources have `close()`;
nothing is freed by the garbage collector. Whether the driver below is NVIDIA's or the software GPU shows nowhere but in
`open_device`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from cuda.bindings import driver

import softgpu
from kaas.errors import DeviceUnavailable
from kaas.executor.device import software
from kaas.executor.device.code import LoadedLibrary, load
from kaas.executor.device.driver_errors import call, check
from kaas.executor.device.graphs import Graph
from kaas.executor.device.memory import HostMemory, MemoryPool, free_bytes, refusal
from kaas.executor.device.streams import EventPair, Stream
from kaas.ktask.library import Library

_GPU_USABLE = 0.9
"""Share of a real GPU's free memory that we plan with; the rest is for contexts, code, graphs and local memory."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a device is. kind: "gpu" or "software"; memory_bytes: all that it has, or that we were told to use."""

    kind: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """What a launch may ask for; shared memory in bytes of a block, opt-in being what a kernel may be allowed."""

    threads: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int
    shared_optin_bytes: int


def gpu_count() -> int:
    """Number of real GPUs that this process could open."""
    if softgpu.loaded_devices() or not _real_driver():
        return 0
    call(driver.cuInit, 0)
    return int(call(driver.cuDeviceGetCount))


@cache
def _real_driver() -> bool:
    return softgpu.real_driver_present()


def open_device(kind: str = "gpu", ordinal: int = 0, *, memory_bytes: int | None = None) -> OpenDevice:
    """Opens a device and its primary context.

    Args:
        kind: "gpu", or "software": the CPU, through `softgpu`, which is loaded with one device if it is not yet.
        ordinal: which one, as this process sees them.
        memory_bytes: of a GPU, use no more than this; of the software GPU, how much it gets if it is loaded now.

    Raises:
        DeviceUnavailable: no driver, no such device, or the other kind's driver is in this process.
    """
    if kind == "software":
        if not softgpu.loaded_devices():
            with software.unavailable():
                softgpu.load((memory_bytes or softgpu.DEFAULT_MEMORY_BYTES,))
    elif kind != "gpu":
        raise DeviceUnavailable(f'a device is of kind "gpu" or "software", not {kind!r}')
    elif softgpu.loaded_devices():
        raise DeviceUnavailable("this process runs the software GPU; real GPUs need another process")
    try:
        call(driver.cuInit, 0)
        handle = call(driver.cuDeviceGet, ordinal)
        context = call(driver.cuDevicePrimaryCtxRetain, handle)
    except RuntimeError as error:  # no libcuda.so.1: nothing else of cuda.bindings may be called then
        raise DeviceUnavailable(f"no CUDA driver on this machine: {error}") from error
    return OpenDevice(kind, handle, context, memory_bytes)


class OpenDevice:
    """An open device. Its methods need its context: call them inside `with device.current()`.

    Fields:
        ordinal: its number, as this process sees them. limits: what a launch there may ask for. cancels: whether
            `cancel` can end kernels: no GPU can. checks: whether it looks after what its kernels access.
    """

    def __init__(self, kind: str, handle: Any, context: Any, memory_bytes: int | None) -> None:
        self._handle = handle
        self._context = context
        self._thread = threading.local()
        self.ordinal = int(handle)
        self.checks = kind == "software" and softgpu.checks_memory()
        self.cancels = kind == "software"
        total = int(call(driver.cuDeviceTotalMem, handle))
        name = call(driver.cuDeviceGetName, 256, handle).split(b"\0")[0].decode()
        a = driver.CUdevice_attribute
        capability = (
            self._attribute(a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self._info = DeviceInfo(kind, name, min(total, memory_bytes or total), capability)
        self.limits = self._read_limits()

    def info(self) -> DeviceInfo:
        return self._info

    def describe(self, address: int, nbytes: int, regions: Sequence[tuple[str, int, int]]) -> None:
        """Tells a device that `checks` what memory is used for (`softgpu.describe`)."""
        softgpu.describe(address, nbytes, regions)

    def usable_bytes(self) -> int:
        """Memory that objects and arenas may take."""
        if self._info.kind == "software":
            return self._info.memory_bytes
        return min(self._info.memory_bytes, int(self.free_bytes() * _GPU_USABLE))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the device's context the calling thread's, and puts the thread's own back."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        if not hasattr(self._thread, "stays"):
            check("cuCtxPushCurrent", driver.cuCtxPushCurrent(self._context)[0])

    def leave(self) -> None:
        if not hasattr(self._thread, "stays"):
            check("cuCtxPopCurrent", driver.cuCtxPopCurrent()[0])

    def stay(self) -> None:
        """Makes the device's context the calling thread's to its end, for one that does nothing else: to enter and to
        leave cost it nothing then."""
        self.enter()
        self._thread.stays = True

    def cancel(self) -> tuple[str, ...]:
        """Ends all kernels that run on the device, from any thread; its context is lost with them. Does not wait, and
        gives their symbols."""
        running = softgpu.running(int(self._handle))
        softgpu.cancel(int(self._handle))
        return running

    def take_printed(self) -> str:
        """What kernels have printed since it was last asked, if that can be had. It went to the process's stdout at
        once; what kernels of a GPU print goes there now at the latest."""
        if self._info.kind == "software":
            return softgpu.take_output(int(self._handle))
        ctypes.CDLL(None).fflush(None)  # else it stays in a buffer of this process, which may be killed
        return ""

    def close(self) -> None:
        """Gives the primary context back; everything of this device must be closed before."""
        call(driver.cuDevicePrimaryCtxRelease, self._handle)

    # --- memory: addresses are ints

    def allocate(self, nbytes: int) -> int:
        """
        Raises:
            OutOfDeviceMemory
        """
        status, address = driver.cuMemAlloc(nbytes)
        if status:
            raise refusal("cuMemAlloc", int(status), nbytes, self._info.name)
        return int(address)

    def free(self, address: int) -> None:
        call(driver.cuMemFree, address)

    def pool(self) -> MemoryPool:
        """Memory to allocate and free without the device standing still, as it does for `allocate` and `free`."""
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(self._handle)
        return MemoryPool(call(driver.cuMemPoolCreate, properties), self._info.name)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Page-locked host memory, from which copies travel at full speed and beside kernels.

        Raises:
            OutOfDeviceMemory: the driver cannot lock that much.
        """
        return HostMemory(int(call(driver.cuMemHostAlloc, nbytes, 0, device=self._info.name)), nbytes)

    def free_bytes(self) -> int:
        """Return the bytes that the driver could still hand out."""
        return free_bytes()

    # --- code

    def load(self, library: Library) -> LoadedLibrary:
        """Load the first of the library's images that this device can run; see `code.load`."""
        return load(library, self._handle, self._info.name)

    # --- streams and graphs

    def stream(self) -> Stream:
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return Stream(call(driver.cuStreamCreate, flags), EventPair())

    def graph(self) -> Graph:
        return Graph(call(driver.cuGraphCreate, 0))

    def _attribute(self, attribute: Any) -> int:
        return int(call(driver.cuDeviceGetAttribute, attribute, self._handle))

    def _read_limits(self) -> LaunchLimits:
        def three(what: str) -> tuple[int, int, int]:
            names = (f"CU_DEVICE_ATTRIBUTE_MAX_{what}_DIM_{axis}" for axis in "XYZ")
            x, y, z = (self._attribute(getattr(driver.CUdevice_attribute, name)) for name in names)
            return x, y, z

        a = driver.CUdevice_attribute
        return LaunchLimits(
            self._attribute(a.CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            three("BLOCK"),
            three("GRID"),
            self._attribute(a.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            self._attribute(a.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        )
