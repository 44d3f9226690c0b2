"""Text that uses a register again for another value gets the same accesses as text that does not."""

from __future__ import annotations

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
