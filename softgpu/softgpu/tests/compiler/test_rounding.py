"""Arithmetic and conversions in every format and direction of rounding, bit for bit, against fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.exact import FORMATS, in_turn, operation, rounded, whole
from softgpu.tests.compiler.harness import DTYPES, Array, run_all

SCALARS = pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3, "rcp": 1, "sqrt": 1}
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")


def numbers(kind: str, seed: int, count: int = 128) -> Array:
    """Numbers of every size, with awkward ones; for bf16 their bits."""
    form, chance = FORMATS[kind], np.random.default_rng(seed)
    bits = chance.integers(0, 1 << 63, count, np.uint64).astype(form.bits)
    near_one = (chance.standard_normal(count) * np.exp2(chance.integers(-3, 4, count))).astype(form.dtype)
    out = np.where(chance.random(count) < 0.4, near_one.view(form.bits), bits)
    simple = np.array([0, -0.0, 1, -1, 0.5, 2.5, -3.5, 100.25, np.inf, -np.inf, np.nan], form.dtype).view(form.bits)
    tiny = np.array([1, 2, form.infinity - 1, 1 << form.fraction_bits], form.bits)
    special = chance.permutation(np.concatenate([simple, tiny, tiny | form.bits(1 << (form.bits(0).nbytes * 8 - 1))]))
    out[: len(special)] = special
    out = out.astype(form.bits)
    return out if kind == "bf16" else out.view(form.dtype)


def as_format(kind: str, column: Array) -> Array:
    return column.view(FORMATS[kind].dtype)


def same_numbers(kind: str, got: Array, expected: Array, what: str) -> None:
    """Equal bits, but for which NaN it is."""
    found = as_format(kind, got)
    nan = np.isnan(expected.astype(np.float64))
    with np.errstate(invalid="ignore"):  # NaN in bfloat16
        assert (np.isnan(found.astype(np.float64)) == nan).all(), what
    bits = FORMATS[kind].bits
    wrong = np.nonzero((found.view(bits) != expected.view(bits)) & ~nan)[0]
    assert not len(wrong), (what, wrong[:3], found[wrong[:3]], expected[wrong[:3]])


@SCALARS
@pytest.mark.parametrize("kind", FORMATS)
def test_arithmetic(gpu: Any, kind: str, uniform: bool) -> None:
    columns = [numbers(kind, seed) for seed in (1, 2, 3)]
    lines, expected = [], []
    for name, count in ARITHMETIC.items():
        if kind in ("f16", "bf16") and name in ("div", "rcp", "sqrt"):
            continue
        for mode in ("rn",) if kind in ("f16", "bf16") else ("rn", "rz", "rm", "rp"):
            operands = ", ".join(f"{{{letter}}}" for letter in "abc"[:count])
            lines.append((f"{name}.{mode}.{kind} {{d}}, {operands};", kind))
            given = [as_format(kind, column) for column in columns[:count]]
            expected.append(in_turn(kind, operation(kind, name, mode), *given))
    results = run_all(gpu, lines, (kind,) * 3, columns, uniform)
    for (line, _), got, wanted in zip(lines, results, expected, strict=True):
        same_numbers(kind, got, wanted, line)


def between(value: int, to: str) -> int:
    limits: Any = np.iinfo(DTYPES[to])
    return max(int(limits.min), min(int(limits.max), value))


@SCALARS
@pytest.mark.parametrize("source", INTEGERS)
def test_from_integers(gpu: Any, source: str, uniform: bool) -> None:
    limits: Any = np.iinfo(DTYPES[source])
    chance = np.random.default_rng(4)
    column = chance.integers(limits.min, limits.max, 128, DTYPES[source], endpoint=True)
    column[:8] = [0, 1, 2, 3, limits.min, limits.max, limits.max - 1, limits.max // 2]
    column[8:64] >>= chance.integers(0, limits.bits, 56).astype(column.dtype)
    lines, expected = [], []
    for to in INTEGERS:
        for ending in ("", ".sat"):
            lines.append((f"cvt{ending}.{to}.{source} {{d}}, {{a}};", to))
            values = [between(int(x), to) if ending else int(x) for x in column]
            bits = 8 * np.dtype(DTYPES[to]).itemsize
            whole_numbers = [value & ((1 << bits) - 1) for value in values]
            expected.append(np.array(whole_numbers, np.uint64).astype(f"u{bits // 8}").view(DTYPES[to]))
    for to in ("f16", "f32", "f64"):
        for mode in ("rn", "rz", "rm", "rp"):
            lines.append((f"cvt.{mode}.{to}.{source} {{d}}, {{a}};", to))
            expected.append(np.array([rounded(to, Fraction(int(x)), mode) for x in column], DTYPES[to]))
    results = run_all(gpu, lines, (source,), [column], uniform)
    for (line, to), got, wanted in zip(lines, results, expected, strict=True):
        if to in FORMATS:
            same_numbers(to, got, wanted, line)
        else:
            np.testing.assert_array_equal(got, wanted, line)


@SCALARS
@pytest.mark.parametrize("source", ["f16", "f32", "f64"])
def test_to_integers(gpu: Any, source: str, uniform: bool) -> None:
    """Beyond the range it is the end of the range; NaN is 0, or the highest bit alone if a type has 64 bits."""
    column = numbers(source, 5)
    lines, expected = [], []
    for to in INTEGERS:
        for mode in ("rni", "rzi", "rmi", "rpi"):
            lines.append((f"cvt.{mode}.{to}.{source} {{d}}, {{a}};", to))
            values = [nan_as_integer(source, to) if math.isnan(x) else clipped(float(x), mode, to) for x in column]
            expected.append(np.array(values, DTYPES[to]))
    for (line, _), got, wanted in zip(lines, run_all(gpu, lines, (source,), [column], uniform), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, line)


def nan_as_integer(source: str, to: str) -> int:
    limits = np.iinfo(DTYPES[to])
    return (int(limits.min) or (1 << (limits.bits - 1))) if "64" in source + to else 0


def clipped(x: float, mode: str, to: str) -> int:
    return between(whole(Fraction(x), mode) if math.isfinite(x) else (1 << 70) * (1 if x > 0 else -1), to)


@SCALARS
@pytest.mark.parametrize("source", FORMATS)
def test_between_formats(gpu: Any, source: str, uniform: bool) -> None:
    column = numbers(source, 6)
    lines, expected = [], []
    for to in FORMATS:
        if "bf16" in (source, to) and (source, to) not in (("bf16", "f32"), ("f32", "bf16")):
            continue
        narrows = FORMATS[to].fraction_bits < FORMATS[source].fraction_bits
        modes = ["rn", "rz", "rm", "rp"] if narrows else [""]
        if to in ("f16", "bf16"):
            modes = ["rn", "rz"] if narrows else [""]
        if to == source:
            modes = ["rni", "rzi", "rmi", "rpi"]
        for mode in modes:
            dots = f".{mode}" if mode else ""
            lines.append((f"cvt{dots}.{to}.{source} {{d}}, {{a}};", to))
            expected.append(in_turn(to, converted(to, source, mode), as_format(source, column)))
    for (line, to), got, wanted in zip(lines, run_all(gpu, lines, (source,), [column], uniform), expected, strict=True):
        same_numbers(to, got, wanted, line)


def converted(to: str, source: str, mode: str) -> Any:
    def convert(x: float) -> Any:
        if not math.isfinite(x):
            return FORMATS[to].dtype(x)
        negative = math.copysign(1, x) < 0
        value = Fraction(whole(Fraction(x), mode)) if to == source else Fraction(x)
        return rounded(to, value, mode or "rn", negative)

    return convert


@SCALARS
def test_rounding_to_tf32(gpu: Any, uniform: bool) -> None:
    """Ten bits of a fraction; halves go away from zero."""
    column = np.concatenate(
        [numbers("f32", 7, 256), np.array([1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, 3.4028235e38], np.float32)]
    )
    column = np.resize(column, 288)
    (got,) = run_all(gpu, [("cvt.rna.tf32.f32 {d}, {a};", "b32")], ("f32",), [column], uniform)
    exact, nan = column.astype(np.float64), np.isnan(column)
    _, exponent = np.frexp(np.where(np.isfinite(exact), exact, 0))
    unit = np.exp2(np.maximum(exponent, -125) - 11.0)
    with np.errstate(over="ignore"):
        expected = (np.copysign(np.floor(abs(exact) / unit + 0.5), exact) * unit).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got.view(np.float32)), nan)
    np.testing.assert_array_equal(got[~nan], expected[~nan].view(np.uint32))
