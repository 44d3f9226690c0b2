"""Partitions of a device's multiprocessors for tests, through the driver's calls."""

from __future__ import annotations

import ctypes
from typing import Any

from cuda.bindings import driver

from softgpu.tests.driver.calls import Error, Kernels, kernel_params, launch, ok

SM = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
SMS = 132
"""Of a device with the fixture `with_sms`."""
COUNT = 64
ADD_TYPES = (None, ctypes.c_int, ctypes.c_int)


def whole(device: int = 0) -> Any:
    """The multiprocessors of a device."""
    return ok(driver.cuDeviceGetDevResource(device, SM))


def partitions(least: int, count: int, of: Any = None) -> tuple[list[Any], Any]:
    """So many equal partitions, and the rest."""
    groups, made, rest = ok(driver.cuDevSmResourceSplitByCount(count, of or whole(), 0, least))
    assert made == len(groups) == count
    return groups, rest


def described(*resources: Any) -> Any:
    return ok(driver.cuDevResourceGenerateDesc(list(resources), len(resources)))


def green_of(*resources: Any, device: int = 0) -> Any:
    """A green context with these resources."""
    return ok(driver.cuGreenCtxCreate(described(*resources), device, 1))


def stream_of(green: Any) -> Any:
    return ok(driver.cuGreenCtxStreamCreate(green, NON_BLOCKING, 0))


def view_of(green: Any) -> Any:
    """The context of a green context."""
    return ok(driver.cuCtxFromGreenCtx(green))


def add(stream: Any, address: Any) -> None:
    """Launches the kernel `add`, which adds 1 to COUNT numbers."""
    types, shape = ADD_TYPES, (COUNT, 1, 1)
    assert launch(Kernels()["add"], (address, COUNT, 1), types, block=shape, stream=stream) == Error.CUDA_SUCCESS


def node_in(context: Any, address: Any) -> driver.CUDA_KERNEL_NODE_PARAMS:
    """The parameters of a node with the kernel `add`, in a context."""
    params = kernel_params(Kernels()["add"], (address, COUNT, 1), ADD_TYPES, block=COUNT)
    params.func, params.kern, params.ctx = driver.CUfunction(0), driver.CUkernel(int(params.func)), context
    return params
