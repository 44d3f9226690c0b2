"""Comparisons of 16-bit numbers that give numbers, and atomic additions to them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from softgpu.tests.compiler.harness import HEADER, Array, Case, run

KINDS: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
COMPARISONS = {
    "eq": lambda a, b: a == b,
    "lt": lambda a, b: a < b,
    "geu": lambda a, b: ~(a < b),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


def numbers(kind: str, seed: int) -> Array:
    """1024 small numbers, many of them equal, some of them not numbers."""
    chance = np.random.default_rng(seed)
    values = chance.integers(-3, 4, 1024).astype(np.float32)
    values[chance.random(1024) < 0.1] = np.nan
    return values.astype(KINDS[kind])


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("name", COMPARISONS)
@pytest.mark.parametrize("kind", KINDS)
def test_set(gpu: Any, kind: str, name: str, uniform: bool) -> None:
    a, b = numbers(kind, 1), numbers(kind, 2)
    truth = COMPARISONS[name](a.astype(np.float32), b.astype(np.float32))
    bits = [x.view(np.uint16) for x in (a, b)]
    out = run(gpu, Case(f"set.{name}.{kind}.{kind} {{d}}, {{a}}, {{b}};", "b16", ("b16",) * 2), bits, uniform)
    np.testing.assert_array_equal(out, truth.astype(KINDS[kind]).view(np.uint16))
    out = run(gpu, Case(f"set.{name}.u32.{kind} {{d}}, {{a}}, {{b}};", "b32", ("b16",) * 2), bits, uniform)
    np.testing.assert_array_equal(out, np.where(truth, 0xFFFFFFFF, 0))
    pairs = [x.view(np.uint32) for x in bits]
    line = f"set.{name}.{kind}x2.{kind}x2 {{d}}, {{a}}, {{b}};"
    out = run(gpu, Case(line, "b32", ("b32",) * 2), pairs, uniform)
    np.testing.assert_array_equal(out.view(np.uint16), truth.astype(KINDS[kind]).view(np.uint16))


@pytest.mark.parametrize("lanes", [1, 2], ids=["one", "pair"])
@pytest.mark.parametrize("kind", KINDS)
def test_atomic_additions(gpu: Any, kind: str, lanes: int) -> None:
    bits = 16 * lanes
    name = kind if lanes == 1 else f"{kind}x2"
    text = f"""{HEADER}.visible .entry k(.param .u64 sum, .param .u64 in, .param .u64 old) {{
.reg .b{bits} %x; .reg .b32 %t; .reg .b64 %p, %w;
mov.u32 %t, %tid.x;
cvt.u64.u32 %w, %t;
ld.param.u64 %p, [in];
mad.lo.u64 %p, %w, {2 * lanes}, %p;
ld.global.b{bits} %x, [%p];
ld.param.u64 %p, [sum];
atom.global.add.noftz.{name} %x, [%p], %x;
ld.param.u64 %p, [old];
mad.lo.u64 %p, %w, {2 * lanes}, %p;
st.global.b{bits} [%p], %x;
ret;
}}"""
    given = np.random.default_rng(5).integers(0, 4, (32, lanes)).astype(np.float32).astype(KINDS[kind])
    total, old = np.zeros(lanes, KINDS[kind]), np.zeros((32, lanes), KINDS[kind])
    gpu.run(text, "k", 1, 32, total, given, old)
    sums = np.cumsum(given.astype(np.float32), axis=0)
    np.testing.assert_array_equal(total.astype(np.float32), sums[-1])
    np.testing.assert_array_equal(old.astype(np.float32)[1:], sums[:-1])


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_conversions(gpu: Any, kind: str, mode: str, uniform: bool) -> None:
    chance = np.random.default_rng(7)
    a, b = chance.standard_normal((2, 64)).astype(np.float32)
    out = run(gpu, Case(f"cvt.{mode}.{kind}x2.f32 {{d}}, {{a}}, {{b}};", "b32", ("f32",) * 2), [a, b], uniform)
    found = out.view(np.uint16).reshape(64, 2)
    for column, given in ((1, a), (0, b)):
        expected = given.astype(KINDS[kind])
        if mode == "rz":
            away = np.abs(expected.astype(np.float32)) > np.abs(given)
            expected = (expected.view(np.uint16) - away).astype(np.uint16).view(KINDS[kind])
        np.testing.assert_array_equal(found[:, column], expected.view(np.uint16))
