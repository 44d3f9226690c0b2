"""Half precision and bfloat16, alone and in pairs: every operation, bit for bit against fractions where it is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.exact import FORMATS, in_turn, operation
from softgpu.tests.compiler.harness import Array, run_all
from softgpu.tests.compiler.test_rounding import as_format, numbers, same_numbers

SCALARS = pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
KINDS = pytest.mark.parametrize("kind", ["f16", "bf16"])
COMPARISONS: dict[str, Any] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: (a < b) | (a > b), "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b, "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
}  # fmt: skip


def both(kind: str, lines: list[tuple[str, Array]], columns: list[Array], gpu: Any, uniform: bool) -> None:
    """Runs each (line, expected) on single numbers, and in pairs on neighbours."""
    results = run_all(gpu, [(line, kind) for line, _ in lines], (kind,) * 3, columns, uniform)
    pairs = [column.view(np.uint32) for column in columns]
    twice = [(line.replace(f".{kind} ", f".{kind}x2 "), f"{kind}x2") for line, _ in lines]
    results_of_pairs = run_all(gpu, twice, (f"{kind}x2",) * 3, pairs, uniform)
    for (line, expected), got, pair in zip(lines, results, results_of_pairs, strict=True):
        same_numbers(kind, got, expected, line)
        same_numbers(kind, pair.view(np.uint16), expected, f"{line} in pairs")


def less(a: Array, b: Array) -> Any:
    """Return True if a is less than b; -0 is less than 0."""
    with np.errstate(invalid="ignore"):  # NaN in bfloat16
        return (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))


def lesser(a: Array, b: Array, nan: bool) -> Any:
    """NaN loses, or with `nan` wins."""
    no_a, no_b = np.isnan(a.astype("f4")), np.isnan(b.astype("f4"))
    chosen = np.where(less(a, b), a, b)
    return np.where(no_a, a if nan else b, np.where(no_b, b if nan else a, chosen)).astype(a.dtype)


def relu(a: Array) -> Any:
    return np.where(a.astype("f4") > 0, a, 0).astype(a.dtype)


@SCALARS
@KINDS
def test_operations(gpu: Any, kind: str, uniform: bool) -> None:
    columns = [numbers(kind, seed) for seed in (11, 12, 13)]
    a, b, c = (as_format(kind, column) for column in columns)
    bits = [column.view(np.uint16) for column in (a, b, c)]
    fused = in_turn(kind, operation(kind, "fma", "rn"), a, b, c)
    lines = [
        (f"{name}.rn.{kind} {{d}}, {{a}}, {{b}};", in_turn(kind, operation(kind, name, "rn"), a, b))
        for name in ("add", "sub", "mul")
    ]
    lines += [
        (f"fma.rn.{kind} {{d}}, {{a}}, {{b}}, {{c}};", fused),
        (f"fma.rn.relu.{kind} {{d}}, {{a}}, {{b}}, {{c}};", relu(fused)),
    ]
    lines += [
        (f"neg.{kind} {{d}}, {{a}};", (bits[0] ^ 0x8000).view(a.dtype)),
        (f"abs.{kind} {{d}}, {{a}};", (bits[0] & 0x7FFF).view(a.dtype)),
    ]
    for ending, nan in (("", False), (".NaN", True)):
        least, most = lesser(a, b, nan), -lesser(-a, -b, nan)
        lines += [
            (f"min{ending}.{kind} {{d}}, {{a}}, {{b}};", least),
            (f"max{ending}.{kind} {{d}}, {{a}}, {{b}};", most),
        ]
    if kind == "f16":
        unit = np.clip(np.nan_to_num(fused.astype("f4"), nan=0), 0, 1).astype(a.dtype)
        lines.append((f"fma.rn.sat.{kind} {{d}}, {{a}}, {{b}}, {{c}};", np.where(unit == 0, 0, unit).astype(a.dtype)))
    both(kind, lines, columns, gpu, uniform)


@SCALARS
@KINDS
def test_functions(gpu: Any, kind: str, uniform: bool) -> None:
    """tanh and powers of two: PTX allows two units of the last place for half precision, more for bfloat16."""
    form = FORMATS[kind]
    x = np.random.default_rng(14).uniform(-8, 8, 128).astype(form.dtype)
    column = x if kind == "f16" else x.view(np.uint16)
    flush = ".ftz" if kind == "bf16" else ""
    lines = [("tanh.approx." + kind + " {d}, {a};", kind), (f"ex2.approx{flush}.{kind} {{d}}, {{a}};", kind)]
    for function, got in zip((np.tanh, np.exp2), run_all(gpu, lines, (kind,), [column], uniform), strict=True):
        exact = function(x.astype("f8"))
        error = np.abs(as_format(kind, got).astype("f8") - exact)
        assert (error <= np.abs(exact) * 2.0**-form.fraction_bits).all()


@SCALARS
@KINDS
def test_comparisons(gpu: Any, kind: str, uniform: bool) -> None:
    columns = [numbers(kind, seed) for seed in (15, 16)]
    columns[1][40:80] = columns[0][40:80]
    a, b = (as_format(kind, column).astype("f4") for column in columns)
    none = np.isnan(a) | np.isnan(b)
    lines = [(f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};", "pred") for name in COMPARISONS]
    lines += [(f"setp.{name}u.{kind} {{d}}, {{a}}, {{b}};", "pred") for name in COMPARISONS if name != "num"]
    lines.append((f"setp.nan.{kind} {{d}}, {{a}}, {{b}};", "pred"))
    expected = [test(a, b) for test in COMPARISONS.values()]
    expected += [test(a, b) | none for name, test in COMPARISONS.items() if name != "num"] + [none]
    for (line, _), got, wanted in zip(lines, run_all(gpu, lines, (kind,) * 2, columns, uniform), expected, strict=True):
        np.testing.assert_array_equal(got, wanted, line)


@SCALARS
@pytest.mark.parametrize("kind", ["f16x2", "bf16x2"])
def test_comparisons_of_pairs(gpu: Any, kind: str, uniform: bool) -> None:
    """setp gives an answer for each half."""
    small = kind.removesuffix("x2")
    columns = [numbers(small, seed, 256) for seed in (17, 18)]
    columns[1][40:160] = columns[0][40:160]
    a, b = (as_format(small, column).astype("f4") for column in columns)
    pairs = [column.view(np.uint32) for column in columns]
    lines = []
    for name in COMPARISONS:
        low = f".reg .pred %u{name};\nsetp.{name}.{kind} {{d}}|%u{name}, {{a}}, {{b}};"
        high = f".reg .pred %v{name};\nsetp.{name}.{kind} %v{name}|{{d}}, {{a}}, {{b}};"
        lines += [(low, "pred"), (high, "pred")]
    results = run_all(gpu, lines, (kind,) * 2, pairs, uniform)
    for place, (name, test) in enumerate(COMPARISONS.items()):
        truth = test(a, b).reshape(-1, 2)
        np.testing.assert_array_equal(results[2 * place], truth[:, 0], name)
        np.testing.assert_array_equal(results[2 * place + 1], truth[:, 1], name)
