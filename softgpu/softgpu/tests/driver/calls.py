"""Short ways to call the driver in tests: results without their status, arrays in device memory, kernels by name."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from cuda.bindings import driver

from softgpu.tests.driver.fake import IMAGE
from tests.timeouts import TIMEOUT_S

NO_STREAM = driver.CUstream(0)
Error = driver.CUresult


def ok(result: Sequence[Any]) -> Any:
    """The values of a call that must succeed: none, one or a tuple."""
    assert result[0] == Error.CUDA_SUCCESS, result[0]
    match result[1:]:
        case ():
            return None
        case (value,):
            return value
        case values:
            return tuple(values)


def fails(error: Any, call: Callable[..., Sequence[Any]], *arguments: Any) -> None:
    """Asserts that a call returns this error."""
    assert call(*arguments)[0] == error


def synchronize() -> None:
    """Waits for all work of the current context."""
    ok(driver.cuCtxSynchronize())


def view(address: Any, dtype: Any, count: int) -> np.ndarray:
    """Device memory as an array: it is host memory."""
    size = np.dtype(dtype).itemsize * count
    return np.frombuffer((ctypes.c_char * size).from_address(int(address)), dtype)


def device_array(values: Any) -> tuple[Any, np.ndarray]:
    """A device allocation with these values, and a view of it."""
    array = np.ascontiguousarray(values)
    address = ok(driver.cuMemAlloc(array.nbytes))
    seen = view(address, array.dtype, array.size)
    seen[:] = array.ravel()
    return address, seen


class Kernels:
    """The kernels of one loaded library, as functions of cuda.bindings."""

    def __init__(self, image: bytes = IMAGE) -> None:
        self.library = ok(driver.cuLibraryLoadData(image, [], [], 0, [], [], 0))

    def __getitem__(self, name: str) -> Any:
        return ok(driver.cuKernelGetFunction(ok(driver.cuLibraryGetKernel(self.library, name.encode()))))

    def close(self) -> None:
        ok(driver.cuLibraryUnload(self.library))


class Gate:
    """A host function that waits, in the stream, until the test opens it; and one that notes that it ran."""

    def __init__(self) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        self._held = signature(lambda _: self._wait())
        self._noted = signature(lambda _: self.reached.set())

    def _wait(self) -> None:
        assert self.open.wait(TIMEOUT_S)

    def hold(self, stream: Any) -> None:
        ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(ctypes.cast(self._held, ctypes.c_void_p).value), 0))

    def note(self, stream: Any) -> None:
        ok(driver.cuLaunchHostFunc(stream, driver.CUhostFn(ctypes.cast(self._noted, ctypes.c_void_p).value), 0))


def launch(
    function: Any,
    values: Sequence[Any],
    types: Sequence[Any],
    *,
    grid: tuple[int, int, int] = (1, 1, 1),
    block: tuple[int, int, int] = (32, 1, 1),
    shared: int = 0,
    stream: Any = NO_STREAM,
) -> Any:
    """Launches and returns the status. values and ctypes as cuda.bindings packs them."""
    arguments = (tuple(values), tuple(types))
    return driver.cuLaunchKernel(function, *grid, *block, shared, stream, arguments, 0)[0]


def kernel_params(
    function: Any, values: Sequence[Any], types: Sequence[Any], *, grid: int = 1, block: int = 32
) -> driver.CUDA_KERNEL_NODE_PARAMS:
    """The parameters of a kernel node with one-dimensional shapes."""
    params = driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = function
    params.gridDimX, params.gridDimY, params.gridDimZ = grid, 1, 1
    params.blockDimX, params.blockDimY, params.blockDimZ = block, 1, 1
    params.sharedMemBytes = 0
    params.kernelParams = (tuple(values), tuple(types))
    return params
