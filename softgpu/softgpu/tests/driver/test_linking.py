"""cuLink: PTX is joined into an image that the driver loads."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device

from softgpu.tests.compiler.test_linking import MAIN, OTHER
from softgpu.tests.driver import calls
from softgpu.tests.driver.calls import Error, Kernels, device_array, fails, ok, synchronize

KINDS = driver.CUjitInputType


@pytest.fixture(autouse=True)
def current(softgpu: tuple[int, ...]) -> None:
    Device(len(softgpu) - 1).set_current()


@pytest.fixture
def state() -> Any:
    made = ok(driver.cuLinkCreate(0, [], []))
    yield made
    ok(driver.cuLinkDestroy(made))
    fails(Error.CUDA_ERROR_INVALID_HANDLE, driver.cuLinkDestroy, made)


def add(state: Any, text: bytes, kind: Any = KINDS.CU_JIT_INPUT_PTX) -> Any:
    return driver.cuLinkAddData(state, kind, text, len(text), b"input", 0, [], [])


def test_texts_are_joined(state: Any, tmp_path: Path) -> None:
    path = tmp_path / "other.ptx"
    path.write_text(OTHER)
    ok(add(state, MAIN.encode()))
    ok(driver.cuLinkAddFile(state, KINDS.CU_JIT_INPUT_PTX, str(path).encode(), 0, [], []))
    image, nbytes = ok(driver.cuLinkComplete(state))
    kernels = Kernels(ctypes.string_at(image, nbytes))
    address, seen = device_array(np.zeros(32, np.uint32))
    assert calls.launch(kernels["k"], (address,), (None,)) == Error.CUDA_SUCCESS
    synchronize()
    np.testing.assert_array_equal(seen, 10 * np.arange(32) + 1002)
    kernels.close()


def test_invalid_inputs_are_not_linked(state: Any) -> None:
    fails(Error.CUDA_ERROR_INVALID_VALUE, driver.cuLinkComplete, state)
    fails(Error.CUDA_ERROR_NO_BINARY_FOR_GPU, add, state, b"\x7fELF", KINDS.CU_JIT_INPUT_CUBIN)
    file: tuple[Any, ...] = (state, KINDS.CU_JIT_INPUT_PTX, b"/nowhere.ptx", 0, [], [])
    fails(Error.CUDA_ERROR_FILE_NOT_FOUND, driver.cuLinkAddFile, *file)
    ok(add(state, OTHER.encode()))
    ok(add(state, OTHER.encode()))
    fails(Error.CUDA_ERROR_INVALID_PTX, driver.cuLinkComplete, state)
