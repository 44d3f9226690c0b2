"""Strict mode through the whole stack, in processes of its own: kernels from PTX."""

from __future__ import annotations

import pytest

from softgpu.tests.driver.test_memcheck import run

pytestmark = pytest.mark.processes

SEEDS = ("0", "1", "5")

STREAMS = """
import ctypes, sys
import softgpu
softgpu.load([64 << 20])
from cuda.bindings import driver
from softgpu.tests.driver.calls import Kernels, ok
from softgpu.tests.driver.test_end_to_end import PTX
ok(driver.cuInit(0))
ok(driver.cuCtxSetCurrent(ok(driver.cuDevicePrimaryCtxRetain(0))))
scale = Kernels(PTX.read_bytes() + b"\\0")["scale"]
count = 100_000
x = ok(driver.cuMemAlloc(8 * count))
streams = [ok(driver.cuStreamCreate(1)) for _ in range(2)]
for stream, half in zip(streams, sys.argv[1]):
    args = ((int(x) + int(half) * count * 4, 2.0, count), (ctypes.c_void_p, ctypes.c_float, ctypes.c_int))
    ok(driver.cuLaunchKernel(scale, -(-count // 256), 1, 1, 256, 1, 1, 0, stream, args, 0))
print(driver.cuCtxSynchronize()[0].name, softgpu.last_error())
"""


@pytest.mark.parametrize("seed", SEEDS)
def test_kernels_in_two_streams(seed: str) -> None:
    """They share no byte of their allocation, or all of a half."""
    said = run("-c", STREAMS, "01", SOFTGPU_STRICT=seed)
    assert said.startswith("CUDA_SUCCESS")
    said = run("-c", STREAMS, "11", SOFTGPU_STRICT=seed)
    assert said.startswith("CUDA_ERROR_LAUNCH_FAILED a race: kernel scale in stream ")
    assert "400000 bytes inside the nearest buffer (800000 bytes at " in said
