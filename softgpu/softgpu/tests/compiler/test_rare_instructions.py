"""Instructions that compilers seldom emit: byte products, 24-bit arithmetic, kinds of numbers, prmt and shf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import run_all, values
from softgpu.tests.compiler.test_instructions import exactly

SCALARS = pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
WORD = (1 << 32) - 1


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def part(value: int, at: int, bits: int, kind: str) -> int:
    low = value >> at & ((1 << bits) - 1)
    return signed(low, bits) if kind == "s32" else low


def dot(count: int, shift: int, kinds: tuple[str, str]) -> Callable[[int, int, int], int]:
    """count products of parts of a and bytes of b."""

    def function(a: int, b: int, c: int) -> int:
        width = 32 // count
        pairs = ((part(a, i * width, width, kinds[0]), part(b, shift + 8 * i, 8, kinds[1])) for i in range(count))
        return c + sum(x * y for x, y in pairs)

    return function


def product24(kind: str, high: bool, saturates: bool = False) -> Callable[..., int]:
    def function(a: int, b: int, c: int = 0) -> int:
        x, y = (part(value, 0, 24, kind) for value in (a, b))
        product = (x * y >> 16 if high else x * y) & WORD
        total = (signed(product, 32) if kind == "s32" else product) + (c if kind == "u32" else signed(c, 32))
        return saturated(total) if saturates else total

    return function


def saturated(value: int) -> int:
    return max(-(1 << 31), min((1 << 31) - 1, value))


def looked_up(table: int) -> Callable[[int, int, int], int]:
    """lop3: the table has the result for each three bits."""

    def function(a: int, b: int, c: int) -> int:
        rows = ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1 for i in range(32))
        return sum((table >> row & 1) << i for i, row in enumerate(rows))

    return function


def nth_set(mask: int, base: int, offset: int) -> int:
    """fns: from bit `base` on, up or down, the offset-th set bit."""
    base, offset = base & 31, signed(offset, 32)
    if offset == 0:
        return base if mask >> base & 1 else -1
    places = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [place for place in places if mask >> place & 1]
    return found[abs(offset) - 1] if abs(offset) <= len(found) else -1


def picked(mode: str) -> Callable[[int, int, int], int]:
    def function(a: int, b: int, c: int) -> int:
        n, both = c & 3, (b << 32 | a).to_bytes(8, "little")
        places = {
            "f4e": [n, n + 1, n + 2, n + 3],
            "b4e": [n, (n - 1) % 8, (n - 2) % 8, (n - 3) % 8],
            "rc8": [n] * 4,
            "ecl": [max(n, i) for i in range(4)],
            "ecr": [min(n, i) for i in range(4)],
            "rc16": [2 * (n & 1), 2 * (n & 1) + 1] * 2,
        }[mode]
        return int.from_bytes(bytes(both[place] for place in places), "little")

    return function


def integer_lines() -> list[tuple[str, str, Callable[..., int]]]:
    lines: list[tuple[str, str, Callable[..., int]]] = []
    for x in ("u32", "s32"):
        for y in ("u32", "s32"):
            to = "s32" if "s32" in (x, y) else "u32"
            lines.append((f"dp4a.{x}.{y} {{d}}, {{a}}, {{b}}, {{c}};", to, dot(4, 0, (x, y))))
            for half, shift in (("lo", 0), ("hi", 16)):
                lines.append((f"dp2a.{half}.{x}.{y} {{d}}, {{a}}, {{b}}, {{c}};", to, dot(2, shift, (x, y))))
        for half in ("lo", "hi"):
            lines.append((f"mul24.{half}.{x} {{d}}, {{a}}, {{b}};", x, product24(x, half == "hi")))
            lines.append((f"mad24.{half}.{x} {{d}}, {{a}}, {{b}}, {{c}};", x, product24(x, half == "hi")))
    lines.append(("mad24.hi.sat.s32 {d}, {a}, {b}, {c};", "s32", product24("s32", True, True)))
    for mode in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        lines.append((f"prmt.b32.{mode} {{d}}, {{a}}, {{b}}, {{c}};", "b32", picked(mode)))
    for mode, cut in (("wrap", lambda n: n & 31), ("clamp", lambda n: min(n, 32))):
        lines.append(
            (f"shf.l.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", "b32", lambda a, b, c, k=cut: (b << 32 | a) << k(c) >> 32)
        )
        lines.append(
            (f"shf.r.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", "b32", lambda a, b, c, k=cut: (b << 32 | a) >> k(c))
        )
    for table in (0x00, 0x96, 0xCA, 0x17, 0x7F, 0xFF):
        lines.append((f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table:#x};", "b32", looked_up(table)))
    high = lambda a, b, c: saturated((signed(a, 32) * signed(b, 32) >> 32) + signed(c, 32))  # noqa: E731
    lines.append(("mad.hi.sat.s32 {d}, {a}, {b}, {c};", "s32", high))
    lines.append(("fns.b32 {d}, {a}, {b}, {c};", "b32", nth_set))
    lines.append(("bfind.shiftamt.u32 {d}, {a};", "u32", lambda a: 32 - a.bit_length() if a else -1))
    lines.append(("sub.sat.s32 {d}, {a}, {b};", "s32", lambda a, b: saturated(signed(a, 32) - signed(b, 32))))
    return lines


@SCALARS
def test_integers(gpu: Any, uniform: bool) -> None:
    columns = values(("b32",) * 3, 512)
    columns[2][::3] %= 40
    columns[1][1::3] %= 32
    columns[2][2::3] -= columns[2][2::3] % np.uint32(5) - np.uint32(2)
    lines = integer_lines()
    results = run_all(gpu, [(line, to) for line, to, _ in lines], ("b32",) * 3, columns, uniform)
    for (line, to, function), got in zip(lines, results, strict=True):
        count = sum(f"{{{letter}}}" in line for letter in "abc")
        np.testing.assert_array_equal(got, exactly(function, to)(*columns[:count]), line)


KINDS_OF_NUMBERS: dict[str, Any] = {
    "finite": np.isfinite,
    "infinite": np.isinf,
    "number": lambda x: ~np.isnan(x),
    "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny),
}


@SCALARS
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_kinds_of_numbers(gpu: Any, kind: str, uniform: bool) -> None:
    (x,) = values((kind,), 128)
    lines = [(f"testp.{name}.{kind} {{d}}, {{a}};", "pred") for name in KINDS_OF_NUMBERS]
    for (name, test), got in zip(KINDS_OF_NUMBERS.items(), run_all(gpu, lines, (kind,), [x], uniform), strict=True):
        np.testing.assert_array_equal(got, test(x), name)


APPROXIMATIONS: dict[str, tuple[Any, float]] = {
    "sin.approx.f32 {d}, {a};": (np.sin, 2.0**-20.5),
    "cos.approx.f32 {d}, {a};": (np.cos, 2.0**-20.5),
    "rcp.approx.f32 {d}, {a};": (lambda x: 1 / x, 0),
    "sqrt.approx.f32 {d}, {a};": (np.sqrt, 0),
    "ex2.approx.f32 {d}, {a};": (np.exp2, 0),
    "tanh.approx.f32 {d}, {a};": (np.tanh, 2.0**-11),
}


@SCALARS
def test_approximations(gpu: Any, uniform: bool) -> None:
    """Within what PTX promises: an absolute error, or two units of the last place."""
    x = np.random.default_rng(1).uniform(-3, 3, 256).astype(np.float32)
    results = run_all(gpu, [(line, "f32") for line in APPROXIMATIONS], ("f32",), [x], uniform)
    with np.errstate(invalid="ignore"):
        for (line, (function, absolute)), got in zip(APPROXIMATIONS.items(), results, strict=True):
            exact = function(x.astype("f8"))
            bound = np.maximum(absolute, 2.0**-22 * np.abs(exact))
            error = np.abs(got - exact)
            assert ((error <= bound) | (np.isnan(got) & np.isnan(exact))).all(), line
