"""Calls that are given nothing where there should be something: they return, with a status."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, ok
from softgpu.tests.driver.fake import IMAGE
from softgpu.tests.driver.table import works

MOST_ARGUMENTS = 12
ONE = ctypes.c_uint64(1)


def status(library: ctypes.CDLL, name: str, *arguments: Any) -> Error:
    """Return the result of the newest form of a call."""
    address, result = ctypes.c_void_p(), ctypes.c_int()
    library.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), 13010, ctypes.c_uint64(0), ctypes.byref(result))
    return Error(ctypes.CFUNCTYPE(ctypes.c_int)(address.value or 0)(*arguments))


def test_every_call_with_nothing_but_zeros(library: ctypes.CDLL) -> None:
    for name in works():
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        assert status(library, name, *[ctypes.c_uint64(0)] * MOST_ARGUMENTS) != Error.CUDA_ERROR_UNKNOWN, name
    driver.cuDevicePrimaryCtxReset(0)


@pytest.mark.usefixtures("ctx")
@pytest.mark.parametrize("image", [IMAGE, b"no image"])
def test_lists_that_are_announced_and_not_there(library: ctypes.CDLL, image: bytes) -> None:
    words = (ctypes.c_uint64 * 8)()
    graph = ctypes.c_void_p(int(ok(driver.cuGraphCreate(0))))
    for name, arguments in {
        "cuLibraryLoadData": (words, image, None, words, ONE, None, None, None),
        "cuModuleLoadDataEx": (words, image, ONE, words, None),
        "cuPointerGetAttributes": (ONE, words, words, None),
        "cuStreamBeginCaptureToGraph": (None, graph, None, None, ONE, None),
        "cuMemcpyBatchAsync": (None, words, words, ONE, None, None, None, None),
    }.items():
        assert status(library, name, *arguments) == Error.CUDA_ERROR_INVALID_VALUE


@pytest.mark.usefixtures("ctx")
def test_a_parameter_buffer_without_a_size(library: ctypes.CDLL) -> None:
    add = int(Kernels()["add"])
    size_at, end = ctypes.c_void_p(2), None
    extra = (ctypes.c_void_p * 3)(size_at, None, end)
    arguments = (ctypes.c_void_p(add), *[ONE] * 6, ctypes.c_uint64(0), None, None, extra)
    assert status(library, "cuLaunchKernel", *arguments) == Error.CUDA_ERROR_INVALID_VALUE
    ok(driver.cuStreamSynchronize(NO_STREAM))
