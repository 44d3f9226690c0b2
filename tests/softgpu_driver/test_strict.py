"""Strict mode through the whole stack, in processes of its own: kernels from PTX, and kTasks with an edge too few."""

from __future__ import annotations

import pytest

from tests.softgpu_driver.test_memcheck import run

SEEDS = ("0", "1", "5")

STREAMS = """
import ctypes, sys
from kaas import softgpu
softgpu.load([64 << 20])
from cuda.bindings import driver
from tests.softgpu_driver.calls import Kernels, ok
from tests.softgpu_driver.test_end_to_end import PTX
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


EDGES = """
import sys
import numpy as np
import kaas
from kaas.errors import KaasError
library = kaas.Library.from_file("tests/executor/kernels/simple.ptx")
x, a, b, y = (kaas.Buffer(name, 64, "int32") for name in "xaby")
three, count = kaas.i32(3), kaas.i32(64)
first, second = (
    kaas.Kernel(library, "scale", 2, 32, [kaas.In(source), kaas.Out(target), three, count])
    for source, target in [(x, a), (a, b)]
)
add = kaas.Kernel(library, "add", 2, 32, [kaas.In(a), kaas.In(b), kaas.Out(y), count])
task = kaas.KTask([first, second, add], [y])
gone = [tuple(map(int, pair)) for pair in sys.argv[1:]]
assert {(0, 1), (1, 2)} <= set(task.edges)
object.__setattr__(task, "edges", tuple(edge for edge in task.edges if edge not in gone))
try:
    print(int(kaas.run_local(task, {"x": np.ones(64, np.int32)})["y"].sum()))
except KaasError as error:
    print(error)
"""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gone", ["none", "01", "12"])
def test_an_edge_too_few(gone: str, seed: str) -> None:
    said = run("-c", EDGES, *([] if gone == "none" else [gone]), SOFTGPU_STRICT=seed)
    if gone == "none":
        assert said.strip() == str(12 * 64)
    else:
        assert "a race: kernel " in said
        assert "no edges of their graph order them" in said
