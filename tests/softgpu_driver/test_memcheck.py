"""memcheck through the driver, in processes of its own: what a program is told, and that good programs pass."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0

OVERRUN = """
import ctypes
import numpy as np
from kaas import softgpu
softgpu.load([1 << 20]{options})
from cuda.bindings import driver
from tests.softgpu_driver.calls import Kernels, ok
from tests.softgpu_driver.test_end_to_end import PTX
ok(driver.cuInit(0))
ok(driver.cuDevicePrimaryCtxRetain(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
kernels = Kernels(PTX.read_bytes() + b"\\0")
x, y = ok(driver.cuMemAlloc(400)), ok(driver.cuMemAlloc(4096))
args = ((int(x), 2.0, 128), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int))
ok(driver.cuLaunchKernel(kernels["scale"], 4, 1, 1, 32, 1, 1, 0, 0, args, 0))
status = driver.cuCtxSynchronize()[0]
print(status.name, hex(int(x)), softgpu.last_error())
print(driver.cuMemAlloc(8)[0].name, softgpu.last_error())
"""


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("options", "variable"), [(", memcheck=True", "0"), ("", "1")], ids=["by argument", "by environment"]
)
def test_an_overrun(options: str, variable: str) -> None:
    said = run("-c", OVERRUN.format(options=options), KAAS_SOFTGPU_MEMCHECK=variable).splitlines()
    first, _, sentence = said[0].partition(" ")
    address, _, sentence = sentence.partition(" ")
    assert first == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert sentence.startswith("kernel scale: PTX line ")
    thread = f"thread (4, 0, 0) of block (3, 0, 0) reads 4 bytes of {int(address, 16) + 400:#x}"
    assert f"{thread}, 0 bytes behind the end of the nearest buffer (400 bytes at {address})" in sentence
    assert said[1] == f"CUDA_ERROR_ILLEGAL_ADDRESS {sentence}"


def test_without_it_the_overrun_stays_unseen() -> None:
    assert run("-c", OVERRUN.format(options=""), KAAS_SOFTGPU_MEMCHECK="0").startswith("CUDA_SUCCESS")


def test_loading_again_with_another_answer() -> None:
    code = """
from kaas import softgpu
from kaas.errors import DeviceUnavailable
softgpu.load([1 << 20], memcheck=True)
softgpu.load([1 << 20])
try:
    softgpu.load([1 << 20], memcheck=False)
except DeviceUnavailable as error:
    print(error)
"""
    assert "memcheck=True" in run("-c", code)


@pytest.mark.parametrize("tests", ["tests/executor/test_random_graphs.py", "tests/examples/test_gpu_cases.py"])
def test_good_programs_pass(tests: str) -> None:
    """Random graphs, and the kernels of the examples and of the comparison with GPUs."""
    said = run("-m", "pytest", "-p", "no:cacheprovider", tests, KAAS_SOFTGPU_MEMCHECK="1")
    assert " passed" in said
    assert "skipped" not in said
