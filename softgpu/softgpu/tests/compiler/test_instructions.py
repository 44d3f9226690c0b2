"""Each family of instructions against NumPy, as vectors and as scalars, on random and awkward values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from softgpu.tests.compiler.harness import DTYPES, Array, Case, run, same, values

Reference = Callable[..., Any]
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
BITS = ("b16", "b32", "b64")
REALS = ("f32", "f64")


def bits_of(name: str) -> int:
    return int(np.dtype(DTYPES[name]).itemsize) * 8


def wrap(value: int, name: str) -> int:
    """An integer as its low bits mean it in this type."""
    bits = bits_of(name)
    value &= (1 << bits) - 1
    return value - (1 << bits) if name[0] == "s" and value >> (bits - 1) else value


def exactly(function: Callable[..., int], result: str) -> Reference:
    """A reference in Python integers."""
    return lambda *columns: np.array(
        [wrap(function(*(int(x) for x in row)), result) for row in zip(*columns, strict=False)], DTYPES[result]
    )


def int_cases() -> list[tuple[Case, Reference]]:
    cases: list[tuple[Case, Reference]] = []

    def add(line: str, result: str, operands: tuple[str, ...], function: Callable[..., int]) -> None:
        cases.append((Case(line, result, operands), exactly(function, result)))

    for t in INTEGERS:
        bits = bits_of(t)
        add(f"add.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a + b)
        add(f"sub.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a - b)
        add(f"mul.lo.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a * b)
        add(f"mul.hi.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b, bits=bits: a * b >> bits)
        add(f"mad.lo.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, (t, t, t), lambda a, b, c: a * b + c)
        add(f"div.{t} {{d}}, {{a}}, {{b}};", t, (t, t), quotient)
        add(f"rem.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a - quotient(a, b) * b)
        add(f"min.{t} {{d}}, {{a}}, {{b}};", t, (t, t), min)
        add(f"max.{t} {{d}}, {{a}}, {{b}};", t, (t, t), max)
        add(f"sad.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, (t, t, t), lambda a, b, c: c + abs(a - b))
        by = lambda s, bits=bits: min(s, bits)  # noqa: E731
        add(f"shr.{t} {{d}}, {{a}}, {{b}};", t, (t, "u32"), lambda a, s, by=by: a >> by(s))
        if t[0] == "s":
            add(f"abs.{t} {{d}}, {{a}};", t, (t,), abs)
            add(f"neg.{t} {{d}}, {{a}};", t, (t,), lambda a: -a)
    for t, wide in (("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")):
        add(f"mul.wide.{t} {{d}}, {{a}}, {{b}};", wide, (t, t), lambda a, b: a * b)
        add(f"mad.wide.{t} {{d}}, {{a}}, {{b}}, {{c}};", wide, (t, t, wide), lambda a, b, c: a * b + c)
    add("mad.hi.s32 {d}, {a}, {b}, {c};", "s32", ("s32",) * 3, lambda a, b, c: (a * b >> 32) + c)
    add("mul24.lo.u32 {d}, {a}, {b};", "u32", ("u32",) * 2, lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF))
    add("add.sat.s32 {d}, {a}, {b};", "s32", ("s32",) * 2, lambda a, b: max(-(1 << 31), min((1 << 31) - 1, a + b)))
    for t in BITS:
        bits = bits_of(t)
        ones = (1 << bits) - 1
        add(f"and.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a & b)
        add(f"or.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a | b)
        add(f"xor.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: a ^ b)
        add(f"not.{t} {{d}}, {{a}};", t, (t,), lambda a: ~a)
        add(f"cnot.{t} {{d}}, {{a}};", t, (t,), lambda a: int(a == 0))
        add(f"shl.{t} {{d}}, {{a}}, {{b}};", t, (t, "u32"), lambda a, s, ones=ones: a << s & ones if s < 200 else 0)
        add(f"selp.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, (t, t, "pred"), lambda a, b, p: a if p else b)
    for t in ("b32", "b64"):
        bits = bits_of(t)
        add(f"popc.{t} {{d}}, {{a}};", "u32", (t,), lambda a: a.bit_count())
        add(f"clz.{t} {{d}}, {{a}};", "u32", (t,), lambda a, bits=bits: bits - a.bit_length())
        add(f"brev.{t} {{d}}, {{a}};", t, (t,), lambda a, bits=bits: int(f"{a:0{bits}b}"[::-1], 2))
        add(f"bfi.{t} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};", t, (t, t, "u32", "u32"), insert_field(bits))
    for t in ("u32", "s32", "u64", "s64"):
        add(f"bfe.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, (t, "u32", "u32"), extract_field(bits_of(t), t[0] == "s"))
        add(f"bfind.{t} {{d}}, {{a}};", "s32", (t,), lambda a: (a if a >= 0 else ~a).bit_length() - 1)
    add("shf.l.wrap.b32 {d}, {a}, {b}, {c};", "b32", ("b32",) * 3, lambda a, b, c: (b << 32 | a) << (c & 31) >> 32)
    add("shf.r.clamp.b32 {d}, {a}, {b}, {c};", "b32", ("b32",) * 3, lambda a, b, c: (b << 32 | a) >> min(c, 32))
    add("lop3.b32 {d}, {a}, {b}, {c}, 0xE8;", "b32", ("b32",) * 3, lambda a, b, c: a & b | a & c | b & c)
    add("prmt.b32 {d}, {a}, {b}, {c};", "b32", ("b32",) * 3, permute)
    for mode, cut in (("clamp", lambda n: n), ("wrap", lambda n: n & 31)):
        small = lambda n, cut=cut: min(cut(n), 32)  # noqa: E731
        add(f"bmsk.{mode}.b32 {{d}}, {{a}}, {{b}};", "b32", ("b32",) * 2, mask_of(cut))
        add(f"szext.{mode}.u32 {{d}}, {{a}}, {{b}};", "u32", ("u32",) * 2, lambda a, n, s=small: a & ((1 << s(n)) - 1))
        add(f"szext.{mode}.s32 {{d}}, {{a}}, {{b}};", "s32", ("s32", "u32"), extended(small))
    add("dp4a.s32.u32 {d}, {a}, {b}, {c};", "s32", ("s32", "u32", "s32"), dot4)
    add("slct.u32.s32 {d}, {a}, {b}, {c};", "u32", ("u32", "u32", "s32"), lambda a, b, c: a if c >= 0 else b)
    for t, f in (("u8", "u32"), ("s8", "s32"), ("u16", "u32"), ("s16", "s64"), ("u32", "u64"), ("s32", "s64")):
        add(f"cvt.{f}.{t} {{d}}, {{a}};", f, (t,), lambda a: a)
        add(f"cvt.{t}.{f} {{d}}, {{a}};", t, (f,), lambda a: a)
    for t, f in (("u8", "s32"), ("s8", "s32"), ("u16", "s64"), ("s32", "s64"), ("u32", "s32"), ("s32", "u32")):
        add(f"cvt.sat.{t}.{f} {{d}}, {{a}};", t, (f,), clamp(t))
    return cases


def quotient(a: int, b: int) -> int:
    if b == 0:
        return -1
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamp(name: str) -> Callable[[int], int]:
    limits: Any = np.iinfo(DTYPES[name])
    return lambda a: max(int(limits.min), min(int(limits.max), a))


def insert_field(bits: int) -> Callable[..., int]:
    def function(a: int, b: int, start: int, length: int) -> int:
        start, length = start & 255, length & 255
        field = ((1 << length) - 1) << start & ((1 << bits) - 1)
        return (b & ~field) | (a << start & field)

    return function


def mask_of(cut: Callable[[int], int]) -> Callable[..., int]:
    return lambda start, n: ((1 << min(cut(n), 32)) - 1) << cut(start) if cut(start) < 32 else 0


def extended(cut: Callable[[int], int]) -> Callable[..., int]:
    def function(a: int, n: int) -> int:
        n = cut(n)
        low = a & ((1 << n) - 1)
        return low - (1 << n) if n and low >> (n - 1) else low

    return function


def extract_field(bits: int, signed: bool) -> Callable[..., int]:
    def function(a: int, start: int, length: int) -> int:
        a, start, length = a & ((1 << bits) - 1), start & 255, length & 255
        sign = a >> min(start + length - 1, bits - 1) & 1 if signed and length else 0
        out = 0
        for i in range(bits):
            bit = a >> (start + i) & 1 if i < length and start + i < bits else sign
            out |= bit << i
        return out

    return function


def permute(a: int, b: int, c: int) -> int:
    both, out = b << 32 | a, 0
    for i in range(4):
        choice = c >> 4 * i & 15
        byte = both >> 8 * (choice & 7) & 255
        out |= (255 if choice & 8 and byte & 128 else 0 if choice & 8 else byte) << 8 * i
    return out


def dot4(a: int, b: int, c: int) -> int:
    a, b = a & 0xFFFFFFFF, b & 0xFFFFFFFF
    signed = [(a >> s & 255) - (256 if a >> s & 128 else 0) for s in (0, 8, 16, 24)]
    return c + sum(x * (b >> s & 255) for x, s in zip(signed, (0, 8, 16, 24), strict=False))


INT_CASES = int_cases()


def labels(cases: list[tuple[Case, Reference]]) -> list[str]:
    return [case.line.split()[0] for case, _ in cases]


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize(("case", "reference"), INT_CASES, ids=labels(INT_CASES))
def test_integers(gpu: Any, case: Case, reference: Reference, uniform: bool) -> None:
    operands = values(case.operands)
    same(run(gpu, case, operands, uniform), reference(*operands))


# --- floating point


def real_cases() -> list[tuple[Case, Reference, int]]:
    cases: list[tuple[Case, Reference, int]] = []

    def add(line: str, result: str, operands: tuple[str, ...], reference: Reference, ulp: int = 0) -> None:
        cases.append((Case(line, result, operands), reference, ulp))

    for t in REALS:
        add(f"add.{t} {{d}}, {{a}}, {{b}};", t, (t, t), np.add)
        add(f"sub.rn.{t} {{d}}, {{a}}, {{b}};", t, (t, t), np.subtract)
        add(f"mul.{t} {{d}}, {{a}}, {{b}};", t, (t, t), np.multiply)
        add(f"div.rn.{t} {{d}}, {{a}}, {{b}};", t, (t, t), np.divide)
        add(f"rcp.rn.{t} {{d}}, {{a}};", t, (t,), np.reciprocal)
        add(f"sqrt.rn.{t} {{d}}, {{a}};", t, (t,), np.sqrt)
        add(f"abs.{t} {{d}}, {{a}};", t, (t,), np.abs)
        add(f"neg.{t} {{d}}, {{a}};", t, (t,), np.negative)
        add(f"min.{t} {{d}}, {{a}}, {{b}};", t, (t, t), least)
        add(f"max.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: -least(-a, -b))
        add(f"copysign.{t} {{d}}, {{a}}, {{b}};", t, (t, t), lambda a, b: np.copysign(b, a))
        add(f"selp.{t} {{d}}, {{a}}, {{b}}, {{c}};", t, (t, t, "pred"), lambda a, b, p: np.where(p, a, b))
        add(f"cvt.rni.{t}.{t} {{d}}, {{a}};", t, (t,), np.rint)
        add(f"cvt.rmi.{t}.{t} {{d}}, {{a}};", t, (t,), np.floor)
    add("fma.rn.f32 {d}, {a}, {b}, {c};", "f32", ("f32",) * 3, fma_f32)
    add("add.sat.f32 {d}, {a}, {b};", "f32", ("f32",) * 2, lambda a, b: np.nan_to_num(np.clip(a + b, 0, 1)) + 0)
    add("add.f16 {d}, {a}, {b};", "f16", ("f16",) * 2, np.add)
    add("mul.f16 {d}, {a}, {b};", "f16", ("f16",) * 2, np.multiply)
    add("neg.f16 {d}, {a};", "f16", ("f16",), np.negative)
    add("fma.rn.f16 {d}, {a}, {b}, {c};", "f16", ("f16",) * 3, fma_f16)
    add("ex2.approx.f32 {d}, {a};", "f32", ("f32",), lambda a: np.exp2(a.astype("f8")).astype("f4"), 4)
    add("lg2.approx.f32 {d}, {a};", "f32", ("f32",), lambda a: np.log2(a.astype("f8")).astype("f4"), 4)
    add("rsqrt.approx.f32 {d}, {a};", "f32", ("f32",), lambda a: (1 / np.sqrt(a.astype("f8"))).astype("f4"), 3)
    add("tanh.approx.f32 {d}, {a};", "f32", ("f32",), lambda a: np.tanh(a.astype("f8")).astype("f4"), 4)
    add("cvt.f64.f32 {d}, {a};", "f64", ("f32",), lambda a: a.astype("f8"))
    add("cvt.rn.f32.f64 {d}, {a};", "f32", ("f64",), lambda a: a.astype("f4"))
    add("cvt.f32.f16 {d}, {a};", "f32", ("f16",), lambda a: a.astype("f4"))
    add("cvt.rn.f16.f32 {d}, {a};", "f16", ("f32",), lambda a: a.astype("f2"))
    add("cvt.rn.f16.f64 {d}, {a};", "f16", ("f64",), lambda a: a.astype("f2"))
    add("cvt.sat.f32.f32 {d}, {a};", "f32", ("f32",), lambda a: np.nan_to_num(np.clip(a, 0, 1)) + 0)
    for t in ("s32", "u32", "s64", "u64"):
        add(f"cvt.rn.f32.{t} {{d}}, {{a}};", "f32", (t,), lambda a: a.astype("f4"))
        add(f"cvt.rn.f64.{t} {{d}}, {{a}};", "f64", (t,), lambda a: a.astype("f8"))
        for f in ("f32", "f64"):
            add(f"cvt.rzi.{t}.{f} {{d}}, {{a}};", t, (f,), to_integer(t, np.trunc))
            add(f"cvt.rni.{t}.{f} {{d}}, {{a}};", t, (f,), to_integer(t, np.rint))
    add("cvt.rzi.s8.f32 {d}, {a};", "s8", ("f32",), to_integer("s8", np.trunc))
    add("cvt.rpi.u16.f32 {d}, {a};", "u16", ("f32",), to_integer("u16", np.ceil))
    for mode, toward in (("rm", -np.inf), ("rp", np.inf), ("rz", 0.0)):
        reference = directed(toward)
        add(
            f"add.{mode}.f32 {{d}}, {{a}}, {{b}};",
            "f32",
            ("f32",) * 2,
            lambda a, b, r=reference, m=mode: zero_sum(r(*exact_sum(a, b)), a, b, m),
        )
        add(f"mul.{mode}.f32 {{d}}, {{a}}, {{b}};", "f32", ("f32",) * 2, lambda a, b, r=reference: r(wide(a) * wide(b)))
        add(f"cvt.{mode}.f32.f64 {{d}}, {{a}};", "f32", ("f64",), lambda a, r=reference: r(a))
        add(f"cvt.{mode}.f32.s32 {{d}}, {{a}};", "f32", ("s32",), lambda a, r=reference: r(a.astype("f8")))
    return cases


def wide(a: Array) -> Array:
    return a.astype(np.float64)


def zero_sum(total: Array, a: Array, b: Array, mode: str) -> Array:
    """The sum of opposites is -0 if rounding goes down."""
    opposite = np.isfinite(a) & (a == -b) & (np.signbit(a) != np.signbit(b))
    return np.where(opposite & (mode == "rm"), np.float32(-0.0), total)


def exact_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum as a double and what that leaves out."""
    x, y = wide(a), wide(b)
    total = x + y
    part = total - x
    return total, np.nan_to_num((x - (total - part)) + (y - part), nan=0.0)


