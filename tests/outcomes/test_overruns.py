"""A kernel that writes far outside its buffers is an error that says how to find the access; the program lives on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

PROGRAM = r"""
import gc
import sys

import numpy as np
import kaas

LIBRARY = kaas.Library.from_ptx('''.version 7.0
.target sm_70
.address_size 64
.visible .entry scale_doubles(.param .u64 x, .param .f64 by, .param .u32 n) {
    .reg .b32 %r<5>; .reg .b64 %rd<4>; .reg .f64 %f<3>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [x]; ld.param.f64 %f1, [by]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r2, %r3, %r4, %r2;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra $end;
    mul.wide.u32 %rd2, %r2, 8; add.s64 %rd3, %rd1, %rd2;
    ld.global.f64 %f2, [%rd3]; mul.f64 %f2, %f2, %f1; st.global.f64 [%rd3], %f2;
$end:
    ret;
}
''')
n = int(sys.argv[1])
x = kaas.Buffer("x", n, "float32")  # the kernel takes it to hold doubles
task = kaas.KTask(
    [kaas.Kernel(LIBRARY, "scale_doubles", (n + 255) // 256, 256, [kaas.InOut(x), kaas.f64(2), kaas.u32(n)])], [x]
)
own = [np.zeros(size) for size in range(1, 2000)]
try:
    kaas.run_local(task, {"x": np.ones(n, np.float32)})
except kaas.KaasError as error:
    print(type(error).__name__, error)
assert not any(array.any() for array in own)
del own
gc.collect()
print("the program goes on")
"""


def run(elements: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(elements)],
        cwd=ROOT,
        env={**os.environ, "SOFTGPU_MEMCHECK": "0", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the program goes on\n")
    return done.stdout


@pytest.mark.parametrize("elements", [20_000, 100_000, 3_000_000])
def test_a_kernel_of_the_wrong_dtype_is_an_error(elements: int) -> None:
    said = run(elements)
    assert said.startswith("DeviceLost ")
    assert "kernel scale_doubles: illegal access" in said
    assert "SOFTGPU_MEMCHECK=1" in said


def test_python_survives_a_kernel_that_meets_other_memory_of_the_device() -> None:
    run(1000)
