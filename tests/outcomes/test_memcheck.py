"""With memcheck an access just past a buffer is found, and the error names that buffer and the line of the source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from softgpu import MEMCHECK_VARIABLE
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

PROGRAM = r"""
import sys

import numpy as np
import kaas

MODULE = '''.version 7.0
.target sm_70
.address_size 64
.visible .entry _Z4copyPKfPfj(.param .u64 from, .param .u64 to, .param .u32 n) {
    .reg .b32 %r<3>; .reg .b64 %rd<6>; .reg .f32 %f<2>; .reg .pred %p<2>;
    .loc 1 3 0
    ld.param.u64 %rd1, [from]; ld.param.u64 %rd2, [to]; ld.param.u32 %r2, [n];
    mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, %r2;
    @%p1 bra $end;
    .loc 1 5 12
    mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3; ld.global.f32 %f1, [%rd4];
    .loc 1 6 3
    add.s64 %rd5, %rd2, %rd3; st.global.f32 [%rd5], %f1;
$end:
    ret;
}
.visible .entry copy_first(.param .u64 table, .param .u64 to, .param .u32 n) {
    .reg .b32 %r<2>; .reg .b64 %rd<6>; .reg .f32 %f<2>;
    ld.param.u64 %rd1, [table]; ld.param.u64 %rd2, [to]; ld.param.u32 %r1, [n];
    ld.global.u64 %rd3, [%rd1];
    mul.wide.u32 %rd4, %r1, 4; add.s64 %rd5, %rd3, %rd4; ld.global.f32 %f1, [%rd5];
    st.global.f32 [%rd2], %f1;
    ret;
}
.file 1 "/home/user/project/copy.cu"
'''
LIBRARY = kaas.Library.from_ptx(MODULE)


def copy(source, target, count):
    return kaas.Kernel(LIBRARY, "_Z4copyPKfPfj", 1, 512, [kaas.In(source), kaas.Out(target), kaas.i32(count)])


def task_of(case):
    buffer = lambda name, n=256: kaas.Buffer(name, n, "float32")
    x, y, z, out = buffer("x"), buffer("y"), buffer("z"), buffer("out", 1)
    match case:
        case "none" | "200" | "256":
            n = 256 if case == "256" else 200
            x, y, z = buffer("x", n), buffer("y", n), buffer("z", n)
            return kaas.KTask([copy(x, y, n + (case != "none")), copy(y, z, n)], [z])
        case "temporary":  # the memory of `first` would serve `third`, which is larger, once nothing reads `first`
            first, second, third = buffer("first"), buffer("second"), buffer("third", 300)
            steps = (x, first, 256), (first, second, 257), (second, third, 256), (third, z, 256)
            return kaas.KTask([copy(*step) for step in steps], [z])
        case "table":
            table = kaas.Pointers([kaas.In(x), kaas.In(y)])
            entry = kaas.Kernel(LIBRARY, "copy_first", 1, 1, [table, kaas.Out(out), kaas.i32(256)])
            return kaas.KTask([entry, copy(y, z, 256)], [out, z])
        case "constant":
            weights = buffer("weights", 200)
            return kaas.KTask([copy(weights, y, 201)], [y])


def run(case):
    task = task_of(case)
    given = {b.name: np.ones(b.shape, np.float32) for b in task.inputs}
    if case != "constant":
        return kaas.run_local(task, given)
    device = kaas.Device("software", memory_bytes=16 << 20, memcheck=True)
    kaas.init(ray=False, name="outcomes-memcheck", config=kaas.Config(devices=(device,)))
    try:
        return kaas.register(task, constants=given).call().result()
    finally:
        kaas.shutdown()


try:
    run(sys.argv[1])
except kaas.KaasError as error:
    print(error)
else:
    print("nothing is wrong")
"""


MODULE_LINES = PROGRAM.split("'''")[1].splitlines()


def report(case: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, case],
        cwd=ROOT,
        env={**os.environ, MEMCHECK_VARIABLE: "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("case", "name", "nbytes"),
    [
        ("256", "x", 1024),  # the next buffer would begin right behind it
        ("temporary", "first", 1024),  # another one would be there later
        ("table", "x", 1024),  # only a table holds its address
        ("constant", "weights", 800),  # it lies in the cache, in memory of its own
    ],
)
def test_one_element_too_many_names_the_buffer_that_is_read(case: str, name: str, nbytes: int) -> None:
    told = report(case)
    assert " reads 4 bytes of 0x" in told
    assert f", 0 bytes behind the end of the nearest buffer ({name}: {nbytes} bytes at " in told


def test_the_line_and_the_function_of_the_source_are_reported() -> None:
    ptx = 1 + next(n for n, line in enumerate(MODULE_LINES) if "ld.global.f32 %f1, [%rd4];" in line)
    told = report("200")
    assert f"kernel copy: copy.cu:5 (PTX line {ptx}): thread (200, 0, 0)" in told
    assert "0 bytes behind the end of the nearest buffer (x: 800 bytes at " in told


def test_a_kernel_without_lines_of_a_source_has_those_of_its_ptx() -> None:
    assert "kernel copy_first: PTX line " in report("table")


def test_a_correct_access_is_not_reported() -> None:
    assert report("none") == "nothing is wrong\n"
