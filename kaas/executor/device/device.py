"""The CUDA driver as the executor sees it: one device's memory, streams, code and graphs; all of its uses of cuda.*.

Every status of the driver goes through `check`, which makes a typed error of it. Resources have `close()`; nothing is
freed by the garbage collector. Whether the driver below is NVIDIA's or `softgpu/softgpu` shows nowhere but in
`open_device`.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from cuda.bindings import driver

import softgpu
from kaas.code import providers
from kaas.errors import (
    MEMCHECK_TELLS_MORE,
    CorruptImage,
    DeviceUnavailable,
    KaasError,
    OutOfDeviceMemory,
    Unprovided,
    UnsupportedCode,
)
from kaas.executor.device import software
from kaas.executor.device.driver_errors import translate
from kaas.ktask.library import Image, Library

_GPU_USABLE = 0.9
"""Share of a real GPU's free memory that we plan with; the rest is for contexts, code, graphs and local memory."""


def check(name: str, status: Any, *, device: str = "") -> None:
    """The gate for every status of the driver.

    Raises:
        OutOfDeviceMemory, UnsupportedCode, CorruptImage, DeviceUnavailable, DeviceLost, or DeviceError for the rest.
    """
    if status:
        raise _error(name, int(status), device)


def _error(name: str, code: int, device: str) -> KaasError:
    if softgpu.loaded_devices():
        details = softgpu.last_error()
        if code == driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS and not softgpu.checks_memory():
            details += MEMCHECK_TELLS_MORE
    else:
        status, text = driver.cuGetErrorString(driver.CUresult(code))
        details = text.decode() if not status and text else ""
    return translate(name, code, driver.CUresult(code).name, details, device)


def call(function: Any, *args: Any, device: str = "") -> Any:
    """Calls the driver through the gate; gives what it returns beside the status (None, one value or a tuple)."""
    status, *values = function(*args)
    check(function.__name__, status, device=device)
    return values[0] if len(values) == 1 else tuple(values) or None


# --- devices


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
            raise self.refusal("cuMemAlloc", int(status), nbytes)
        return int(address)

    def refusal(self, name: str, status: int, nbytes: int) -> KaasError:
        """The error of a call that gave no memory."""
        error = _error(name, status, self._info.name)
        if isinstance(error, OutOfDeviceMemory):
            error.needed_bytes, error.free_bytes = nbytes, self.free_bytes()
        return error

    def free(self, address: int) -> None:
        call(driver.cuMemFree, address)

    def pool(self) -> MemoryPool:
        """Memory to allocate and free without the device standing still, as it does for `allocate` and `free`."""
        properties = driver.CUmemPoolProps()
        properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        properties.handleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
        properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        properties.location.id = int(self._handle)
        return MemoryPool(call(driver.cuMemPoolCreate, properties), self)

    def allocate_host(self, nbytes: int) -> HostMemory:
        """Page-locked host memory, from which copies travel at full speed and beside kernels.

        Raises:
            OutOfDeviceMemory: the driver cannot lock that much.
        """
        return HostMemory(int(call(driver.cuMemHostAlloc, nbytes, 0, device=self._info.name)), nbytes)

    def free_bytes(self) -> int:
        """What the driver could still hand out, in bytes."""
        free, _ = call(driver.cuMemGetInfo)
        return int(free)

    # --- code

    def load(self, library: Library) -> LoadedLibrary:
        """Loads the first of the library's images that this device can run. An image of which the device refuses some
        kernels is loaded only if there is no other.

        Raises:
            CorruptImage, UnsupportedCode: about all of them, if there is none.
            Unprovided: those that there are were to be provided.
        """
        refusals: list[KaasError] = []
        partial: LoadedLibrary | None = None
        for image in library.images:
            try:
                provided_here = providers.code(image)
            except Unprovided as error:
                refusals.append(error)
                continue
            for code in provided_here:
                try:
                    loaded = self._load(code)
                except (CorruptImage, UnsupportedCode) as error:
                    refusals.append(error)
                    continue
                if len(library.images) == 1 or loaded.whole():
                    if partial is not None:
                        partial.close()
                    return loaded
                if partial is None:
                    partial = loaded
                else:
                    loaded.close()
        if partial is not None:
            return partial
        raise _refusal(refusals, library)

    def _load(self, image: Image) -> LoadedLibrary:
        code = image.data + b"\0" if image.kind == "ptx" else image.data
        handle = call(driver.cuLibraryLoadData, code, [], [], 0, [], [], 0, device=self._info.name)
        return LoadedLibrary(handle, self._handle, image)

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


class MemoryPool:
    """Device memory in stream order (cuMemAllocFromPoolAsync): what was freed stays here for what comes.

    It has a stream of its own, on which nothing else runs. Free what nobody uses any more, allocate, and `settle`: then
    every stream may use the memory.
    """

    def __init__(self, handle: Any, device: OpenDevice) -> None:
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
            raise self._device.refusal("cuMemAllocFromPoolAsync", int(status), nbytes)
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
        """What the pool holds and nobody uses: to `OpenDevice.free_bytes` it is taken."""
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


# --- code


