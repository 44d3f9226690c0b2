"""Text that uses a register again for another value gets the same accesses as text that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softgpu import examination, target
from softgpu.codegen import kernel as codegen
from softgpu.tests.compiler.harness import HEADER

BEGIN = """.visible .entry k(.param .u64 a, .param .u64 b) {
.reg .b32 %r<4>; .reg .b64 %d<6>; .reg .f32 %f<4>; .reg .pred %p;
mov.u32 %r1, %tid.x; mul.wide.u32 %d4, %r1, 4;
"""
SEPARATE = "ld.param.u64 %d1, [a]; add.s64 %d2, %d1, %d4; ld.global.f32 %f1, [%d2];"
AGAIN = "ld.param.u64 %d1, [a]; add.s64 %d1, %d1, %d4; ld.global.f32 %f1, [%d1];"
FREED = "ld.param.u64 %d1, [a]; add.s64 %d2, %d1, %d4; ld.global.f32 %f1, [%d2]; ld.global.u64 %d2, [%d1];"
VECTOR = "ld.param.u64 %d1, [a]; ld.global.v2.u64 {%d1, %d2}, [%d1]; mov.u64 %d1, %d4; add.s64 %d1, %d1, 0;"
END = "ld.param.u64 %d3, [b]; add.s64 %d3, %d3, %d4; st.global.f32 [%d3], %f1; ret; }"


def gathers(body: str) -> int:
    """Return the number of accesses that go lane by lane."""
    _, kernels = examination.examine(HEADER + BEGIN + body + END)
    text = codegen.generate(kernels["k"], (32, 1, 1), target.host()).text
    return sum("call void @sg_rt_gather" in line or "call void @sg_rt_scatter" in line for line in text.splitlines())


@pytest.mark.parametrize("body", [SEPARATE, AGAIN, FREED, VECTOR])
def test_no_access_of_consecutive_lanes_goes_lane_by_lane(body: str) -> None:
    assert gathers(body) == gathers(SEPARATE)


def test_a_guarded_value_keeps_its_name() -> None:
    assert gathers(AGAIN + "setp.lt.u32 %p, %r1, 7; @%p add.s64 %d4, %d4, 4;") > gathers(SEPARATE)


PARTS = """.visible .entry k(.param .u64 out) {
.reg .b32 %r<12>; .reg .b64 %d<9>; .reg .b16 %h<5>;
mov.u32 %r7, %tid.x; cvt.u64.u32 %d7, %r7; mov.u32 %r8, 9;
"""
STORED = """
ld.param.u64 %d8, [out]; mad.lo.u64 %d8, %d7, 8, %d8; st.global.v2.u32 [%d8], {%r1, %r2}; ret; }"""
TAKEN_APART = [
    ("mov.u64 %d1, 5; mov.b64 {%r3, %r4}, %d1; shl.b32 %r1, %r7, %r4; mul.lo.u32 %r2, %r7, %r4;", lambda t: (t, 0)),
    ("mov.u64 %d1, 5; mov.b64 {%r3, %r4}, %d1; mov.u64 %d1, %d7; mov.b64 {%r1, %r2}, %d1;", lambda t: (t, 0)),
    (
        "mov.u64 %d1, 0x500000003; mov.b64 {%r3, %r4}, %d1; add.u32 %r1, %r7, %r4; mov.u32 %r2, %r3;",
        lambda t: (t + 5, 3),
    ),
    ("mul.wide.u32 %d1, %r7, 0x40000000; mov.b64 {%r1, %r2}, %d1;", lambda t: (t << 30 & 0xFFFFFFFF, t >> 2)),
    (
        "mov.b64 %d1, {%r7, %r8}; mov.u64 %d2, 0; cvt.u64.u32 %d1, %r7; mov.b64 {%r1, %r2}, %d1;"
        "add.s64 %d1, %d1, %d2; mov.b64 %d1, {%r1, %r2}; mov.b64 {%r2, %r1}, %d1;",
        lambda t: (0, t),
    ),
    ("mov.u32 %r3, 0x70002; mov.b32 {%h1, %h2}, %r3; cvt.u32.u16 %r1, %h1; cvt.u32.u16 %r2, %h2;", lambda _: (2, 7)),
]


@pytest.mark.parametrize(("body", "expected"), TAKEN_APART, ids=range(len(TAKEN_APART)))
def test_the_parts_of_a_register_are_its_parts(gpu: Any, body: str, expected: Callable[[int], tuple[int, int]]) -> None:
    out = np.zeros((32, 2), np.uint32)
    gpu.run(HEADER + PARTS + body + STORED, "k", 32, 32, out)
    np.testing.assert_array_equal(out, [expected(thread) for thread in range(32)])


@pytest.mark.parametrize("step", ["mul.lo.u32 %r1, %r1, %r1;", "mad.lo.u32 %r1, %r1, 1664525, 1013904223;"])
def test_a_long_chain_of_constants_stays_small(gpu: Any, step: str) -> None:
    value = 3
    for _ in range(1000):
        value = (value * value if step.startswith("mul") else value * 1664525 + 1013904223) & 0xFFFFFFFF
    out = np.zeros((32, 2), np.uint32)
    gpu.run(HEADER + PARTS + "mov.u32 %r1, 3; mov.u32 %r2, 0;" + 1000 * step + STORED, "k", 32, 32, out)
    np.testing.assert_array_equal(out, 32 * [[value, 0]])
