"""memcheck through the driver, in processes of its own: the errors that a program gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[4]

OVERRUN = """
import ctypes
import numpy as np
import softgpu
softgpu.load([1 << 20]{options})
from cuda.bindings import driver
from softgpu.tests.driver.calls import Kernels, ok
from softgpu.tests.driver.test_end_to_end import PTX
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
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("options", "variable"), [(", memcheck=True", "0"), ("", "1")], ids=["by argument", "by environment"]
)
def test_an_overrun(options: str, variable: str) -> None:
    said = run("-c", OVERRUN.format(options=options), SOFTGPU_MEMCHECK=variable).splitlines()
    first, _, sentence = said[0].partition(" ")
    address, _, sentence = sentence.partition(" ")
    assert first == "CUDA_ERROR_ILLEGAL_ADDRESS"
    assert sentence.startswith("kernel scale: PTX line ")
    thread = f"thread (4, 0, 0) of block (3, 0, 0) reads 4 bytes of {int(address, 16) + 400:#x}"
    assert f"{thread}, 0 bytes behind the end of the nearest buffer (400 bytes at {address})" in sentence
    assert said[1] == f"CUDA_ERROR_ILLEGAL_ADDRESS {sentence}"


def test_an_overrun_without_memcheck_stays_unseen() -> None:
    assert run("-c", OVERRUN.format(options=""), SOFTGPU_MEMCHECK="0").startswith("CUDA_SUCCESS")


def test_loading_again_with_another_answer() -> None:
    code = """
import softgpu
from softgpu import SoftgpuError
softgpu.load([1 << 20], memcheck=True)
softgpu.load([1 << 20])
try:
    softgpu.load([1 << 20], memcheck=False)
except SoftgpuError as error:
    print(error)
"""
    assert "memcheck=True" in run("-c", code)


REGIONS = """
import ctypes, json, sys
import softgpu
softgpu.load([1 << 20], memcheck=True)
from cuda.bindings import driver
from softgpu.tests.driver.calls import Kernels, ok
from softgpu.tests.driver.test_end_to_end import PTX
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
kernels = Kernels(PTX.read_bytes() + b"\\0")
arena, other = int(ok(driver.cuMemAlloc(8192))), int(ok(driver.cuMemAlloc(8192)))
for at, regions in json.loads(sys.argv[2]):
    softgpu.describe(arena + at, 4096, regions)
args = ((arena + int(sys.argv[1]), 2.0, 128), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int))
ok(driver.cuLaunchKernel(kernels["scale"], 4, 1, 1, 32, 1, 1, 0, 0, args, 0))
print(driver.cuCtxSynchronize()[0].name, softgpu.last_error())
"""


def scale_512_bytes(offset: int, *described: tuple[int, list[tuple[str, int, int]]]) -> str:
    """Return the result of a kernel that reads and writes 512 bytes at an offset in two parts of 4096 bytes each."""
    return run("-c", REGIONS, str(offset), json.dumps(described))


@pytest.mark.parametrize(
    ("offset", "described"),
    [
        (0, [(0, [("a", 0, 512), ("b", 512, 8)])]),
        (512, [(0, [("a", 0, 512), ("whole", 0, 2048), ("b", 512, 8)])]),  # within one of several that overlap
        (4096, [(0, [("a", 0, 512)])]),  # of the rest of the allocation nothing was said
        (512, [(0, [("a", 0, 512)]), (0, [("b", 512, 512)])]),  # the later description replaces the earlier
        (512, [(0, [("a", 0, 512)]), (0, [])]),
    ],
)
def test_accesses_within_a_region(offset: int, described: list[tuple[int, list[tuple[str, int, int]]]]) -> None:
    assert scale_512_bytes(offset, *described).startswith("CUDA_SUCCESS")


@pytest.mark.parametrize(
    ("offset", "described", "near"),
    [
        (0, [(0, [("a", 0, 400), ("b", 512, 512)])], "0 bytes behind the end of the nearest buffer (a: 400 bytes"),
        (2048, [(0, [("a", 0, 400), ("b", 2560, 512)])], "512 bytes before the nearest buffer (b: 512 bytes"),
    ],
)
def test_an_overrun_of_a_region(
    offset: int, described: list[tuple[int, list[tuple[str, int, int]]]], near: str
) -> None:
    said = scale_512_bytes(offset, *described)
    assert said.startswith("CUDA_ERROR_ILLEGAL_ADDRESS kernel scale: PTX line ")
    assert near in said
