"""CUDA's functions on the halves and bytes of a word, as nvcc compiles them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from softgpu.tests.compiler.harness import values
from softgpu.tests.compiler.test_packed import COMPARISONS, packed, parts

SIMD = (Path(__file__).parent / "kernels" / "simd.ptx").read_text()
ARITHMETIC: dict[str, Any] = {
    "abs": lambda a, _: np.abs(a),
    "neg": lambda a, _: -a,
    "add": np.add,
    "sub": np.subtract,
    "avg": lambda a, b: (a + b + (a + b >= 0)) >> 1,
    "hadd": lambda a, b: (a + b) >> 1,
    "absdiff": lambda a, b: np.abs(a - b),
    "max": np.maximum,
    "min": np.minimum,
}
SATURATED = ("absss", "negss", "addss", "subss", "addus", "subus")
SIGNED = ("abs", "neg", "add", "sub", "avgs", "absdiffs", "maxs", "mins", *SATURATED[:4])
UNSIGNED = ("addus", "subus", "avgu", "haddu", "absdiffu", "maxu", "minu")


def operands(count: int, kind: str) -> tuple[Any, Any, Any, Any]:
    a, b = values(("b32", "b32"), 512)
    b[::7] = a[::7]
    return a, b, parts(a, count, kind), parts(b, count, kind)


def run(gpu: Any, name: str, a: Any, b: Any) -> Any:
    out = np.zeros(512, np.uint32)
    gpu.run(SIMD, name, 4, 128, a, b, out)
    return out


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_arithmetic(gpu: Any, name: str, count: int) -> None:
    a, b, x, y = operands(count, "u32" if name in UNSIGNED else "s32")
    base = name[:-2] if name in SATURATED else name if name in ARITHMETIC else name[:-1]
    result = ARITHMETIC[base](x, y)
    bits = 32 // count
    if name in SATURATED:
        signed = name.endswith("ss")
        result = np.clip(result, -(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1)
    np.testing.assert_array_equal(run(gpu, f"v{name}{count}", a, b), packed(result, count))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_sums_of_differences(gpu: Any, kind: str, count: int) -> None:
    a, b, x, y = operands(count, kind)
    np.testing.assert_array_equal(run(gpu, f"vsad{kind[0]}{count}", a, b), np.abs(x - y).sum(axis=1))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", COMPARISONS)
def test_comparisons(gpu: Any, name: str, count: int) -> None:
    for sign in ("",) if name in ("eq", "ne") else ("s", "u"):
        a, b, x, y = operands(count, f"{sign or 's'}32")
        truth = COMPARISONS[name](x, y)
        np.testing.assert_array_equal(run(gpu, f"vset{name}{sign}{count}", a, b), packed(truth, count))
        np.testing.assert_array_equal(run(gpu, f"vcmp{name}{sign}{count}", a, b), packed(np.where(truth, -1, 0), count))
