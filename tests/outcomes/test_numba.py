"""Programs of numba-cuda run on the software GPU as they are, without nvJitLink and without a shim."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions

import pytest

from tests.code.present import present
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

if not present("numba_cuda"):
    pytest.skip("needs numba-cuda and what it compiles with", allow_module_level=True)
if any(found.name.startswith("nvidia-nvjitlink") for found in distributions()):
    pytest.skip("nvJitLink is here, and makes machine code of a GPU", allow_module_level=True)

PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import softgpu
softgpu.load((64 << 20,), force=True)
import numpy as np
from numba import cuda, float32

TABLE = np.arange(8, dtype=np.float32)

@cuda.jit
def doubled(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = 2 * x[i] + cuda.const.array_like(TABLE)[i % 8]

@cuda.jit
def prints(n):
    print("thread", cuda.threadIdx.x, "of", n)

@cuda.jit
def sums(x, out):
    part = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    part[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for i in range(32):
            total += part[i]
        cuda.atomic.add(out, 0, total)

x = np.arange(100, dtype=np.float32)
y = np.zeros_like(x)
doubled[4, 32](x, y)
assert (y == 2 * x + np.arange(100) % 8).all(), y
out = np.zeros(1, np.float32)
sums[3, 32](x, out)
assert out[0] == x[:96].sum()
prints[1, 2](7)
cuda.synchronize()
(registers,) = doubled.get_regs_per_thread().values()
(constants,) = doubled.get_const_mem_size().values()
(shared,) = sums.get_shared_mem_per_block().values()
assert 0 < registers <= 255
assert constants == 32
assert shared == 128
"""


def test_a_program_runs_and_its_kernels_print_to_stdout() -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "thread 0 of 7\nthread 1 of 7\n"
