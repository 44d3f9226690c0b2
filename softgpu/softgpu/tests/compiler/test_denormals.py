"""`.ftz`: denormal operands and results become zeros of their sign, bit for bit; without it they stay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.exact import FORMATS, in_turn, operation
from softgpu.tests.compiler.harness import Array, run_all
from softgpu.tests.compiler.test_rounding import same_numbers

SCALARS = pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
OPERATIONS = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "rcp": 1, "sqrt": 1}


def small_numbers(kind: str, seed: int, count: int = 128) -> Array:
    """Numbers around the least normal one, with zeros, ones and the largest."""
    form, chance = FORMATS[kind], np.random.default_rng(seed)
    least = 1 << form.fraction_bits
    bits = chance.integers(0, 3 * least, count).astype(form.bits)
    large = np.array([1, 0.5, 3, form.dtype(2) ** (form.bias - 1), np.inf, np.nan], form.dtype).view(form.bits)
    awkward = np.array([0, 1, 2, least - 1, least, least + 1, 2 * least], form.bits)
    bits[:96] = chance.choice(np.concatenate([large, awkward]), 96)
    bits |= chance.integers(0, 2, count).astype(form.bits) << form.bits(8 * bits.itemsize - 1)
    return bits.view(form.dtype)


def flushed(a: Array) -> Any:
    small = np.abs(a) < np.finfo(a.dtype).tiny
    return np.where(small, np.copysign(a.dtype.type(0), a), a)


def flushing(compute: Callable[..., Array]) -> Callable[..., Any]:
    return lambda *args: flushed(compute(*(flushed(a) for a in args)))


def check(gpu: Any, kind: str, lines: list[tuple[str, str, Any]], columns: list[Array], uniform: bool) -> None:
    results = run_all(gpu, [(line, to) for line, to, _ in lines], (kind,) * len(columns), columns, uniform)
    for (line, to, expected), got in zip(lines, results, strict=True):
        if to in FORMATS:
            same_numbers(to, got, expected, line)
        else:
            np.testing.assert_array_equal(got, expected, line)


@SCALARS
def test_arithmetic(gpu: Any, uniform: bool) -> None:
    columns = [small_numbers("f32", seed) for seed in (1, 2, 3)]
    lines = []
    for name, count in OPERATIONS.items():
        operands = ", ".join(f"{{{letter}}}" for letter in "abc"[:count])
        for mode in ("rn", "rz", "rm", "rp"):
            exact = operation("f32", name, mode)
            compute = flushing(lambda *args, exact=exact: in_turn("f32", exact, *args))
            lines.append((f"{name}.{mode}.ftz.f32 {{d}}, {operands};", "f32", compute(*columns[:count])))
        kept = in_turn("f32", operation("f32", name, "rn"), *columns[:count])
        lines.append((f"{name}.rn.f32 {{d}}, {operands};", "f32", kept))
    for form in ("approx", "full"):
        lines.append((f"div.{form}.ftz.f32 {{d}}, {{a}}, {{b}};", "f32",
            flushing(lambda a, b: in_turn("f32", operation("f32", "div", "rn"), a, b))(*columns[:2])))  # fmt: skip
    check(gpu, "f32", lines, columns, uniform)


@SCALARS
def test_a_result_that_is_an_operand(gpu: Any, uniform: bool) -> None:
    """Between two instructions it goes through a register without a type, too."""
    a, b = (small_numbers("f32", seed) for seed in (4, 5))
    with np.errstate(all="ignore"):
        product = flushed(flushed(a) * flushed(b))
        flush = flushed(product + product)
    lines = [
        ("mul.ftz.f32 {d}, {a}, {b};\nadd.ftz.f32 {d}, {d}, {d};", "f32", flush),
        (".reg .b32 %product;\nmul.ftz.f32 %product, {a}, {b};\nadd.ftz.f32 {d}, %product, %product;", "f32", flush),
    ]
    check(gpu, "f32", lines, [a, b], uniform)


@SCALARS
def test_halves(gpu: Any, uniform: bool) -> None:
    columns = [small_numbers("f16", seed) for seed in (6, 7, 8)]
    lines = []
    for name, count in (("add", 2), ("sub", 2), ("mul", 2), ("fma", 3)):
        operands = ", ".join(f"{{{letter}}}" for letter in "abc"[:count])
        exact = operation("f16", name, "rn")
        compute = flushing(lambda *args, exact=exact: in_turn("f16", exact, *args))
        lines.append((f"{name}.rn.ftz.f16 {{d}}, {operands};", "f16", compute(*columns[:count])))
    lines += [
        ("neg.ftz.f16 {d}, {a};", "f16", -flushed(columns[0])),
        ("abs.ftz.f16 {d}, {a};", "f16", np.abs(flushed(columns[0]))),
    ]
    check(gpu, "f16", lines, columns, uniform)
    pairs = [(line.replace("f16 ", "f16x2 "), "f16x2") for line, _, _ in lines]
    results = run_all(gpu, pairs, ("f16x2",) * 3, [column.view(np.uint32) for column in columns], uniform)
    for (line, _), got, (_, _, expected) in zip(pairs, results, lines, strict=True):
        same_numbers("f16", got.view(np.uint16), expected, line)


def lesser(a: Array, b: Array, sign: int) -> Any:
    """min, or max for sign -1: numbers before NaN, and -0 below +0."""
    a, b = sign * a, sign * b
    first = (a < b) | ((a == b) & np.signbit(a))
    return sign * np.where(np.isnan(a), b, np.where(np.isnan(b) | first, a, b))


@SCALARS
def test_instructions_that_do_not_round_flush_denormals(gpu: Any, uniform: bool) -> None:
    columns = [small_numbers("f32", seed) for seed in (9, 10, 11)]
    a, b, c = (flushed(column) for column in columns)
    answer = np.where(a > b, np.uint32(0xFFFFFFFF), np.uint32(0))
    lines: list[tuple[str, str, Any]] = [
        ("neg.ftz.f32 {d}, {a};", "f32", -a),
        ("abs.ftz.f32 {d}, {a};", "f32", np.abs(a)),
        ("min.ftz.f32 {d}, {a}, {b};", "f32", lesser(a, b, 1)),
        ("max.ftz.f32 {d}, {a}, {b};", "f32", lesser(a, b, -1)),
        ("setp.eq.ftz.f32 {d}, {a}, {b};", "pred", a == b),
        ("setp.gtu.ftz.f32 {d}, {a}, {b};", "pred", ~(a <= b)),
        ("set.gt.ftz.u32.f32 {d}, {a}, {b};", "u32", answer),
        ("set.gt.u32.f32 {d}, {a}, {b};", "u32", np.where(columns[0] > columns[1], np.uint32(0xFFFFFFFF), 0)),
        # of these only the number that decides is flushed
        ("slct.ftz.f32.f32 {d}, {a}, {b}, {c};", "f32", np.where(c >= 0, columns[0], columns[1])),
        ("slct.f32.f32 {d}, {a}, {b}, {c};", "f32", np.where(columns[2] >= 0, columns[0], columns[1])),
    ]
    check(gpu, "f32", lines, columns, uniform)


@SCALARS
def test_functions(gpu: Any, uniform: bool) -> None:
    """Inputs with exact results: denormals, and powers of two."""
    bits = np.random.default_rng(12).integers(0, 1 << 23, 128).astype(np.uint32) | (
        np.arange(128, dtype=np.uint32) << 31
    )
    column = bits.astype(np.uint32).view(np.float32)
    zeros, without_end = np.copysign(np.float32(0), column), np.copysign(np.float32(np.inf), column)
    expected = {
        "sin": zeros, "sqrt": zeros, "rcp": without_end, "rsqrt": without_end,
        "lg2": np.full(128, -np.inf, np.float32), "cos": np.ones(128, np.float32), "ex2": np.ones(128, np.float32),
    }  # fmt: skip
    lines = [(f"{name}.approx.ftz.f32 {{d}}, {{a}};", "f32", wanted) for name, wanted in expected.items()]
    check(gpu, "f32", lines, [column], uniform)
    exponents = np.repeat(np.array([-149, -140, -127, -126, -1, 0, 3, 127], np.float32), 16)
    powers = np.ldexp(np.float32(1), exponents.astype(int))
    lines = [
        ("ex2.approx.ftz.f32 {d}, {a};", "f32", flushed(powers)),
        ("ex2.approx.f32 {d}, {a};", "f32", powers),
    ]
    check(gpu, "f32", lines, [exponents], uniform)


@SCALARS
def test_conversions(gpu: Any, uniform: bool) -> None:
    column = small_numbers("f32", 13)
    a = flushed(column)
    finite = np.where(np.isfinite(a), a, 0).astype(np.float64)
    whole = np.clip(np.ceil(finite), -(2.0**31), 2.0**31 - 1)
    whole = np.where(np.isinf(a), np.where(a > 0, 2.0**31 - 1, -(2.0**31)), whole)
    lines: list[tuple[str, str, Any]] = [
        ("cvt.rpi.ftz.f32.f32 {d}, {a};", "f32", np.ceil(a)),
        ("cvt.rpi.ftz.s32.f32 {d}, {a};", "s32", whole.astype(np.int32)),
        ("cvt.ftz.f64.f32 {d}, {a};", "f64", a.astype(np.float64)),
        ("cvt.rn.ftz.f32.s32 {d}, 3;", "f32", np.full(128, 3, np.float32)),
    ]
    check(gpu, "f32", lines, [column], uniform)
    doubles = np.array([1e-40, -1e-40, 2.0**-126, -(2.0**-127), 0.1, math.inf, 1e-320, -0.0], np.float64).repeat(16)
    narrow = doubles.astype(np.float32)
    lines = [
        ("cvt.rn.ftz.f32.f64 {d}, {a};", "f32", flushed(narrow)),
        ("cvt.rn.f32.f64 {d}, {a};", "f32", narrow),
    ]
    check(gpu, "f64", lines, [doubles], uniform)


ATOMIC = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u64 values) {
.reg .u64 %o, %v, %w; .reg .f32 %a, %b, %x, %u; .shared .align 4 .b8 cell[4];
ld.param.u64 %o, [out]; ld.param.u64 %v, [values]; ld.global.f32 %a, [%v]; ld.global.f32 %b, [%v + 4];
st.global.f32 [%o], %a; atom.global.add.f32 %x, [%o], %b;
st.global.f32 [%o + 4], %a; red.global.add.f32 [%o + 4], %b;
st.global.f32 [%o + 8], %a; red.add.f32 [%o + 8], %b;
st.shared.f32 [cell], %a; atom.shared.add.f32 %u, [cell], %b; ld.shared.f32 %u, [cell]; st.global.f32 [%o + 12], %u;
mov.u64 %w, cell; cvta.shared.u64 %w, %w;
st.shared.f32 [cell], %a; atom.add.f32 %u, [%w], %b; ld.shared.f32 %u, [cell]; st.global.f32 [%o + 16], %u;
st.global.f32 [%o + 20], %x; ret; }
"""


@pytest.mark.parametrize(
    ("a", "b"), [(1e-40, 1e-40), (-1e-40, 0.0), (-1e-40, -0.0), (1e-40, 2.0**-126), (1.5 * 2.0**-126, -(2.0**-126))]
)
def test_atomic_sums(gpu: Any, a: float, b: float) -> None:
    """In global memory they flush, in shared memory they do not, also by generic addresses."""
    values, out = np.array([a, b], np.float32), np.zeros(6, np.float32)
    gpu.run(ATOMIC, "k", 1, 1, out, values)
    kept, (x, y) = values[0] + values[1], flushed(values)
    expected = np.array([*[flushed(np.array(x + y))] * 3, kept, kept, values[0]], np.float32)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))
