"""Launches as large as CUDA allows."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device

import softgpu as software
from softgpu.tests.driver import calls
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, ok
from tests.timeouts import TIMEOUT_S

TEXT = """.version 8.0
.target sm_80
.address_size 64
.visible .entry count(.param .u64 cell) {
.reg .b64 %a; ld.param.u64 %a, [cell]; red.global.add.u32 [%a], 1; ret; }
"""
WHOLE = (1 << 31) - 1


@pytest.fixture
def kernels(softgpu: tuple[int, ...]) -> Iterator[Kernels]:
    ordinal = len(softgpu) - 1
    Device(ordinal).set_current()
    context = ok(driver.cuCtxCreate(None, 0, ordinal))
    yield Kernels(TEXT.encode() + b"\0")
    ok(driver.cuCtxDestroy(context))


@pytest.mark.parametrize(
    ("grid", "block", "threads"),
    [
        ((1, 1, 1), (1024, 1, 1), 1024),
        ((1, 1, 1), (1, 1024, 1), 1024),
        ((1, 1, 1), (4, 4, 64), 1024),
        ((1, 65535, 1), (1, 1, 1), 65535),
        ((1, 1, 65535), (1, 1, 1), 65535),
    ],
)
def test_shapes(kernels: Kernels, grid: Any, block: Any, threads: int) -> None:
    address, seen = device_array(np.zeros(1, np.uint32))
    status = calls.launch(kernels["count"], (int(address),), (ctypes.c_void_p,), grid=grid, block=block)
    ok(driver.cuCtxSynchronize())
    assert status == Error.CUDA_SUCCESS
    assert seen[0] == threads


def test_two_thousand_million_blocks_start_and_are_ended(softgpu: tuple[int, ...]) -> None:
    ordinal = len(softgpu) - 1
    Device(ordinal).set_current()
    context = ok(driver.cuCtxCreate(None, 0, ordinal))
    kernels = Kernels(TEXT.encode() + b"\0")
    address, seen = device_array(np.zeros(1, np.uint32))
    said = []

    def launch() -> None:
        ok(driver.cuCtxSetCurrent(context))
        calls.launch(kernels["count"], (int(address),), (ctypes.c_void_p,), grid=(WHOLE, 65535, 65535))
        said.append(driver.cuStreamSynchronize(NO_STREAM)[0])

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    end = time.monotonic() + TIMEOUT_S
    while not seen[0]:
        assert time.monotonic() < end
    software.cancel(ordinal)
    thread.join(TIMEOUT_S)
    assert said == [Error.CUDA_ERROR_LAUNCH_TIMEOUT]
    ok(driver.cuCtxDestroy(context))
    ok(driver.cuCtxDestroy(ok(driver.cuCtxCreate(None, 0, ordinal))))  # what comes on this device is ended no more


LOCAL = """.version 8.0
.target sm_80
.address_size 64
.visible .entry large(.param .u64 cell) {
.reg .b64 %a; .reg .b32 %v; .local .align 16 .b8 room[524288];
ld.param.u64 %a, [cell]; st.local.u32 [room+64], 7; ld.volatile.local.u32 %v, [room+64]; st.global.u32 [%a], %v; ret; }
"""
TOO_LARGE = "kernel large: the threads that run at a time have 536870912 bytes of local memory; device "


def test_a_launch_whose_local_memory_the_device_has_no_room_for_fails_alone(kernels: Kernels) -> None:
    address, seen = device_array(np.zeros(1, np.uint32))
    large, arguments = Kernels(LOCAL.encode() + b"\0")["large"], ((int(address),), (ctypes.c_void_p,))
    graph = ok(driver.cuGraphCreate(0))
    params = calls.kernel_params(large, *arguments, block=1024)
    ok(driver.cuGraphAddKernelNode(graph, [], 0, params))
    for _ in range(2):
        assert calls.launch(large, *arguments, block=(1024, 1, 1)) == Error.CUDA_ERROR_OUT_OF_MEMORY
        assert TOO_LARGE in software.last_error()
        fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuGraphInstantiate, graph, 0)
        ok(driver.cuCtxSynchronize())  # nothing sticks to the context
        assert seen[0] == 0
    assert calls.launch(large, *arguments, block=(32, 1, 1)) == Error.CUDA_SUCCESS
    ok(driver.cuCtxSynchronize())
    assert seen[0] == 7
    assert calls.launch(kernels["count"], *arguments) == Error.CUDA_SUCCESS
    ok(driver.cuGraphDestroy(graph))
