"""Arithmetic on the halves and bytes of a register: SIMD video instructions, and pairs of 16-bit integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import Array, run_all, values

SCALARS = pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
COMPARISONS: dict[str, Any] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
ACTIONS: dict[str, Any] = {
    "vadd2.{form} {d}, {a}, {b}, {c};": np.add,
    "vadd4.{form} {d}, {a}, {b}, {c};": np.add,
    "vsub2.{form} {d}, {a}, {b}, {c};": np.subtract,
    "vsub4.{form} {d}, {a}, {b}, {c};": np.subtract,
    "vabsdiff2.{form} {d}, {a}, {b}, {c};": lambda a, b: np.abs(a - b),
    "vabsdiff4.{form} {d}, {a}, {b}, {c};": lambda a, b: np.abs(a - b),
    "vmin2.{form} {d}, {a}, {b}, {c};": np.minimum,
    "vmin4.{form} {d}, {a}, {b}, {c};": np.minimum,
    "vmax2.{form} {d}, {a}, {b}, {c};": np.maximum,
    "vmax4.{form} {d}, {a}, {b}, {c};": np.maximum,
    "vavrg2.{form} {d}, {a}, {b}, {c};": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "vavrg4.{form} {d}, {a}, {b}, {c};": lambda a, b: (a + b + (a + b >= 0)) >> 1,
}
VSET = {2: "vset2.{form} {d}, {a}, {b}, {c};", 4: "vset4.{form} {d}, {a}, {b}, {c};"}


def parts(column: Array, count: int, kind: str) -> Any:
    """The halves or bytes of each number."""
    return column.view(f"{'i' if kind[0] == 's' else 'u'}{4 // count}").reshape(-1, count).astype(np.int64)


def packed(columns: Array, count: int) -> Any:
    return columns.astype(f"u{4 // count}").reshape(-1).view(np.uint32)


def summed(results: Array, count: int, kind: str, c: Array) -> Any:
    small = parts(packed(results, count), count, kind)
    return (small.sum(axis=1) + c).astype(np.uint64).astype(np.uint32)


@SCALARS
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kinds", ["u32.u32.u32", "s32.s32.s32", "s32.u32.s32", "u32.s32.u32"])
def test_arithmetic(gpu: Any, kinds: str, count: int, uniform: bool) -> None:
    a, b, c = values(("b32",) * 3, 256)
    to, first, second = kinds.split(".")
    x, y = parts(a, count, first), parts(b, count, second)
    bits = 32 // count
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if to == "s32" else (0, (1 << bits) - 1)
    lines, expected = [], []
    for line, action in ACTIONS.items():
        if f"{count}." not in line:
            continue
        for sat in ("", "sat."):
            result = action(x, y)
            result = np.clip(result, least, most) if sat else result
            lines.append((line.replace("{form}", sat + kinds), "b32"))
            expected.append(packed(result, count))
            lines.append((line.replace("{form}", f"{sat}{kinds}.add"), "b32"))
            expected.append(summed(result, count, to, c))
    for (line, _), got, wanted in zip(
        lines, run_all(gpu, lines, ("b32",) * 3, [a, b, c], uniform), expected, strict=True
    ):
        np.testing.assert_array_equal(got, wanted, line)


@SCALARS
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_comparisons(gpu: Any, kind: str, count: int, uniform: bool) -> None:
    a, b, c = values(("b32",) * 3, 256)
    b[::5] = a[::5]
    x, y = parts(a, count, kind), parts(b, count, kind)
    lines, expected = [], []
    for name, test in COMPARISONS.items():
        lines.append((VSET[count].replace("{form}", f"{kind}.{kind}.{name}"), "b32"))
        expected.append(packed(test(x, y), count))
        lines.append((VSET[count].replace("{form}", f"{kind}.{kind}.{name}.add"), "b32"))
        expected.append(summed(test(x, y), count, "u32", c))
    for (line, _), got, wanted in zip(
        lines, run_all(gpu, lines, ("b32",) * 3, [a, b, c], uniform), expected, strict=True
    ):
        np.testing.assert_array_equal(got, wanted, line)


@SCALARS
@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
def test_pairs_of_integers(gpu: Any, kind: str, uniform: bool) -> None:
    a, b, c = values(("b32",) * 3, 256)
    x, y, z = (parts(column, 2, kind) for column in (a, b, c))
    lines = [(f"{name}.{kind} {{d}}, {{a}}, {{b}};", "b32") for name in ("add", "min", "max")]
    lines += [(f"{name}.{kind} {{d}}, {{a}}, {{b}}, {{c}};", "b32") for name in ("min", "max")]
    expected = [x + y, np.minimum(x, y), np.maximum(x, y)]
    expected += [np.minimum(expected[1], z), np.maximum(expected[2], z)]
    if kind == "s16x2":
        lines += [(f"{name}.relu.{kind} {{d}}, {{a}}, {{b}};", "b32") for name in ("min", "max")]
        expected += [np.maximum(result, 0) for result in expected[1:3]]
    for (line, _), got, wanted in zip(
        lines, run_all(gpu, lines, ("b32",) * 3, [a, b, c], uniform), expected, strict=True
    ):
        np.testing.assert_array_equal(got, packed(wanted, 2), line)


@SCALARS
def test_packing_conversions(gpu: Any, uniform: bool) -> None:
    """Two saturated numbers, and above two bytes the low half of a third operand."""
    columns = values(("s32", "s32", "s32"), 256)
    lines = [("cvt.pack.sat.s16.s32 {d}, {a}, {b};", "b32"), ("cvt.pack.sat.u16.s32 {d}, {a}, {b};", "b32")]
    lines += [(f"cvt.pack.sat.{kind}8.s32.b32 {{d}}, {{a}}, {{b}}, {{c}};", "b32") for kind in "su"]
    a, b, c = (column.astype(np.int64) for column in columns)
    for (line, _), got in zip(lines, run_all(gpu, lines, ("s32",) * 3, columns, uniform), strict=True):
        bits, signed = 16 if "16" in line else 8, ".s16" in line or ".s8" in line
        least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        first, second = (np.clip(x, least, most) & ((1 << bits) - 1) for x in (a, b))
        above = c << 16 if bits == 8 else 0
        np.testing.assert_array_equal(got, ((above | first << bits | second) & 0xFFFFFFFF).astype(np.uint32), line)
