"""Loads and stores of lanes that lie close together, by every pattern, type and mask, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from softgpu.tests.compiler.harness import HEADER

SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}
ELEMENTS = 256  # of shared memory and of each array


def ptx(kind: str, count: int, rows: int, stride: int, shift: int, inner: int, who: str) -> str:
    """Thread t copies `count` elements from place(t) of the first array to place(t) of the second, by shared memory;
    place(t) = ((t >> shift) % rows) * stride + (t % 2**shift) * inner elements.

    Each register is written once: the compiler knows one shape of it."""
    size = SIZES[kind]
    register = "b16" if kind == "b8" else kind
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"%x{i}" for i in range(count))
    names = f"{{{names}}}" if count > 1 else names
    guard = "@%p " if who == "guarded" else ""
    skip = "@!%p bra end;" if who == "branched" else ""
    return (
        HEADER
        + f"""
.visible .entry k(.param .u64 from, .param .u64 to, .param .u32 bits) {{
.reg .b32 %t, %o, %m, %n, %u<5>; .reg .b64 %a, %b, %c, %d, %w; .reg .pred %p; .reg .{register} %x<4>;
.shared .align 16 .b8 tile[{ELEMENTS * size}];
mov.u32 %t, %tid.x; ld.param.u32 %m, [bits]; shr.u32 %m, %m, %t; and.b32 %m, %m, 1; setp.ne.u32 %p, %m, 0;
shr.u32 %u0, %t, {shift}; and.b32 %u1, %u0, {rows - 1}; mul.lo.u32 %u2, %u1, {stride * size};
and.b32 %u3, %t, {(1 << shift) - 1}; mad.lo.u32 %o, %u3, {inner * size}, %u2;
ld.param.u64 %a, [from]; ld.param.u64 %b, [to]; cvt.u64.u32 %w, %o; add.s64 %c, %a, %w; add.s64 %d, %b, %w;
{skip}
{guard}ld.global{vector}.{kind} {names}, [%c];
mov.u32 %n, tile; add.u32 %u4, %o, %n;
{guard}st.shared{vector}.{kind} [%u4], {names};
{guard}ld.shared{vector}.{kind} {names}, [%u4];
{guard}st.global{vector}.{kind} [%d], {names};
end: ret;
}}"""
    )


def copied(
    source: np.ndarray, count: int, rows: int, stride: int, shift: int, inner: int, who: str, bits: int
) -> np.ndarray:
    """Return the result of the kernel of `ptx`, as NumPy computes it."""
    expected = np.zeros_like(source)
    for thread in range(32):
        if who != "all" and not bits >> thread & 1:
            continue
        place = (thread >> shift) % rows * stride + thread % (1 << shift) * inner
        expected[place : place + count] = source[place : place + count]
    return expected


@pytest.mark.parametrize("who", ["all", pytest.param("guarded", marks=pytest.mark.slow), "branched"])
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(SIZES)),
    count=st.sampled_from([1, 2, 4]),
    rows=st.sampled_from([2, 4, 8, 16, 32]),
    spread=st.integers(1, 3),
    shift=st.integers(0, 3),
    together=st.booleans(),
    bits=st.one_of(st.just((1 << 32) - 1), st.integers(0, (1 << 32) - 1)),
)
@example(kind="b64", count=1, rows=8, spread=2, shift=2, together=True, bits=0xF0F0F5A5)
def test_copies(
    gpu: Any, who: str, kind: str, count: int, rows: int, spread: int, shift: int, together: bool, bits: int
) -> None:
    """together: threads that share a place otherwise lie side by side."""
    if kind == "b64" and count == 4:
        count = 2
    inner = count if together else 0
    row = max(count, inner << shift)
    stride = row * spread
    rows = min(rows, 1 << (ELEMENTS // stride).bit_length() - 1)
    source = np.arange(1, ELEMENTS + 1).astype(f"u{SIZES[kind]}")
    out, expected = np.zeros_like(source), copied(source, count, rows, stride, shift, inner, who, bits)
    gpu.run(ptx(kind, count, rows, stride, shift, inner, who), "k", 1, 32, source, out, np.uint32(bits))
    np.testing.assert_array_equal(out, expected)
