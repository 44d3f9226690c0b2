"""Atomic operations of every type in every space, many lanes at the same places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER, Array

ATOMICS: dict[str, Callable[[int, int], int]] = {
    "add": lambda old, b: old + b,
    "min": min,
    "max": max,
    "and": lambda old, b: old & b,
    "or": lambda old, b: old | b,
    "xor": lambda old, b: old ^ b,
    "exch": lambda _, b: b,
    "inc": lambda old, b: 0 if old >= b else old + 1,
    "dec": lambda old, b: b if old == 0 or old > b else old - 1,
}
ATOMIC_TYPES = {
    "add": ("u32", "s32", "u64", "s64", "f32", "f64"), "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"), "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
    "exch": ("b32", "b64"), "inc": ("u32",), "dec": ("u32",),
}  # fmt: skip


def atomics_kernel(name: str, kind: str, how: str, space: str) -> str:
    """Four cells, each updated by eight lanes of a warp; old values where there are any."""
    bits, size = kind[1:], int(kind[1:]) // 8
    register = kind if kind[0] == "f" else f"b{bits}"
    orders = {"global": ".relaxed.gpu.global", "shared": ".acq_rel.cta.shared", "generic": ".release.sys"}
    opcode = f"{how}{orders[space]}.{name}.{kind}"
    line = f"atom{opcode[4:]} %o, [%c], %x;" if how == "atom" else f"red{opcode[3:]} [%c], %x; mov.b{bits} %o, %x;"
    fetch, give_back = "mov.u64 %c, %g;", ""
    if space == "shared":
        fetch = f"mov.u64 %p, s; add.u64 %c, %c, %p; ld.global.{register} %o, [%g]; st.shared.{register} [%c], %o;"
        give_back = f"bar.sync 0; ld.shared.{register} %o, [%c]; st.global.{register} [%g], %o;"
    return f"""{HEADER}.visible .entry k(.param .u64 cells, .param .u64 x, .param .u64 old) {{
.shared .align 8 .b8 s[32];
.reg .b64 %p, %w, %c, %g; .reg .b32 %t, %i; .reg .{register} %x, %o;
mov.u32 %t, %tid.x;
mul.wide.u32 %w, %t, {size};
ld.param.u64 %p, [x]; add.u64 %p, %p, %w;
ld.global.{register} %x, [%p];
and.b32 %i, %t, 3; mul.wide.u32 %c, %i, {size};
ld.param.u64 %g, [cells]; add.u64 %g, %g, %c;
{fetch}
barrier.sync 0;
{line}
ld.param.u64 %p, [old]; add.u64 %p, %p, %w;
st.global.{register} [%p], %o;
{give_back}
ret;
}}"""


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize("how", ["atom", "red"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(gpu: Any, name: str, how: str, space: str) -> None:
    """Any order of the lanes would do; here they go in their own, so that floating-point sums are known, too."""
    if name == "exch" and how == "red":
        how = "atom"
    for kind in ATOMIC_TYPES[name]:
        dtype = {"u": "u", "s": "i", "b": "u", "f": "f"}[kind[0]] + str(int(kind[1:]) // 8)
        chance = np.random.default_rng(5)
        x: Array = chance.integers(-100, 100, 32).astype(dtype)
        if kind[0] == "f":
            x = (x / 7).astype(dtype)
        elif name in ("inc", "dec"):
            x = chance.integers(0, 6, 32).astype(dtype)
        cells = np.array([3, 1, 0, 5], dtype)
        old, expected, now = np.zeros(32, dtype), np.zeros(32, dtype), cells.copy()
        for lane in range(32):
            expected[lane] = now[lane & 3]
            with np.errstate(over="ignore"):
                now[lane & 3] = ATOMICS[name](now[lane & 3], x[lane])
        gpu.run(atomics_kernel(name, kind, how, space), "k", 1, 32, cells, x, old)
        np.testing.assert_array_equal(cells, now)
        np.testing.assert_array_equal(old, expected if how == "atom" else x)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap(gpu: Any, bits: int) -> None:
    """Each lane waits for its number and puts the next one: all have their turn."""
    text = f"""{HEADER}.visible .entry k(.param .u64 cell, .param .u64 old) {{
.reg .b64 %p, %w; .reg .b32 %t; .reg .b{bits} %x, %y, %o;
mov.u32 %t, %tid.x;
cvt.u{bits}.u32 %x, %t;
add.u{bits} %y, %x, 1;
ld.param.u64 %p, [cell];
atom.acq_rel.gpu.global.cas.b{bits} %o, [%p], %x, %y;
ld.param.u64 %p, [old];
mul.wide.u32 %w, %t, {bits // 8}; add.u64 %p, %p, %w;
st.global.b{bits} [%p], %o;
ret;
}}"""
    cell, old = np.zeros(1, f"u{bits // 8}"), np.zeros(96, f"u{bits // 8}")
    gpu.run(text, "k", 1, 96, cell, old)
    assert cell[0] == 96
    np.testing.assert_array_equal(old, np.arange(96))
