"""The output of kernels, on its way through the driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device

import softgpu as software
from softgpu.tests.driver import calls
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, device_array, fails, ok

OUTPUT = Path(__file__).parents[1] / "compiler" / "kernels" / "output.ptx"


@pytest.fixture
def kernels(softgpu: tuple[int, ...]) -> Kernels:
    Device(len(softgpu) - 1).set_current()
    return Kernels(OUTPUT.read_bytes() + b"\0")


def test_output_is_written_to_stdout_and_kept_by_device(
    softgpu: tuple[int, ...], kernels: Kernels, capfd: pytest.CaptureFixture[str]
) -> None:
    device = len(softgpu) - 1
    software.take_output(device), software.take_output(0)
    for n in (1, 2):
        assert calls.launch(kernels["twice"], (n,), (ctypes.c_int,), block=(1, 1, 1)) == Error.CUDA_SUCCESS
    ok(driver.cuStreamSynchronize(NO_STREAM))
    printed = "told by 0\n" * 2 + "told by 1\ntold by -1\n"
    assert capfd.readouterr().out == printed
    assert software.take_output(0) == ""
    assert software.take_output(device) == printed
    assert software.take_output(device) == ""


def test_only_the_newest_is_kept(softgpu: tuple[int, ...], kernels: Kernels) -> None:
    device = len(softgpu) - 1
    assert calls.launch(kernels["twice"], (10_000,), (ctypes.c_int,), block=(1, 1, 1)) == Error.CUDA_SUCCESS
    ok(driver.cuStreamSynchronize(NO_STREAM))
    kept = software.take_output(device)
    assert len(kept) == software.OUTPUT_BYTES
    assert kept.endswith("told by 9998\ntold by 9999\ntold by -9999\n")


def test_an_assertion_sticks_to_its_context(softgpu: tuple[int, ...], kernels: Any) -> None:
    context = ok(driver.cuCtxCreate(None, 0, len(softgpu) - 1))
    x, _ = device_array(np.array([1, -1], np.int32))
    arguments = (int(x), int(x)), (ctypes.c_void_p, ctypes.c_void_p)
    calls.launch(kernels["checked"], *arguments, block=(2, 1, 1))
    fails(Error.CUDA_ERROR_ASSERT, driver.cuStreamSynchronize, NO_STREAM)
    said = software.last_error()
    assert "kernel checked: " in said
    assert "thread: [1,0,0] Assertion" in said
    assert "Assertion" in software.take_output(len(softgpu) - 1)
    ok(driver.cuCtxDestroy(context))
