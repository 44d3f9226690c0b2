"""Images, kernels, launches, and the limits that launches meet."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error, Kernels, device_array, fails, launch, ok, synchronize, view

pytestmark = pytest.mark.usefixtures("ctx")

FUNC = driver.CUfunction_attribute


def test_arguments_reach_the_kernel() -> None:
    address, seen = device_array(np.arange(100, dtype=np.int32))
    types = (None, ctypes.c_int, ctypes.c_int)
    assert launch(Kernels()["add"], (address, 90, 5), types, grid=(4, 1, 1)) == Error.CUDA_SUCCESS
    synchronize()
    assert (seen == np.arange(100) + 5 * (np.arange(100) < 90)).all()


def test_arguments_in_one_buffer() -> None:
    address, seen = device_array(np.zeros(6, np.int32))
    packed = np.zeros(32, np.uint8)
    packed[:8] = np.frombuffer(np.uint64(int(address)).tobytes(), np.uint8)
    packed[8] = 9
    packed[12:32] = np.arange(5, dtype=np.int32).view(np.uint8)
    size = ctypes.c_size_t(32)
    extra = (ctypes.c_void_p * 5)(1, packed.ctypes.data, 2, ctypes.addressof(size), 0)
    function = Kernels()["blob"]
    shape = (1, 1, 1, 32, 1, 1, 0, driver.CUstream(0), 0)
    ok(driver.cuLaunchKernel(function, *shape, ctypes.addressof(extra)))
    synchronize()
    assert seen.tolist() == [9, 0, 1, 2, 3, 4]
    size.value = 31
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuLaunchKernel, function, *shape, ctypes.addressof(extra))


def test_parameter_layout() -> None:
    kernel = ok(driver.cuLibraryGetKernel(Kernels().library, b"blob"))
    assert [ok(driver.cuKernelGetParamInfo(kernel, i)) for i in range(3)] == [(0, 8), (8, 1), (12, 20)]
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuKernelGetParamInfo, kernel, 3)
    assert ok(driver.cuKernelGetName(kernel)) == b"blob"


def test_kernels_of_a_library() -> None:
    library = Kernels().library
    count = ok(driver.cuLibraryGetKernelCount(library))
    names = [ok(driver.cuKernelGetName(kernel)) for kernel in ok(driver.cuLibraryEnumerateKernels(count, library))]
    assert b"vecadd" in names
    assert len(names) == count
    fails(Error.CUDA_ERROR_NOT_FOUND, driver.cuLibraryGetKernel, library, b"vecsub")


@pytest.mark.parametrize(
    ("grid", "block"),
    [
        ((0, 1, 1), (1, 1, 1)),
        ((1, 1, 1), (32, 0, 1)),
        ((1, 1, 1), (1025, 1, 1)),
        ((1, 1, 1), (32, 33, 1)),
        ((1, 1, 1), (1, 1, 65)),
        ((1, 65536, 1), (1, 1, 1)),
        ((1, 1, 65536), (1, 1, 1)),
        ((2**31, 1, 1), (1, 1, 1)),
    ],
)
def test_shapes_beyond_the_device(grid: tuple[int, int, int], block: tuple[int, int, int]) -> None:
    assert launch(Kernels()["empty"], (), (), grid=grid, block=block) == Error.CUDA_ERROR_INVALID_VALUE


def test_the_largest_block() -> None:
    kernels = Kernels()
    assert launch(kernels["empty"], (), (), block=(16, 1, 64)) == Error.CUDA_SUCCESS
    assert (
        launch(kernels["shared"], (driver.CUdeviceptr(0),), (None,), block=(257, 1, 1))
        == Error.CUDA_ERROR_INVALID_VALUE
    )


def test_shared_memory_beyond_the_default_must_be_requested() -> None:
    function = Kernels()["shared"]  # 1024 bytes of its own
    address, seen = device_array(np.zeros(2, np.uint32))
    assert ok(driver.cuFuncGetAttribute(FUNC.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)) == 1024
    most = (48 << 10) - 1024
    assert launch(function, (address,), (None,), shared=most) == Error.CUDA_SUCCESS
    synchronize()
    assert seen.tolist() == [48 << 10, most]
    assert launch(function, (address,), (None,), shared=most + 1) == Error.CUDA_ERROR_INVALID_VALUE
    dynamic = FUNC.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(function, dynamic, 100 << 10))
    assert launch(function, (address,), (None,), shared=100 << 10) == Error.CUDA_SUCCESS
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuFuncSetAttribute, function, dynamic, (162 << 10) + 1)
    assert launch(function, (address,), (None,), shared=(100 << 10) + 1) == Error.CUDA_ERROR_INVALID_VALUE


def test_a_kernel_is_compiled_once_for_a_block_shape(library: ctypes.CDLL) -> None:
    function = Kernels()["empty"]
    before = library.sg_test_compiles()
    for block in (32, 64, 32, 64):
        assert launch(function, (), (), block=(block, 1, 1)) == Error.CUDA_SUCCESS
    assert library.sg_test_compiles() == before + 2


def test_the_compilers_words_are_kept(library: ctypes.CDLL) -> None:
    assert driver.cuLibraryLoadData(b"bad\0", [], [], 0, [], [], 0)[0] == Error.CUDA_ERROR_INVALID_PTX
    assert library.softgpu_last_error() == b"line 1: bad is no instruction"
    assert launch(Kernels()["empty"], (), (), block=(7, 1, 1)) == Error.CUDA_ERROR_INVALID_PTX
    assert library.softgpu_last_error() == b"blocks of 7 cannot be compiled"


def test_the_compilers_words_in_the_callers_log() -> None:
    log = bytearray(100)
    option = driver.CUjit_option
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
    fails(Error.CUDA_ERROR_INVALID_PTX, driver.cuModuleLoadDataEx, b"bad\0", 2, options, [log, len(log)])
    assert log.startswith(b"line 1: bad")


def test_globals_exist_once_on_each_device(library: ctypes.CDLL) -> None:
    before = library.sg_test_modules()
    kernels = Kernels(b"global\0")
    near, size = ok(driver.cuLibraryGetGlobal(kernels.library, b"value"))
    assert (size, view(near, np.int32, 1)[0]) == (16, 42)
    ok(driver.cuMemsetD32(near, 7, 1))
    far_ctx = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxPushCurrent(far_ctx))
    far, _ = ok(driver.cuLibraryGetGlobal(kernels.library, b"value"))
    assert view(far, np.int32, 1)[0] == 42
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(1))
    fails(Error.CUDA_ERROR_NOT_FOUND, driver.cuLibraryGetGlobal, kernels.library, b"other")
    kernels.close()
    assert library.sg_test_modules() == before
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemsetD32, near, 0, 1)


def test_stale_and_foreign_handles() -> None:
    kernels = Kernels()
    function = kernels["empty"]
    kernels.close()
    assert launch(function, (), ()) == Error.CUDA_ERROR_INVALID_HANDLE
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuLibraryUnload, kernels.library)
    assert launch(Kernels()["empty"], (), (), stream=driver.CUstream(int(function))) == Error.CUDA_ERROR_INVALID_HANDLE


def test_a_stream_of_another_context() -> None:
    function = Kernels()["empty"]
    other = ok(driver.cuCtxCreate(None, 0, 1))
    stream = ok(driver.cuStreamCreate(0))
    ok(driver.cuCtxPopCurrent())
    assert launch(function, (), (), stream=stream) == Error.CUDA_ERROR_INVALID_HANDLE
    ok(driver.cuCtxDestroy(other))


def test_occupancy() -> None:
    function = Kernels()["empty"]
    assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 1024, 0)) == 2
    assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 64, 80 << 10)) == 0  # nor can it be launched
    most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    ok(driver.cuFuncSetAttribute(function, most, 80 << 10))
    assert ok(driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 64, 80 << 10)) == 2
    _, block = ok(driver.cuOccupancyMaxPotentialBlockSize(function, None, 0, 0))
    assert block == 1024
