"""Local memory whose addresses a program keeps in 32 bits, as LLVM does where it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER

BACK = f"""{HEADER}
.visible .entry k(.param .u64 x, .param .u64 out)
{{
 .local .align 4 .b8 unused[16];
 .local .align 4 .b8 room[32];
 .reg .b32 %room, %at, %i, %v, %w, %r;
 .reg .b64 %x, %out, %wide;
 mov.u32 %i, %tid.x;
 mul.wide.u32 %wide, %i, 4;
 ld.param.u64 %x, [x];
 ld.param.u64 %out, [out];
 add.u64 %x, %x, %wide;
 add.u64 %out, %out, %wide;
 ld.global.u32 %v, [%x];
 mov.b32 %room, room;
 st.local.b32 [%room+16], 7;
 st.local.b32 [%room+28], %i;
 shl.b32 %at, %v, 2;
 sub.u32 %at, %room, %at;
 st.local.b32 [%at+24], 1000;
 cvt.u64.u32 %wide, %room;
 cvta.local.u64 %wide, %wide;
 ld.u32 %r, [%wide+28];
 ld.local.b32 %w, [%room+16];
 add.u32 %r, %r, %w;
 st.global.u32 [%out], %r;
 ret;
}}
"""


def test_addresses_of_32_bits(gpu: Any) -> None:
    """Of a lane's own memory at a place known, at one in the data, and made generic."""
    x = np.random.RandomState(1).randint(0, 6, 96).astype(np.int32)
    x[:32], out = 2, np.zeros(96, np.int32)
    gpu.run(BACK, "k", 1, 96, x, out)
    np.testing.assert_array_equal(out, np.arange(96) + np.where(x == 2, 1000, 7))


@pytest.mark.parametrize("align", [128, 256, 1024])
def test_every_lane_has_the_alignment_of_the_variable(gpu: Any, align: int) -> None:
    text = f"""{HEADER}
.visible .entry k(.param .u64 out)
{{
 .local .align 4 .b8 first[20];
 .local .align {align} .b8 room[48];
 .reg .b32 %i;
 .reg .b64 %out, %wide, %room;
 mov.u32 %i, %tid.x;
 mul.wide.u32 %wide, %i, 8;
 ld.param.u64 %out, [out];
 add.u64 %out, %out, %wide;
 mov.u64 %room, room;
 cvta.local.u64 %room, %room;
 and.b64 %room, %room, {align - 1};
 st.global.u64 [%out], %room;
 ret;
}}
"""
    out = np.full(96, 1, np.uint64)
    gpu.run(text, "k", 1, 96, out)
    assert not out.any()
