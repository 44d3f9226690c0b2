"""Loads and stores of lanes that lie close together, by every pattern, type and mask, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.softgpu.harness import HEADER

SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}
ELEMENTS = 256  # of shared memory and of each array


def ptx(kind: str, count: int, rows: int, stride: int, shift: int, guarded: bool) -> str:
    """Thread t copies `count` elements from place(t) of the first array to place(t) of the second, by shared memory;
    place(t) = ((t >> shift) % rows) * stride elements."""
    size = SIZES[kind]
    register = "b16" if kind == "b8" else kind
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"%x{i}" for i in range(count))
    names = f"{{{names}}}" if count > 1 else names
    guard = "@%p " if guarded else ""
    return (
        HEADER
        + f"""
.visible .entry k(.param .u64 from, .param .u64 to, .param .u32 bits) {{
.reg .b32 %t, %o, %m; .reg .b64 %a, %b, %w; .reg .pred %p; .reg .{register} %x<4>;
.shared .align 16 .b8 tile[{ELEMENTS * size}];
mov.u32 %t, %tid.x; ld.param.u32 %m, [bits]; shr.u32 %m, %m, %t; and.b32 %m, %m, 1; setp.ne.u32 %p, %m, 0;
shr.u32 %o, %t, {shift}; and.b32 %o, %o, {rows - 1}; mul.lo.u32 %o, %o, {stride * size};
ld.param.u64 %a, [from]; ld.param.u64 %b, [to]; cvt.u64.u32 %w, %o; add.s64 %a, %a, %w; add.s64 %b, %b, %w;
{guard}ld.global{vector}.{kind} {names}, [%a];
mov.u32 %m, tile; add.u32 %o, %o, %m;
{guard}st.shared{vector}.{kind} [%o], {names};
{guard}ld.shared{vector}.{kind} {names}, [%o];
{guard}st.global{vector}.{kind} [%b], {names};
ret;
}}"""
    )


@pytest.mark.parametrize("guarded", [False, True])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(SIZES)),
    count=st.sampled_from([1, 2, 4]),
    rows=st.sampled_from([2, 4, 8, 16, 32]),
    spread=st.integers(1, 3),
    shift=st.integers(0, 3),
    bits=st.integers(0, (1 << 32) - 1),
)
def test_copies(gpu: Any, guarded: bool, kind: str, count: int, rows: int, spread: int, shift: int, bits: int) -> None:
    if kind == "b64" and count == 4:
        count = 2
    stride = count * spread if rows * count * spread <= ELEMENTS else count
    source = np.arange(1, ELEMENTS + 1).astype(f"u{SIZES[kind]}")
    out, expected = np.zeros_like(source), np.zeros_like(source)
    for thread in range(32):
        if guarded and not bits >> thread & 1:
            continue
        place = (thread >> shift) % rows * stride
        expected[place : place + count] = source[place : place + count]
    gpu.run(ptx(kind, count, rows, stride, shift, guarded), "k", 1, 32, source, out, np.uint32(bits))
    np.testing.assert_array_equal(out, expected)
