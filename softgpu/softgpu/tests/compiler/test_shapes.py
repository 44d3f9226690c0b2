"""Random arithmetic on thread indices, whose values the compiler keeps as bases and steps, against Python integers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softgpu.analysis.shapes import (
    VARYING,
    Affine,
    add,
    bit_and,
    constant,
    is_uniform,
    ramp,
    shift_right,
    thread_index,
)
from softgpu.tests.compiler.harness import HEADER

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def s32(value: int) -> int:
    return (value & M32) - ((value & 0x80000000) << 1)


@dataclass(frozen=True)
class Kind:
    """An instruction: its text, the widths of result and sources, which source must be a number, its meaning."""

    text: str
    result: int
    sources: tuple[int, ...]
    meaning: Callable[..., int]


KINDS = (
    Kind("add.s32", 32, (32, 32), lambda a, b: a + b),
    Kind("sub.u32", 32, (32, 32), lambda a, b: a - b),
    Kind("mul.lo.s32", 32, (32, 32), lambda a, b: a * b),
    Kind("mad.lo.u32", 32, (32, 32, 32), lambda a, b, c: a * b + c),
    Kind("and.b32", 32, (32, 32), lambda a, b: a & b),
    Kind("or.b32", 32, (32, 32), lambda a, b: a | b),
    Kind("xor.b32", 32, (32, 32), lambda a, b: a ^ b),
    Kind("shl.b32", 32, (32, 32), lambda a, b: a << b if b < 32 else 0),
    Kind("shr.u32", 32, (32, 32), lambda a, b: a >> min(b, 32)),
    Kind("shr.s32", 32, (32, 32), lambda a, b: s32(a) >> min(b, 31)),
    Kind("neg.s32", 32, (32,), lambda a: -a),
    Kind("mov.u32", 32, (32,), lambda a: a),
    Kind("max.s32", 32, (32, 32), lambda a, b: max(s32(a), s32(b))),
    Kind("rem.u32", 32, (32, 32), lambda a, b: a % b if b else a + 1 * 0 - (M32 * b)),
    Kind("cvt.u32.u64", 32, (64,), lambda a: a),
    Kind("cvt.s64.s32", 64, (32,), s32),
    Kind("cvt.u64.u32", 64, (32,), lambda a: a),
    Kind("mul.wide.s32", 64, (32, 32), lambda a, b: s32(a) * s32(b)),
    Kind("mul.wide.u32", 64, (32, 32), lambda a, b: a * b),
    Kind("mad.wide.s32", 64, (32, 32, 64), lambda a, b, c: s32(a) * s32(b) + c),
    Kind("mad.wide.u32", 64, (32, 32, 64), lambda a, b, c: a * b + c),
    Kind("add.s64", 64, (64, 64), lambda a, b: a + b),
    Kind("sub.s64", 64, (64, 64), lambda a, b: a - b),
    Kind("mul.lo.s64", 64, (64, 64), lambda a, b: a * b),
    Kind("mad.lo.s64", 64, (64, 64, 64), lambda a, b, c: a * b + c),
    Kind("shl.b64", 64, (64, 32), lambda a, b: a << b if b < 64 else 0),
    Kind("mov.b64", 64, (64,), lambda a: a),
    Kind("and.b64", 64, (64, 64), lambda a, b: a & b),
)
NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 32, 33, 48, 100, 255, 256, -1, -4, -8, -16, -32, 0x7FFFFFFF]


@dataclass(frozen=True)
class Op:
    """Writes a register of its own. sources: which of the registers of that width there are by then, counted from the
    last; numbers: in place of a register."""

    kind: Kind
    sources: tuple[int, ...]
    numbers: tuple[int | None, ...]


STARTS = 6


@st.composite
def programs(draw: st.DrawFn) -> tuple[Op, ...]:
    def op() -> Op:
        kind = draw(st.sampled_from(KINDS))
        numbers: list[int | None] = [draw(st.none() | st.sampled_from(NUMBERS)) for _ in kind.sources]
        if len(numbers) == 1:
            numbers = [None]
        if kind.text.startswith("rem"):
            numbers[1] = draw(st.sampled_from([1, 3, 8, 16, 33]))
        return Op(kind, tuple(draw(st.integers(0, 7)) for _ in kind.sources), tuple(numbers))

    return tuple(op() for _ in range(draw(st.integers(1, 14))))


def interpret(program: tuple[Op, ...], narrow: list[int]) -> list[int]:
    wide = [narrow[2]]
    for op in program:
        values = []
        for width, source, number in zip(op.kind.sources, op.sources, op.numbers, strict=True):
            there = narrow if width == 32 else wide
            values.append(there[-1 - source % len(there)] if number is None else number & (1 << width) - 1)
        result = op.kind.meaning(*values)
        if op.kind.result == 32:
            narrow.append(result & M32)
        else:
            wide.append(result & M64)
    return [*narrow, *wide]


def ptx(program: tuple[Op, ...]) -> str:
    size = 8 * (STARTS + 1 + len(program))
    lines = [".visible .entry k(.param .u64 out)", "{", ".reg .b32 %r<30>, %t, %n, %u;", ".reg .b64 %q<30>, %a, %w;"]
    lines += ["mov.u32 %r0, %tid.x;", "mov.u32 %r1, %tid.y;", "mov.u32 %r2, %ctaid.x;", "mov.u32 %r3, %ntid.x;"]
    lines += ["mad.lo.s32 %r4, %r2, %r3, %r0;", "add.s32 %r5, %r0, 4294967280;", "cvt.u64.u32 %q0, %r2;"]
    counts = {32: STARTS, 64: 1}
    letters = {32: "r", 64: "q"}
    for op in program:
        sources = []
        for width, source, number in zip(op.kind.sources, op.sources, op.numbers, strict=True):
            place = counts[width] - 1 - source % counts[width]
            sources.append(f"%{letters[width]}{place}" if number is None else str(number))
        lines.append(f"{op.kind.text} %{letters[op.kind.result]}{counts[op.kind.result]}, {', '.join(sources)};")
        counts[op.kind.result] += 1
    lines += ["mov.u32 %t, %tid.y;", "mov.u32 %n, %ntid.x;", "mov.u32 %u, %tid.x;", "mad.lo.u32 %t, %t, %n, %u;"]
    lines += ["mov.u32 %u, %ntid.y;", "mul.lo.u32 %u, %u, %n;", "mov.u32 %n, %ctaid.x;", "mad.lo.u32 %t, %n, %u, %t;"]
    lines += ["ld.param.u64 %a, [out];", f"mad.wide.u32 %a, %t, {size}, %a;"]
    lines += [f"cvt.u64.u32 %w, %r{i};\nst.global.u64 [%a+{8 * i}], %w;" for i in range(counts[32])]
    lines += [f"st.global.u64 [%a+{8 * (counts[32] + i)}], %q{i};" for i in range(counts[64])]
    return HEADER + "\n".join([*lines, "ret;", "}"])


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)
@given(
    program=programs(), block=st.sampled_from([(32, 1), (64, 1), (16, 4), (8, 8), (48, 2), (24, 3), (4, 16), (1, 40)])
)
def test_random_arithmetic(gpu: Any, program: tuple[Op, ...], block: tuple[int, int]) -> None:
    x, y = block
    out = np.zeros((3, y, x, STARTS + 1 + len(program)), np.uint64)
    gpu.run(ptx(program), "k", 3, block, out)
    for b in range(3):
        for ty in range(y):
            for tx in range(x):
                start = [tx, ty, b, x, b * x + tx, (M32 - 15 + tx) & M32]
                assert out[b, ty, tx].tolist() == interpret(program, start), (b, ty, tx)


@pytest.mark.parametrize(
    ("axis", "block", "offsets"),
    [
        (0, (256, 1, 1), ramp(32, 1)),
        (0, (20, 1, 1), ramp(32, 1)),
        (0, (16, 16, 1), ramp(16, 1) * 2),
        (1, (16, 16, 1), (0,) * 16 + (1,) * 16),
        (1, (32, 8, 1), (0,) * 32),
        (2, (4, 4, 4), (0,) * 16 + (1,) * 16),
        (0, (8, 8, 8), ramp(8, 1) * 4),
        (0, (48, 2, 1), ramp(16, 1)),
        (1, (24, 3, 1), (0,) * 8),
        (1, (1, 64, 1), ramp(32, 1)),
    ],
)
def test_thread_indices(axis: int, block: tuple[int, int, int], offsets: tuple[int, ...]) -> None:
    shape = thread_index(axis, block)
    assert isinstance(shape, Affine)
    assert shape.offsets == offsets


def test_lane_and_warp_numbers_are_found_in_a_thread_index() -> None:
    tid = thread_index(0, (256, 1, 1))
    lane, warp = bit_and(tid, constant(31)), shift_right(tid, constant(5))
    assert isinstance(lane, Affine)
    assert lane.offsets == ramp(32, 1)
    assert is_uniform(warp)
    assert shift_right(tid, constant(31)) == constant(0)
    assert bit_and(add(tid, constant(1)), constant(31)) == VARYING