def _refusal(refusals: Sequence[KaasError], library: Library) -> KaasError:
    """One error for all images: corrupt, or not provided, only if every one is."""
    first = refusals[0]
    if isinstance(first, Unprovided) and all(isinstance(error, Unprovided) for error in refusals):
        first.library = library.hash
        return first
    words = "; ".join(error.message for error in refusals)
    if all(isinstance(error, CorruptImage) for error in refusals):
        return CorruptImage(words, library=library.hash)
    instructions = tuple(line for error in refusals for line in error.fields.get("instructions", ()))
    return UnsupportedCode(words, library=library.hash, instructions=instructions)


class LoadedLibrary:
    """A code image in the driver's hands. image: which one of its library's, or of what is provided for it."""

    def __init__(self, handle: Any, device: Any, image: Image) -> None:
        self.image = image
        self._handle = handle
        self._device = device

    def kernel(self, symbol: str) -> LoadedKernel | None:
        """A kernel by its symbol; None if there is none.

        Raises:
            UnsupportedCode: the software GPU has no code for something in it.
        """
        status, handle = driver.cuLibraryGetKernel(self._handle, symbol.encode())
        if int(status) == driver.CUresult.CUDA_ERROR_NOT_FOUND:
            return None
        check("cuLibraryGetKernel", status)
        return LoadedKernel(handle, self._device)

    def whole(self) -> bool:
        """Whether every kernel of it can be taken here."""
        try:
            return all(self.kernel(symbol) is not None for symbol in self.symbols())
        except UnsupportedCode:
            return False

    def symbols(self) -> list[str]:
        """Names of all kernels."""
        count = call(driver.cuLibraryGetKernelCount, self._handle)
        kernels = call(driver.cuLibraryEnumerateKernels, count, self._handle) if count else []
        return [call(driver.cuKernelGetName, kernel).decode() for kernel in kernels]

    def variable(self, name: str, *, managed: bool = False) -> tuple[int, int] | None:
        """Address and bytes of a variable in global memory; None if the driver knows none of this name.

        Args:
            managed: it was declared `__managed__`, so that host and device share it.
        """
        lookups = (driver.cuLibraryGetManaged, driver.cuLibraryGetGlobal) if managed else (driver.cuLibraryGetGlobal,)
        for lookup in lookups:
            status, address, nbytes = lookup(self._handle, name.encode())
            if int(status) != driver.CUresult.CUDA_ERROR_NOT_FOUND:
                check(lookup.__name__, status)
                return int(address), int(nbytes)
        return None

    def close(self) -> None:
        call(driver.cuLibraryUnload, self._handle)


