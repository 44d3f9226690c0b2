"""A device of the CUDA driver: opening it, its limits, and its resources.

This folder is the only importer of the CUDA driver. `device_memory`, `code`, `streams` and `graphs` have the resources.
Every status of the driver goes through `driver_errors.check`, which raises a typed error. Resources have `close()`; the
garbage collector frees nothing. Only `open_device` depends on the driver, NVIDIA's or the software GPU's.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from cuda.bindings import driver

import softgpu
from kaas.errors import DeviceUnavailable
from kaas.executor.cache.journal import CacheFiles
from kaas.executor.device import software
from kaas.executor.device.code import LoadedLibrary, load, load_image
from kaas.executor.device.device_memory import HOST_ROOM, HostMemory, MemoryPool, free_bytes, refusal
from kaas.executor.device.driver_errors import call
from kaas.executor.device.graphs import Graph, KernelNode
from kaas.executor.device.monitor import CurrentContext
from kaas.executor.device.partitions import Partitions
from kaas.executor.device.streams import EventPair, Stream
from kaas.executor.device.windows.gpu_window import GpuWindow
from kaas.executor.device.windows.pages import Pages
from kaas.executor.device.windows.software_window import SoftwareWindow
from kaas.executor.device.windows.window import ClientWindow
from kaas.ktask.library import Library
from softgpu import host_room

_GPU_USABLE = 0.9
"""Share of a GPU's free memory for objects and arenas; the rest is for contexts, code, graphs and local memory."""

