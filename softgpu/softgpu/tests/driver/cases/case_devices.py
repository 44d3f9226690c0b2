"""Devices, contexts and the state before them."""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

import softgpu as software
from softgpu.tests.driver.calls import Error, Kernels, fails, launch, ok
from softgpu.tests.driver.fake import DEVICE_BYTES

pytestmark = pytest.mark.usefixtures("ctx")


def test_properties_of_each_device() -> None:
    assert ok(driver.cuDeviceGetCount()) == 2
    assert [ok(driver.cuDeviceTotalMem(d)) for d in range(2)] == list(DEVICE_BYTES)
    major = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    optin = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    assert ok(driver.cuDeviceGetAttribute(major, 1)) == 8
    assert ok(driver.cuDeviceGetAttribute(optin, 1)) == 163 << 10
    assert ok(driver.cuDeviceGetUuid(0)).bytes != ok(driver.cuDeviceGetUuid(1)).bytes
    bus = ok(driver.cuDeviceGetPCIBusId(64, 1))
    assert int(ok(driver.cuDeviceGetByPCIBusId(bus))) == 1


def test_every_attribute_is_answered() -> None:
    for attribute in driver.CUdevice_attribute:
        if attribute < 148:
            ok(driver.cuDeviceGetAttribute(attribute, 0))


def test_unknown_devices() -> None:
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuDeviceGet, 2)
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuDeviceGet, -1)
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuDevicePrimaryCtxRetain, 7)


def test_no_context_in_a_new_thread() -> None:
    seen: list[Any] = []
    thread = threading.Thread(target=lambda: seen.append(driver.cuMemAlloc(64)[0]))
    thread.start()
    thread.join()
    assert seen == [Error.CUDA_ERROR_INVALID_CONTEXT]


def test_context_stack(ctx: Any) -> None:
    other = ok(driver.cuCtxCreate(None, 0, 1))
    assert int(ok(driver.cuCtxGetDevice())) == 1
    ok(driver.cuCtxPushCurrent(ctx))
    assert int(ok(driver.cuCtxGetDevice())) == 0
    assert int(ok(driver.cuCtxPopCurrent())) == int(ctx)
    assert int(ok(driver.cuCtxGetCurrent())) == int(other)
    ok(driver.cuCtxDestroy(other))
    assert int(ok(driver.cuCtxGetCurrent())) == int(ctx)
    fails(Error.CUDA_ERROR_INVALID_CONTEXT, driver.cuCtxSetCurrent, other)


def test_a_context_takes_its_memory_along() -> None:
    other = ok(driver.cuCtxCreate(None, 0, 0))
    before = ok(driver.cuMemGetInfo())[0]
    address = ok(driver.cuMemAlloc(1 << 20))
    assert ok(driver.cuMemGetInfo())[0] == before - (1 << 20)
    ok(driver.cuCtxDestroy(other))
    assert ok(driver.cuMemGetInfo())[0] == before
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuMemFree, address)


def test_a_failed_kernel_sticks_to_its_context_only(ctx: Any) -> None:
    kernels = Kernels()
    broken = ok(driver.cuCtxCreate(None, 0, 0))
    stream = ok(driver.cuStreamCreate(0))
    assert launch(kernels["trap"], (), (), stream=stream) == Error.CUDA_SUCCESS
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuStreamSynchronize, stream)
    for call in (driver.cuCtxSynchronize, lambda: driver.cuMemAlloc(64), lambda: driver.cuStreamSynchronize(stream)):
        fails(Error.CUDA_ERROR_LAUNCH_FAILED, call)
    function = ok(driver.cuLibraryGetKernel(kernels.library, b"empty"))
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuKernelGetFunction, function)
    ok(driver.cuCtxPushCurrent(ctx))
    ok(driver.cuCtxSynchronize())
    assert launch(kernels["empty"], (), ()) == Error.CUDA_SUCCESS
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuCtxDestroy(broken))


def test_every_thread_gets_the_reason_of_a_sticky_error(ctx: Any, library: ctypes.CDLL) -> None:
    launch(Kernels()["trap"], (), ())
    said: list[bytes] = []

    def ask() -> None:
        driver.cuCtxSetCurrent(ctx)
        fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
        said.append(library.softgpu_last_error())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert said == [b"kernel trap: trap called"]


def test_peers() -> None:
    assert ok(driver.cuDeviceCanAccessPeer(0, 1)) == 1
    assert ok(driver.cuDeviceCanAccessPeer(0, 0)) == 0
    peer = ok(driver.cuDevicePrimaryCtxRetain(1))
    fails(Error.CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, driver.cuCtxDisablePeerAccess, peer)
    ok(driver.cuCtxEnablePeerAccess(peer, 0))
    fails(Error.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, driver.cuCtxEnablePeerAccess, peer, 0)
    ok(driver.cuCtxDisablePeerAccess(peer))
    ok(driver.cuDevicePrimaryCtxRelease(1))


def test_error_names_and_sentences() -> None:
    assert ok(driver.cuGetErrorName(Error.CUDA_ERROR_OUT_OF_MEMORY)) == b"CUDA_ERROR_OUT_OF_MEMORY"
    assert ok(driver.cuGetErrorString(Error.CUDA_ERROR_INVALID_VALUE)) == b"invalid argument"


def test_numbers_of_the_binary_interface() -> None:
    """Every enumerator that cuda_abi.h declares has the value that cuda.bindings gives it."""
    text = (Path(software.__file__).parent / "driver" / "cuda_abi.h").read_text()
    known = {
        member.name: int(member)
        for enum in vars(driver).values()
        if isinstance(enum, type) and issubclass(enum, int)
        for member in getattr(enum, "__members__", {}).values()
    }
    declared = {name: int(value, 0) for name, value in re.findall(r"\b(CU\w*_\w+) = (0x[0-9a-f]+|\d+)", text)}
    declared.pop("CU_DEVICE_ATTRIBUTE_MAX")
    assert len(declared) > 150
    assert {name: value for name, value in declared.items() if known.get(name) != value} == {}