def least(a: Array, b: Array) -> Array:
    """The lesser; of a number and a NaN the number; -0 before +0."""
    lower = np.fmin(a, b)
    return np.where((a == 0) & (b == 0), np.where(np.signbit(a), a, b), lower)


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    return exact.astype(np.float32)


def fma_f16(a: Array, b: Array, c: Array) -> Array:
    return (wide(a) * wide(b) + wide(c)).astype(np.float16)


def to_integer(name: str, rounding: Callable[[Array], Array]) -> Reference:
    limits: Any = np.iinfo(DTYPES[name])

    def function(a: Array) -> Array:
        whole = rounding(a.astype(np.float64))
        highest = int(limits.min) or 1 << (limits.bits - 1)
        nan = highest if 64 in (limits.bits, 8 * a.dtype.itemsize) else 0
        return (
            np.array([nan if np.isnan(x) else int(max(min(x, 2.0**70), -(2.0**70))) for x in whole], object)
            .clip(int(limits.min), int(limits.max))
            .astype(DTYPES[name])
        )

    return function


def directed(toward: float) -> Callable[..., Array]:
    """Rounds a double to float in one direction."""

    def function(exact: Array, rest: Array | float = 0.0) -> Array:
        near = exact.astype(np.float32)
        excess = near.astype(np.float64) - exact  # exact, and compared with what the double itself left out
        goal = np.full_like(exact, toward)
        above, below = excess > rest, excess < rest
        wrong = above if toward < 0 else below if toward > 0 else np.where(near > 0, above, below & (near < 0))
        moved = np.nextafter(near, goal.astype(np.float32))
        return np.where(wrong & ~np.isnan(exact), moved, near)

    return function


