"""Queries of contexts, devices, kernels, modules and streams, and the settings that they keep."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, launch, ok, synchronize
from softgpu.tests.driver.fake import IMAGE

pytestmark = pytest.mark.usefixtures("ctx")

INVALID = Error.CUDA_ERROR_INVALID_VALUE
FUNC = driver.CUfunction_attribute


def test_contexts(ctx: Any) -> None:
    limits = driver.CUlimit
    assert ok(driver.cuCtxGetApiVersion(ctx)) == 3020
    other = ok(driver.cuCtxCreate(None, 0, 0))
    assert ok(driver.cuCtxGetId(ctx)) != ok(driver.cuCtxGetId(other))
    ok(driver.cuCtxSetFlags(4))
    assert ok(driver.cuCtxGetFlags()) == 4
    ok(driver.cuCtxSetLimit(limits.CU_LIMIT_STACK_SIZE, 4096))
    assert ok(driver.cuCtxGetLimit(limits.CU_LIMIT_STACK_SIZE)) == 4096
    fails(Error.CUDA_ERROR_UNSUPPORTED_LIMIT, driver.cuCtxSetLimit, limits.CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 1)
    assert ok(driver.cuCtxGetStreamPriorityRange()) == (0, -5)
    ok(driver.cuCtxSetCacheConfig(driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1))  # a hint: it is not kept
    assert ok(driver.cuCtxGetCacheConfig()) == driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_NONE
    ok(driver.cuProfilerStart())
    ok(driver.cuProfilerStop())
    ok(driver.cuCtxDestroy(other))
    fails(Error.CUDA_ERROR_INVALID_CONTEXT, driver.cuCtxGetId, other)


def test_devices() -> None:
    assert ok(driver.cuDriverGetVersion()) == 13010
    assert ok(driver.cuDeviceGetName(64, 1)).split(b"\0")[0] == b"KaaS software GPU"
    assert ok(driver.cuDeviceComputeCapability(0)) == (8, 0)
    assert ok(driver.cuDeviceGetExecAffinitySupport(driver.CUexecAffinityType.CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0)) == 0
    access = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    assert ok(driver.cuDeviceGetP2PAttribute(access, 0, 1)) == 1
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuDeviceGetP2PAttribute, access, 0, 0)


@pytest.mark.alone
def test_primary_contexts() -> None:
    assert ok(driver.cuDevicePrimaryCtxGetState(1)) == (0, 0)
    ok(driver.cuDevicePrimaryCtxSetFlags(1, 4))
    ok(driver.cuDevicePrimaryCtxRetain(1))
    assert ok(driver.cuDevicePrimaryCtxGetState(1)) == (4, 1)
    ok(driver.cuDevicePrimaryCtxReset(1))
    ok(driver.cuDevicePrimaryCtxSetFlags(1, 0))
    assert ok(driver.cuDevicePrimaryCtxGetState(1)) == (0, 0)


def test_kernels_are_their_own_functions() -> None:
    library = Kernels().library
    kernel = ok(driver.cuLibraryGetKernel(library, b"shared"))
    function = ok(driver.cuKernelGetFunction(kernel))
    assert ok(driver.cuFuncGetName(function)) == b"shared"
    assert int(ok(driver.cuKernelGetLibrary(kernel))) == int(library) == int(ok(driver.cuFuncGetModule(function)))
    assert int(ok(driver.cuLibraryGetModule(library))) == int(library)
    assert ok(driver.cuFuncGetParamInfo(function, 0)) == (0, 8)
    ok(driver.cuFuncLoad(function))
    assert ok(driver.cuFuncIsLoaded(function)) == driver.CUfunctionLoadingState.CU_FUNCTION_LOADING_STATE_LOADED


def test_kernels_have_attributes_of_each_device() -> None:
    kernel = ok(driver.cuLibraryGetKernel(Kernels().library, b"shared"))
    dynamic = FUNC.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert ok(driver.cuKernelGetAttribute(FUNC.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, 0)) == 1024
    ok(driver.cuKernelSetAttribute(dynamic, 60000, kernel, 1))
    assert [ok(driver.cuKernelGetAttribute(dynamic, kernel, d)) for d in (0, 1)] == [48 * 1024 - 1024, 60000]
    fails(INVALID, driver.cuKernelSetAttribute, dynamic, 164 << 10, kernel, 0)
    fails(INVALID, driver.cuKernelSetAttribute, FUNC.CU_FUNC_ATTRIBUTE_NUM_REGS, 8, kernel, 0)
    ok(driver.cuKernelSetCacheConfig(kernel, driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1, 0))
    ok(driver.cuFuncSetCacheConfig(ok(driver.cuKernelGetFunction(kernel)), driver.CUfunc_cache.CU_FUNC_CACHE_PREFER_L1))


def test_modules(tmp_path: Path) -> None:
    path = tmp_path / "kernels.ptx"
    path.write_bytes(IMAGE[:-1])
    eager = driver.CUmoduleLoadingMode.CU_MODULE_EAGER_LOADING
    assert ok(driver.cuModuleGetLoadingMode()) == eager
    loads = [
        (driver.cuModuleLoadData, IMAGE),
        (driver.cuModuleLoadFatBinary, IMAGE),
        (driver.cuModuleLoad, bytes(path)),
    ]
    for load, image in loads:
        module = ok(load(image))
        count = ok(driver.cuModuleGetFunctionCount(module))
        functions = ok(driver.cuModuleEnumerateFunctions(count, module))
        assert ok(driver.cuFuncGetName(functions[1])) == b"add"
        assert int(ok(driver.cuModuleGetFunction(module, b"add"))) == int(functions[1])
        ok(driver.cuModuleUnload(module))
        fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuModuleGetFunction, module, b"add")
    library = ok(driver.cuLibraryLoadFromFile(bytes(path), [], [], 0, [], [], 0))
    ok(driver.cuLibraryGetKernel(library, b"add"))
    fails(Error.CUDA_ERROR_FILE_NOT_FOUND, driver.cuModuleLoad, bytes(tmp_path / "nothing"))
    fails(Error.CUDA_ERROR_FILE_NOT_FOUND, driver.cuModuleLoad, bytes(tmp_path))


def test_globals_of_modules() -> None:
    module = ok(driver.cuModuleLoadData(b"global\0"))
    assert ok(driver.cuModuleGetGlobal(module, b"value"))[1] == 16
    fails(Error.CUDA_ERROR_NOT_FOUND, driver.cuModuleGetGlobal, module, b"other")


def test_managed_variables_are_those_declared_so() -> None:
    own, shared = (
        ok(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0)) for image in (b"global\0", b"global managed\0")
    )
    address, size = ok(driver.cuLibraryGetManaged(shared, b"value"))
    assert (int(address), size) == (int(ok(driver.cuLibraryGetGlobal(shared, b"value"))[0]), 16)
    fails(Error.CUDA_ERROR_NOT_FOUND, driver.cuLibraryGetManaged, own, b"value")
    fails(Error.CUDA_ERROR_NOT_FOUND, driver.cuLibraryGetManaged, shared, b"other")


def test_launch_attributes() -> None:
    address, seen = device_array(np.zeros(32, np.int32))
    config = driver.CUlaunchConfig()
    config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1
    config.blockDimX, config.hStream = 32, NO_STREAM
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PRIORITY
    config.attrs, config.numAttrs = [attribute], 1
    arguments = ((address, 32, 3), (None, ctypes.c_int, ctypes.c_int))
    ok(driver.cuLaunchKernelEx(config, Kernels()["add"], arguments, 0))
    synchronize()
    assert (seen == 3).all()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
    attribute.value.cooperative = 1
    config.attrs = [attribute]
    ok(driver.cuLaunchKernelEx(config, Kernels()["add"], arguments, 0))
    synchronize()
    assert (seen == 6).all()


def test_cooperative_launches() -> None:
    """As many blocks as the occupancy of all multiprocessors says, and no more."""
    address, seen = device_array(np.zeros(32, np.int32))
    attributes, add = driver.CUdevice_attribute, Kernels()["add"]
    assert ok(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0)) == 1
    most = ok(driver.cuDeviceGetAttribute(attributes.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    most *= ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(add, 32, 0))
    arguments = ((address, 32, 3), (None, ctypes.c_int, ctypes.c_int))
    ok(driver.cuLaunchCooperativeKernel(add, most, 1, 1, 32, 1, 1, 0, NO_STREAM, arguments))
    synchronize()
    assert (seen == 3).all()
    too_large = Error.CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
    fails(too_large, driver.cuLaunchCooperativeKernel, add, most + 1, 1, 1, 32, 1, 1, 0, NO_STREAM, arguments)


def test_occupancy_follows_the_limits_of_a_multiprocessor() -> None:
    """2048 threads, 32 blocks, 164 KB shared with 1 KB for each block, in units of 128 bytes."""
    kernels = Kernels()
    function, shared = kernels["empty"], kernels["shared"]
    blocks = driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    assert [ok(blocks(function, size, 0, 0)) for size in (32, 64, 128, 1024)] == [32, 32, 16, 2]
    assert [ok(blocks(shared, 32, dynamic, 0)) for dynamic in (0, 40 << 10, 46 << 10)] == [32, 3, 3]
    assert ok(driver.cuOccupancyAvailableDynamicSMemPerBlock(function, 2, 128)) == 48 << 10
    assert ok(driver.cuOccupancyAvailableDynamicSMemPerBlock(function, 16, 128)) == (164 << 10) // 16 - 1024
    assert ok(driver.cuOccupancyAvailableDynamicSMemPerBlock(function, 15, 128)) == 11136 - 1024  # in units of 128
    assert ok(blocks(function, 128, (48 << 10) + 1, 0)) == 0  # nor can it be launched
    ok(
        driver.cuFuncSetAttribute(
            function, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000
        )
    )
    assert [ok(blocks(function, 128, dynamic, 0)) for dynamic in (54912, 54913, 60001)] == [3, 2, 0]
    processors = ok(driver.cuDeviceGetAttribute(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0))
    best = driver.cuOccupancyMaxPotentialBlockSizeWithFlags(function, None, 0, 0, 0)
    assert ok(best) == (2 * processors, 1024)
    fails(INVALID, blocks, function, 0, 0, 0)


def test_streams_and_their_attributes() -> None:
    ids = driver.CUlaunchAttributeID
    first, second = ok(driver.cuStreamCreate(0)), ok(driver.cuStreamCreate(1))
    value = driver.CUstreamAttrValue()
    value.priority = -9
    ok(driver.cuStreamSetAttribute(first, ids.CU_LAUNCH_ATTRIBUTE_PRIORITY, value))
    ok(driver.cuStreamCopyAttributes(second, first))
    assert ok(driver.cuStreamGetAttribute(second, ids.CU_LAUNCH_ATTRIBUTE_PRIORITY)).priority == -5
    assert ok(driver.cuStreamGetPriority(second)) == -5


@pytest.mark.parametrize("trap", [False, True])
def test_callbacks_receive_their_data_and_success(*, trap: bool) -> None:
    heard: list[tuple[int, int]] = []
    stream = ok(driver.cuStreamCreate(1))
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    callback = signature(lambda _, status, data: heard.append((status, data or 0)))
    address = driver.CUstreamCallback(ctypes.cast(callback, ctypes.c_void_p).value)
    ok(driver.cuStreamAddCallback(stream, address, 7, 0))
    if trap:
        launch(Kernels()["trap"], (), (), stream=stream)
    driver.cuStreamSynchronize(stream)
    assert heard == [(0, 7)]