WARP = 32
"""Threads of a warp."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A description of a device. kind: "gpu" or "software". memory_bytes: all of its memory, or the part to use."""

    kind: str
    name: str
    memory_bytes: int
    compute_capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class LaunchLimits:
    """The limits of a launch. Shared memory is in bytes of a block; optin: the limit if the kernel asks for more.

    Fields:
        local_bytes: local memory of the threads that run at a time. local_blocks: the blocks that run at a time; 0: a
            GPU, whose driver takes local memory from what `usable_bytes` leaves, and refuses a launch without room.
    """

    threads: int
    block: tuple[int, int, int]
    grid: tuple[int, int, int]
    shared_bytes: int
    shared_optin_bytes: int
    local_bytes: int
    local_blocks: int

    def local_bytes_of(self, launch: KernelNode) -> int:
        """Return the local memory of a launch: of the threads that run at a time, in whole warps."""
        warps = min(math.prod(launch.grid), self.local_blocks) * -(-math.prod(launch.block) // WARP)
        return warps * WARP * launch.function.local_bytes


def gpu_count() -> int:
    """Return the number of real GPUs that this process could open."""
    if softgpu.loaded_devices() or not _real_driver():
        return 0
    call(driver.cuInit, 0)
    return int(call(driver.cuDeviceGetCount))


@cache
def _real_driver() -> bool:
    return softgpu.real_driver_present()


def open_device(kind: str = "gpu", ordinal: int = 0, *, memory_bytes: int | None = None, parts: int = 1) -> OpenDevice:
    """Open a device and its primary context.

    Args:
        kind: "gpu", or "software": the CPU, through `softgpu`, which is loaded with one device if it is not loaded.
        ordinal: the number of the device, as this process sees it.
        memory_bytes: for a GPU the most memory to use; for the software GPU its memory if it is loaded by this call.
        parts: processes that divide this memory.

    Raises:
        DeviceUnavailable: no driver, no such device, or the other kind's driver is in this process.
    """
    if kind == "software":
        if not softgpu.loaded_devices():  # a device of its own, so that variables of code have no more than the part
            with software.unavailable():
                softgpu.load(((memory_bytes or softgpu.DEFAULT_MEMORY_BYTES) // parts,))
            parts = 1
        host_room.limit(HOST_ROOM.has)
    elif kind != "gpu":
        raise DeviceUnavailable(f'a device is of kind "gpu" or "software", not {kind!r}')
    elif softgpu.loaded_devices():
        raise DeviceUnavailable("this process runs the software GPU; real GPUs need another process")
    try:
        call(driver.cuInit, 0)
        handle = call(driver.cuDeviceGet, ordinal)
        context = call(driver.cuDevicePrimaryCtxRetain, handle)
    except RuntimeError as error:  # no libcuda.so.1: nothing else of cuda.bindings may be called then
        without = 'kaas.Device("software") needs none'
        raise DeviceUnavailable(f"no CUDA driver on this machine ({without}): {error}") from error
    return OpenDevice(kind, handle, context, memory_bytes, parts)


def _samples(nvml: Any, bus_id: bytes) -> Callable[[], float]:
    """Return a function that gives the utilisation of the GPU at a bus address. nvml: `cuda.bindings.nvml`."""
    nvml.init_v2()
    gpu = nvml.device_get_handle_by_pci_bus_id_v2(bus_id.split(b"\0")[0].decode())
    return lambda: nvml.device_get_utilization_rates(gpu).gpu / 100


class OpenDevice:
    """An open device. Its methods need its context: call them inside `with device.context`.

    Fields:
        ordinal: its number, as this process sees it. limits: of launches. context: of its calls.
        cancels: True if `cancel` can end kernels; False for GPUs.
        checks: True if the device checks the memory accesses of its kernels (memcheck).
        windows: makes the windows of clients. pages: the memory in these. partitions: of its SMs. files: of memory that
            outlives this process, for the executor; None for none.
    """

    def __init__(self, kind: str, handle: Any, context: Any, memory_bytes: int | None, parts: int = 1) -> None:
        self._handle = handle
        self.context = CurrentContext(context)
        self.ordinal = int(handle)
        self.checks = kind == "software" and softgpu.checks_memory()
        self.cancels = kind == "software"
        self.windows: Callable[[Pages, int], ClientWindow] = SoftwareWindow if kind == "software" else GpuWindow
        total = int(call(driver.cuDeviceTotalMem, handle))
        name = call(driver.cuDeviceGetName, 256, handle).split(b"\0")[0].decode()
        a = driver.CUdevice_attribute
        capability = (
            self._attribute(a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
            self._attribute(a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
        )
        self._info = DeviceInfo(kind, name, min(total, memory_bytes or total) // parts, capability)
        self.pages = Pages(handle, name, on_host=kind == "software")
        self.partitions = Partitions(handle)
        self.files: CacheFiles | None = None
        self._sampled: Callable[[], float] | None = None
        self._unsampled = kind == "software"
        self.limits = self._read_limits()

    def info(self) -> DeviceInfo:
        """Return the description of the device."""
        return self._info

    def describe(self, address: int, nbytes: int, regions: Sequence[tuple[str, int, int]]) -> None:
        """Name the regions (name, offset, bytes) of an allocation, for a device that `checks` (`softgpu.describe`)."""
        softgpu.describe(address, nbytes, regions)

    def usable_bytes(self) -> int:
        """Return the bytes of memory that objects and arenas may take."""
        if self._info.kind == "software":
            return self._info.memory_bytes
        return min(self._info.memory_bytes, int(self.free_bytes() * _GPU_USABLE))

    def divide_local_memory(self, slots: int) -> None:
        """Limit the local memory of a launch, so that one in each slot has no more in all than the device has memory.

        A software device has it beside its own memory.
        """
        self.limits = replace(self.limits, local_bytes=self._info.memory_bytes // slots)

    def utilisation(self) -> float | None:
        """Return the share of the driver's last sample period in which the GPU ran kernels, those of all processes.

        None: the driver keeps no such figure, as for a software device and a part of a GPU (MIG). Source:
        nvmlDeviceGetUtilizationRates.
        """
        if self._unsampled:
            return None
        from cuda.bindings import nvml

        try:
            if self._sampled is None:
                self._sampled = _samples(nvml, call(driver.cuDeviceGetPCIBusId, 64, self._handle))
            return self._sampled()
        except (nvml.NvmlError, RuntimeError):  # RuntimeError: the machine has no NVML
            self._unsampled = True
            return None

    def cancel(self) -> tuple[str, ...]:
        """End all kernels on the device, from any thread, and return their symbols. The context is lost; no waiting."""
        running = softgpu.running(int(self._handle))
        softgpu.cancel(int(self._handle))
        return running

    def take_printed(self) -> str:
        """Return the text that kernels of the software GPU printed since the last call; "" for a GPU.

        The text of the software GPU went to the process's stdout at once. This call flushes the text of a GPU to it.
        """
        if self._info.kind == "software":
            return softgpu.take_output(int(self._handle))
        ctypes.CDLL(None).fflush(None)  # otherwise it stays in a buffer of this process, which may be killed
        return ""

    def close(self) -> None:
        """Release the primary context. All resources of this device must be closed before."""
        self.partitions.close()
        self.pages.trim()
        call(driver.cuDevicePrimaryCtxRelease, self._handle)

    # --- memory: addresses are ints

    def allocate(self, nbytes: int) -> int:
        """Return the address of new memory. Raise OutOfDeviceMemory if there is not enough."""
        if self._info.kind == "software":
            HOST_ROOM.check(nbytes, self._info.name)
        status, address = driver.cuMemAlloc(nbytes)
        if status:
            raise refusal("cuMemAlloc", int(status), nbytes, self._info.name)
        return int(address)

    def free(self, address: int) -> None:
        """Free memory of `allocate`. The device stands still meanwhile."""
        call(driver.cuMemFree, address)

    def pool(self) -> MemoryPool:
        """Return a new pool, which allocates and frees without stopping the device, unlike `allocate` and `free`."""
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(self._handle)
        on_host = self._info.kind == "software"
        return MemoryPool(call(driver.cuMemPoolCreate, properties), self._info.name, on_host=on_host)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Return page-locked host memory, whose copies run at full speed and in parallel with kernels.

        Raises:
            OutOfDeviceMemory: the driver cannot lock that much, or the process may not take it.
        """
        HOST_ROOM.check(nbytes, self._info.name)
        return HostMemory(int(call(driver.cuMemHostAlloc, nbytes, 0, device=self._info.name)), nbytes)

    def free_bytes(self) -> int:
        """Return the bytes that the driver could still hand out, with pages that windows can use again."""
        return free_bytes() + self.pages.spare_bytes

    def window(self) -> ClientWindow:
        """Return new addresses for one client's memory, which kernels that are loaded for it cannot leave.

        Raises:
            OutOfDeviceMemory: this process has not so many addresses left.
        """
        return self.windows(self.pages, self._info.memory_bytes)

    # --- code

    def load(self, library: Library) -> LoadedLibrary:
        """Load the first of the library's images that this device can run; see `code.load`."""
        return load(library, partial(load_image, device=self._handle, name=self._info.name))

    # --- streams and graphs

    def stream(self) -> Stream:
        """Return a new stream."""
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return Stream(call(driver.cuStreamCreate, flags), EventPair())

    def graph(self) -> Graph:
        """Return a new graph without nodes."""
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
            self._info.memory_bytes,
            self._attribute(a.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) if self._info.kind == "software" else 0,
        )