REAL_CASES = real_cases()


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize(("case", "reference", "ulp"), REAL_CASES, ids=[c.line.split()[0] for c, _, _ in REAL_CASES])
def test_reals(gpu: Any, case: Case, reference: Reference, ulp: int, uniform: bool) -> None:
    operands = values(case.operands)
    with np.errstate(all="ignore"):
        expected = reference(*operands)
    same(run(gpu, case, operands, uniform), expected, ulp)


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine(gpu: Any, name: str, uniform: bool) -> None:
    """PTX promises an absolute error below 2**-20.5 near the origin."""
    x = np.linspace(-np.pi, np.pi, 512, dtype=np.float32)
    got = run(gpu, Case(f"{name}.approx.f32 {{d}}, {{a}};", "f32", ("f32",)), [x], uniform)
    np.testing.assert_allclose(got, getattr(np, name)(x.astype("f8")), atol=2**-20)


COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: (a < b) | (a > b),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("kind", ["f32", "f64", "s32", "u32", "s64", "u64", "s16", "u16"])
def test_comparisons(gpu: Any, kind: str, name: str, uniform: bool) -> None:
    operands = values((kind, kind))
    got = run(gpu, Case(f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};", "pred", (kind, kind)), operands, uniform)
    same(got, COMPARISONS[name](*operands))
    if kind[0] == "f":
        got = run(gpu, Case(f"setp.{name}u.{kind} {{d}}, {{a}}, {{b}};", "pred", (kind, kind)), operands, uniform)
        either = np.isnan(operands[0]) | np.isnan(operands[1])
        same(got, COMPARISONS[name](*operands) | either)


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
def test_comparisons_with_a_predicate(gpu: Any, uniform: bool) -> None:
    a, b, p = values(("s32", "s32", "pred"))
    kinds = ("s32", "s32", "pred")
    same(run(gpu, Case("setp.lt.and.s32 {d}, {a}, {b}, {c};", "pred", kinds), [a, b, p], uniform), (a < b) & (p != 0))
    same(run(gpu, Case("setp.lt.or.s32 {d}, {a}, {b}, !{c};", "pred", kinds), [a, b, p], uniform), (a < b) | (p == 0))
    both = "setp.lt.xor.s32 %q|{d}, {a}, {b}, {c};"
    same(run(gpu, Case(both, "pred", kinds), [a, b, p], uniform), (a >= b) ^ (p != 0))
    same(
        run(gpu, Case("set.lt.u32.s32 {d}, {a}, {b};", "u32", ("s32", "s32")), [a, b], uniform),
        np.where(a < b, -1, 0).astype("u4"),
    )
    unsigned = [a.view(np.uint32), b.view(np.uint32)]
    got = run(gpu, Case("setp.lo.u32 {d}, {a}, {b};", "pred", ("u32", "u32")), unsigned, uniform)
    same(got, unsigned[0] < unsigned[1])


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("line", ["and.pred", "or.pred", "xor.pred", "not.pred", "mov.pred"])
def test_predicates(gpu: Any, line: str, uniform: bool) -> None:
    a, b = values(("pred", "pred"))
    expected = {"and": a & b, "or": a | b, "xor": a ^ b, "not": 1 - a, "mov": a}[line[:3].rstrip(".")]
    operands = "{a}, {b}" if line[:2] in ("an", "or", "xo") else "{a}"
    same(run(gpu, Case(f"{line} {{d}}, {operands};", "pred", ("pred", "pred")), [a, b], uniform), expected)


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
def test_guards(gpu: Any, uniform: bool) -> None:
    a, b, p = values(("s32", "s32", "pred"))
    kinds = ("s32", "s32", "pred")
    same(
        run(gpu, Case("mov.b32 {d}, {a};\n@{c} add.s32 {d}, {a}, {b};", "s32", kinds), [a, b, p], uniform),
        np.where(p, a + b, a),
    )
    same(
        run(gpu, Case("mov.b32 {d}, {a};\n@!{c} mov.b32 {d}, {b};", "s32", kinds), [a, b, p], uniform),
        np.where(p, a, b),
    )


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
def test_packing(gpu: Any, uniform: bool) -> None:
    a, b = values(("b32", "b32"))
    whole = a.astype("u8") | b.astype("u8") << np.uint64(32)
    same(run(gpu, Case("mov.b64 {d}, {{{a}, {b}}};", "b64", ("b32", "b32")), [a, b], uniform), whole)
    same(run(gpu, Case("mov.b64 {{_, {d}}}, {a};", "b32", ("b64",)), [whole], uniform), b)
    h = values(("b16", "b16"))
    joined = h[0].astype("u4") | h[1].astype("u4") << np.uint32(16)
    same(run(gpu, Case("mov.b32 {d}, {{{a}, {b}}};", "b32", ("b16", "b16")), h, uniform), joined)


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
def test_bfloat(gpu: Any, uniform: bool) -> None:
    kind = ml_dtypes.bfloat16
    random = np.random.default_rng(3)
    a, b, c = (random.standard_normal(512).astype(kind) for _ in range(3))
    a[:4] = [0, np.inf, -np.inf, 1]
    bits = [x.view(np.uint16) for x in (a, b, c)]

    def got(line: str, result: str, names: tuple[str, ...], operands: list[Array]) -> Array:
        return run(gpu, Case(line, result, names), operands, uniform)

    three = ("bf16",) * 3
    exact = [x.astype(np.float64) for x in (a, b, c)]
    expected = (exact[0] * exact[1] + exact[2]).astype(np.float32).astype(kind)
    same(got("fma.rn.bf16 {d}, {a}, {b}, {c};", "bf16", three, bits), expected.view(np.uint16))
    same(got("mul.bf16 {d}, {a}, {b};", "bf16", three[:2], bits[:2]), (a * b).view(np.uint16))
    same(got("cvt.f32.bf16 {d}, {a};", "f32", ("bf16",), bits[:1]), a.astype(np.float32))
    x = values(("f32",))[0]
    with np.errstate(all="ignore"):
        rounded = x.astype(kind)
    result = got("cvt.rn.bf16.f32 {d}, {a};", "bf16", ("f32",), [x])
    number = ~np.isnan(x)
    same(result[number], rounded.view(np.uint16)[number])
    assert np.isnan(result[~number].view(kind).astype(np.float32)).all()


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
def test_pairs_of_halves(gpu: Any, uniform: bool) -> None:
    random = np.random.default_rng(4)
    a, b, c = (random.standard_normal((512, 2)).astype(np.float16) for _ in range(3))
    packed = [x.view(np.uint32).reshape(512) for x in (a, b, c)]

    def got(line: str) -> Array:
        case = Case(line, "f16x2", ("f16x2",) * 3)
        return run(gpu, case, packed, uniform).view(np.float16).reshape(512, 2)

    same(got("add.f16x2 {d}, {a}, {b};"), a + b)
    same(got("mul.rn.f16x2 {d}, {a}, {b};"), a * b)
    same(got("fma.rn.f16x2 {d}, {a}, {b}, {c};"), fma_f16(a, b, c))
    same(got("max.f16x2 {d}, {a}, {b};"), np.maximum(a, b))
    same(got("neg.f16x2 {d}, {a};"), -a)
    floats = [x[:, 0].astype(np.float32) for x in (a, b)]
    case = Case("cvt.rn.f16x2.f32 {d}, {a}, {b};", "f16x2", ("f32", "f32"))
    result = run(gpu, case, floats, uniform).view(np.float16).reshape(512, 2)
    same(result, np.stack([b[:, 0], a[:, 0]], 1))