class LoadedKernel:
    """A kernel as a graph can launch it.

    Fields:
        params: (offset, bytes) of each parameter in the parameter space.
        max_threads: of a block of this kernel. static_shared_bytes: shared memory that the code declares.
    """

    def __init__(self, kernel: Any, device: Any) -> None:
        self._kernel = kernel
        self._device = device
        self._dynamic_shared_bytes = 0
        self.handle = call(driver.cuKernelGetFunction, kernel)
        self.params = tuple(self._read_params())
        a = driver.CUfunction_attribute
        self.max_threads = self._attribute(a.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
        self.static_shared_bytes = self._attribute(a.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)

    def allow_dynamic_shared(self, nbytes: int) -> None:
        """Lets launches ask for this much dynamic shared memory in each block; what was allowed before stays so."""
        if nbytes <= self._dynamic_shared_bytes:
            return
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        call(driver.cuKernelSetAttribute, attribute, nbytes, self._kernel, self._device)
        self._dynamic_shared_bytes = nbytes

    def _attribute(self, attribute: Any) -> int:
        return int(call(driver.cuKernelGetAttribute, attribute, self._kernel, self._device))

    def _read_params(self) -> Iterator[tuple[int, int]]:
        index = 0
        while True:
            status, offset, nbytes = driver.cuKernelGetParamInfo(self._kernel, index)
            if int(status) == driver.CUresult.CUDA_ERROR_INVALID_VALUE:
                return  # one past the last: the driver has no call for their number
            check("cuKernelGetParamInfo", status)
            yield int(offset), int(nbytes)
            index += 1


# --- streams and graphs


class EventPair:
    """A stopwatch for a part of a stream's work, on the device's clock."""

    __slots__ = ("_began", "_ended")

    def __init__(self) -> None:
        flags = driver.CUevent_flags.CU_EVENT_DEFAULT
        self._began, self._ended = (call(driver.cuEventCreate, flags) for _ in range(2))

    def start(self, stream: Stream) -> None:
        check("cuEventRecord", driver.cuEventRecord(self._began, stream.handle)[0])

    def stop(self, stream: Stream) -> None:
        check("cuEventRecord", driver.cuEventRecord(self._ended, stream.handle)[0])

    def hold_back(self, stream: Stream) -> None:
        """What this stream is given from now on waits until the part has ended."""
        check("cuStreamWaitEvent", driver.cuStreamWaitEvent(stream.handle, self._ended, 0)[0])

    def synchronize(self) -> None:
        """Waits until the part has ended."""
        check("cuEventSynchronize", driver.cuEventSynchronize(self._ended)[0])

    def seconds(self) -> float:
        """Device time between the two, once the part has ended."""
        status, milliseconds = driver.cuEventElapsedTime(self._began, self._ended)
        check("cuEventElapsedTime", status)
        return float(milliseconds) / 1e3

    def close(self) -> None:
        for event in (self._began, self._ended):
            call(driver.cuEventDestroy, event)


class Stream:
    """Work in order. Nothing to copy is no call: it may have no address.

    Fields:
        number: by which other libraries know it. kernels: a watch for a request's kernels.
    """

    def __init__(self, handle: Any, kernels: EventPair) -> None:
        self.handle = handle
        self.number = int(handle)
        self.kernels = kernels

    def copy_in(self, address: int, source: Any, nbytes: int) -> None:
        """Host to device. source: any buffer of bytes, or the address of page-locked ones; the caller keeps it until
        the stream has been synchronized."""
        if nbytes:
            check("cuMemcpyHtoDAsync", driver.cuMemcpyHtoDAsync(address, source, nbytes, self.handle)[0])

    def copy_out(self, target: Any, address: int, nbytes: int) -> None:
        """Device to host. target: any writable buffer, as source above."""
        if nbytes:
            check("cuMemcpyDtoHAsync", driver.cuMemcpyDtoHAsync(target, address, nbytes, self.handle)[0])

    def copy(self, target: int, source: int, nbytes: int) -> None:
        if nbytes:
            check("cuMemcpyDtoDAsync", driver.cuMemcpyDtoDAsync(target, source, nbytes, self.handle)[0])

    def clear(self, address: int, nbytes: int) -> None:
        if nbytes:
            check("cuMemsetD8Async", driver.cuMemsetD8Async(address, 0, nbytes, self.handle)[0])

    def synchronize(self) -> None:
        check("cuStreamSynchronize", driver.cuStreamSynchronize(self.handle)[0])

    def close(self) -> None:
        self.kernels.close()
        call(driver.cuStreamDestroy, self.handle)


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel launch: what, how wide, and where its parameters lie in host memory (the driver copies them)."""

    function: LoadedKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class ParameterBlock:
    """Host memory for one launch's parameters, in the form in which the driver takes them over again and again."""

    __slots__ = ("_launch", "_pointers", "memory", "node_params")

    def __init__(self, launch: KernelNode, initial: bytes) -> None:
        self.memory = bytearray(initial or b"\0")
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        offsets = [offset for offset, _ in launch.function.params]
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*(base + offset for offset in offsets))
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = launch.function.handle
        params.gridDimX, params.gridDimY, params.gridDimZ = launch.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = launch.block
        params.sharedMemBytes = launch.shared_bytes
        params.kernelParams = ctypes.addressof(self._pointers)
        params.extra = 0
        self.node_params = params
        self._launch = launch

    def launch(self, stream: Stream) -> None:
        """Launches it alone, without a graph."""
        what = self._launch
        function, pointers = what.function.handle, ctypes.addressof(self._pointers)
        status = driver.cuLaunchKernel(
            function, *what.grid, *what.block, what.shared_bytes, stream.handle, pointers, 0
        )[0]
        check("cuLaunchKernel", status)


class Graph:
    """A graph of kernel launches, added one by one in an order that respects the edges."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._nodes: list[Any] = []

    def add(self, block: ParameterBlock, after: Sequence[int]) -> None:
        """Adds a launch that runs after those with these indices."""
        dependencies = [self._nodes[index] for index in after]
        node = call(driver.cuGraphAddKernelNode, self._handle, dependencies, len(dependencies), block.node_params)
        self._nodes.append(node)

    def instantiate(self, launches: int) -> GraphInstance:
        """
        Args:
            launches: how many of the launches differ; they come again and again in the graph, always in this order.
        """
        repeated = [self._nodes[index::launches] for index in range(launches)]
        return GraphInstance(call(driver.cuGraphInstantiate, self._handle, 0), repeated)

    def close(self) -> None:
        call(driver.cuGraphDestroy, self._handle)


class GraphInstance:
    """A graph that can be launched. Its launches can be given new parameters; it cannot run beside itself."""

    __slots__ = ("_nodes", "handle")

    def __init__(self, handle: Any, nodes: Sequence[Sequence[Any]]) -> None:
        self.handle = handle
        self._nodes = nodes

    def set_parameters(self, indices: Iterable[int], blocks: Sequence[ParameterBlock]) -> None:
        """Gives the launches with these indices, wherever they come, the parameters that their blocks hold now."""
        handle, set_parameters = self.handle, driver.cuGraphExecKernelNodeSetParams
        for index in indices:
            params = blocks[index].node_params
            for node in self._nodes[index]:
                status = set_parameters(handle, node, params)[0]
                if status:  # here too, since there are many
                    check("cuGraphExecKernelNodeSetParams", status)

    def launch(self, stream: Stream, times: int = 1) -> None:
        for _ in range(times):
            check("cuGraphLaunch", driver.cuGraphLaunch(self.handle, stream.handle)[0])

    def close(self) -> None:
        call(driver.cuGraphExecDestroy, self.handle)
