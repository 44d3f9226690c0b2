"""Arithmetic in several words, against Python's integers and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CARRY = (Path(__file__).parent / "kernels" / "carry.ptx").read_text()
MASK = (1 << 128) - 1


def numbers(seed: int) -> tuple[list[int], list[int]]:
    chance = np.random.default_rng(seed)
    edges = [0, 1, (1 << 32) - 1, 1 << 32, (1 << 64) - 1, 1 << 64, MASK, MASK - 1]
    a = [edges[i // 8] if i < 64 else int.from_bytes(chance.bytes(16), "little") for i in range(128)]
    b = [edges[i % 8] if i < 64 else int.from_bytes(chance.bytes(16), "little") for i in range(128)]
    return a, b


def words(values: list[int], dtype: Any) -> Any:
    return np.frombuffer(b"".join((value & MASK).to_bytes(16, "little") for value in values), dtype)


def test_integers_of_128_bits(gpu: Any) -> None:
    a, b = numbers(1)
    out = np.zeros(10 * 128, np.uint64)
    gpu.run(CARRY, "wide", 4, 32, words(a, np.uint64), words(b, np.uint64), out)
    pairs = list(zip(a, b, strict=True))
    expected = [value for x, y in pairs for value in (x + y, x - y, x * y, x // (y | 1), x % (y | 1))]
    np.testing.assert_array_equal(out, words(expected, np.uint64))


def signed(value: int) -> int:
    return value - (1 << 128) if value >> 127 else value


def toward_zero(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def test_quotients_of_128_bits(gpu: Any) -> None:
    a, b = numbers(4)
    out = np.zeros(16 * 128, np.uint64)
    gpu.run(CARRY, "quotients", 4, 32, words(a, np.uint64), words(b, np.uint64), out)
    expected = []
    for i, (x, y) in enumerate(zip(a, (y or 7 for y in b), strict=True)):
        p, q = signed(x), signed(y)
        quotient = toward_zero(p, q)
        expected += [quotient, p - quotient * q, x // y, x % y, p >> i, x >> i, p << i, -p if p < q else q]
    np.testing.assert_array_equal(out, words(expected, np.uint64))


def test_carries_through_four_words(gpu: Any) -> None:
    a, b = numbers(2)
    out = np.zeros(12 * 128, np.uint32)
    gpu.run(CARRY, "digits", 4, 32, words(a, np.uint32), words(b, np.uint32), out)
    expected = [value for x, y in zip(a, b, strict=True) for value in (x + y, x - y, x * (y & 0xFFFFFFFF))]
    np.testing.assert_array_equal(out, words(expected, np.uint32))


def test_sines_of_large_numbers(gpu: Any) -> None:
    a = np.random.default_rng(3).standard_normal(64) * 10.0 ** np.arange(64)
    out = np.zeros((64, 3))
    gpu.run(CARRY, "waves", 2, 32, a, out)
    np.testing.assert_allclose(out, np.stack([np.sin(a), np.cos(a), np.tan(a)], 1), rtol=1e-12)
