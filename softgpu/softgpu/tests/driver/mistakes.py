"""The parts of programs in the cases of strict mode: streams that wait for each other, or that lack the wait."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error, Kernels, device_array, kernel_params, launch, ok

SEEDS = range(12)
COUNT = 256
BYTES = 4 * COUNT
NON_BLOCKING = driver.CUstream_flags.CU_STREAM_NON_BLOCKING


Order = Callable[[Any, Any], None]
"""Makes the second stream wait for what the first has so far; in a wrong program it does not."""


def stream() -> Any:
    return ok(driver.cuStreamCreate(NON_BLOCKING))


def pinned() -> int:
    return int(ok(driver.cuMemHostAlloc(BYTES, 0)))


def device() -> Any:
    return device_array(np.zeros(COUNT, np.int32))[0]


def add(address: Any, on: Any, *, count: int = COUNT) -> None:
    types = (None, ctypes.c_int, ctypes.c_int)
    assert launch(Kernels()["add"], (address, count, 1), types, block=(COUNT, 1, 1), stream=on) == Error.CUDA_SUCCESS


def wait(first: Any, second: Any) -> None:
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuEventRecord(event, first))
    ok(driver.cuStreamWaitEvent(second, event, 0))


def forget(first: Any, second: Any) -> None:
    """The missing wait."""


def recorded_too_early(first: Any, second: Any) -> None:
    """Before there was anything to wait for: as if the record stood above the work."""
    event = ok(driver.cuEventCreate(0))
    ok(driver.cuStreamWaitEvent(second, event, 0))
    ok(driver.cuEventRecord(event, first))


def waited_the_wrong_way(first: Any, second: Any) -> None:
    wait(second, first)


def keep_blocks(nbytes: int = 1 << 30) -> None:
    """The default pool keeps freed blocks, up to so many bytes."""
    pool = ok(driver.cuDeviceGetDefaultMemPool(0))
    threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(nbytes)))


def run_unseen(on: Any) -> None:
    """Has a stream's work run without the host having waited for it: changing an instance waits for its launches."""
    graph, append = ok(driver.cuGraphCreate(0)), Kernels()["append"]
    address = device()
    first, other = (kernel_params(append, (address, 0), (None, ctypes.c_int)) for _ in range(2))
    node = ok(driver.cuGraphAddKernelNode(graph, None, 0, first))
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(instance, on))
    ok(driver.cuGraphExecKernelNodeSetParams(instance, node, other))


def failure_message(library: ctypes.CDLL, error: Any = Error.CUDA_ERROR_LAUNCH_FAILED) -> str:
    """Return the message of the context's failure."""
    assert driver.cuCtxSynchronize()[0] == error
    library.softgpu_last_error.restype = ctypes.c_char_p
    return str(library.softgpu_last_error().decode())
