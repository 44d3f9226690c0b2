"""Ending an endless kernel through the driver."""

from __future__ import annotations

import ctypes
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device

import softgpu as software
from softgpu import SoftgpuError
from softgpu.tests.driver import calls
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, ok
from tests.timeouts import TIMEOUT_S

ENDLESS = Path(__file__).parents[1] / "compiler" / "kernels" / "endless.ptx"


def test_an_endless_kernel_is_ended(softgpu: tuple[int, ...]) -> None:
    ordinal = len(softgpu) - 1
    Device(ordinal).set_current()
    context = ok(driver.cuCtxCreate(None, 0, ordinal))
    kernels = Kernels(ENDLESS.read_bytes() + b"\0")
    address, seen = device_array(np.zeros(64, np.int32))
    arguments = (int(address), int(address) + 4), (ctypes.c_void_p, ctypes.c_void_p)
    said = []

    def launch() -> None:
        ok(driver.cuCtxSetCurrent(context))
        calls.launch(kernels["together"], *arguments)
        said.append((driver.cuStreamSynchronize(NO_STREAM)[0], software.last_error()))

    thread = threading.Thread(target=launch, daemon=True)
    thread.start()
    end = time.monotonic() + TIMEOUT_S
    while not seen[0]:
        assert time.monotonic() < end
    assert software.running(ordinal) == ("together",)
    software.cancel(ordinal)
    thread.join(TIMEOUT_S)
    ((status, sentence),) = said
    assert status == Error.CUDA_ERROR_LAUNCH_TIMEOUT
    assert "kernel together: cancelled while block (0, 0, 0), warp 0 ran" in sentence
    fails(Error.CUDA_ERROR_LAUNCH_TIMEOUT, driver.cuMemAlloc, 8)
    ok(driver.cuCtxDestroy(context))

    fresh = ok(driver.cuCtxCreate(None, 0, ordinal))  # and the device works again
    address, seen = device_array(np.zeros(64, np.int32))
    arguments = (int(address), int(address) + 4), (ctypes.c_void_p, ctypes.c_void_p)
    assert calls.launch(kernels["straight"], *arguments) == Error.CUDA_SUCCESS
    ok(driver.cuStreamSynchronize(NO_STREAM))
    assert seen[0] == 32
    ok(driver.cuCtxDestroy(fresh))


def test_a_device_that_is_not_there(softgpu: tuple[int, ...]) -> None:
    for call in (software.cancel, software.running):
        with pytest.raises(SoftgpuError):
            call(len(softgpu))
