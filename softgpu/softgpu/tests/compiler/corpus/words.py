"""Integers, edges of conversions, structs and parameters."""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import numpy as np

from softgpu.tests.compiler.corpus.case import Array, Arrays, Case, Cases, Launch, Struct, blocks

IMAGE = "cuda/words.ptx"


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def quotient(a: int, b: int) -> int:
    """As C divides."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def reverse(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def leading(value: int, bits: int) -> int:
    return bits - value.bit_length()


def first(value: int) -> int:
    """The place of the lowest set bit, from 1; 0 if there is none."""
    return (value & -value).bit_length()


def some(n: int, bits: int, seed: int) -> list[int]:
    """Of every length, and the edges."""
    random = np.random.RandomState(seed)
    lengths = random.randint(1, bits + 1, n)
    words = [int.from_bytes(random.bytes(8), "little") >> 64 - int(length) for length in lengths]
    top = 1 << bits
    return [0, 1, top - 1, top // 2, top // 2 - 1, 2, *words][:n]


def wide_results(a: int, b: int) -> list[int]:
    s, t = signed(a, 64), signed(b, 64)
    odd = signed(b | 1, 64)
    p = (a * b + (b << 64) - a) % (1 << 128)
    turn = b & 63
    return [
        a * b, a * b >> 64, s * t >> 64, a // b, a % b, quotient(s, odd), s - quotient(s, odd) * odd, p >> 64, p,
        a.bit_count() | leading(b, 64) << 8 | first(a) << 16, reverse(a, 64), s >> turn, a >> turn | a << (-b & 63),
        p // 1000003,
    ]  # fmt: skip


def wide(n: int) -> Case:
    a, b = some(n, 64, 1), some(n, 64, 2)
    b = [value or 3 for value in reversed(b)]
    return rows("wide", n, a, b, wide_results, np.uint64)


def bytes_of(value: int, sign: bool) -> list[int]:
    return [signed(value >> shift, 8) if sign else value >> shift & 255 for shift in (0, 8, 16, 24)]


def dots(a: int, b: int, start: int, sign: bool) -> int:
    return start + sum(x * y for x, y in zip(bytes_of(a, sign), bytes_of(b, sign), strict=True))


def narrow_results(a: int, b: int) -> list[int]:
    s, t, mask = signed(a, 32), signed(b, 32), 0xFFFFFFFF
    odd, both = signed(b | 1, 32), b << 32 | a
    choose = b >> 7 & 0x7777
    permuted = sum((both >> 8 * (choose >> 4 * k & 7) & 255) << 8 * k for k in range(4))
    total = a + b
    field = a >> 5 & 0x7FF
    low = field & ~(0x1FF << 7) | (b & 0x1FF) << 7
    s24, t24 = signed(a, 24), signed(b, 24)
    mixed = signed(a, 8) * signed(b, 16) + (a >> 8 & 255) - (b >> 16)
    return [
        a * b >> 32, s * t >> 32, permuted, both << (b & 31) >> 32, both >> min(a & 63, 32),
        reverse(a, 32) ^ b.bit_count() ^ leading(a, 32) << 7 ^ first(b) << 14,
        quotient(s, odd), s - quotient(s, odd) * odd, a // (b | 1), a % 12345,
        abs((s >> 2) - (t >> 2)) + a, abs(a - b) + 7, (s + t >> 1) ^ (a + b + 1 >> 1),
        s24 * t24 + (a & 0xFFFFFF) * (b & 0xFFFFFF), min(s, t) ^ max(a, b), abs(s >> 1),
        dots(a, b, 5, True), 9 + signed(a, 16) * signed(b, 8) + (s >> 16) * signed(b >> 8, 8),
        dots(a, b, 3, False), mixed, total & mask ^ a + (total >> 32), low, a & b ^ low, s >> (b & 31),
    ]  # fmt: skip


def narrow(n: int) -> Case:
    return rows("narrow", n, some(n, 32, 3), list(reversed(some(n, 32, 4))), narrow_results, np.uint32)


def rows(symbol: str, n: int, a: list[int], b: list[int], results: Any, dtype: Any) -> Case:
    mask = 2 ** (8 * np.dtype(dtype).itemsize) - 1
    columns = [[value & mask for value in results(x, y)] for x, y in zip(a, b, strict=True)]
    out = np.array(columns, dtype).T
    arrays: Arrays = {"a": np.array([v & mask for v in a], dtype), "b": np.array([v & mask for v in b], dtype)}
    launch = Launch(symbol, blocks(n, 64), 64, ["a", "b", "out", np.int32(n)])
    return Case(IMAGE, arrays | {"out": np.zeros_like(out)}, [launch], {"out": out})


def saturations(n: int) -> Case:
    random = np.random.RandomState(n)
    x = (random.standard_normal(n) * np.exp2(random.randint(-20, 70, n))).astype(np.float32)
    x[:12] = [0, -0.0, np.nan, np.inf, -np.inf, 2**31, -(2**31), 2**32, 2**63, 254.5, 255.5, -0.5]
    whole = [0 if np.isnan(v) else int(max(min(float(v), 2.0**80), -(2.0**80))) for v in x]
    i64 = np.array([max(min(v, 2**63 - 1), -(2**63)) for v in whole])
    long = np.where(np.isnan(x), np.int64(-(2**63)), i64)
    near = np.rint(np.nan_to_num(x.astype(np.float64), nan=0))
    classes = np.isnan(x) + 2 * np.isinf(x) + 4 * np.signbit(x) + 8 * np.isfinite(x)
    with np.errstate(invalid="ignore"):
        f = np.stack([np.fmin(x, 1), np.fmax(x, -1), np.clip(np.nan_to_num(x, nan=0), 0, 1), x - x, classes])
    expected = {
        "i32": np.clip(i64, -(2**31), 2**31 - 1).astype(np.int32),
        "u32": np.clip(i64, 0, 2**32 - 1).astype(np.uint32), "i64": long,
        "u8": np.clip(near, 0, 255).astype(np.uint8), "f": f.astype(np.float32),
    }  # fmt: skip
    arrays: Arrays = {"x": x} | {name: np.zeros_like(value) for name, value in expected.items()}
    return Case(IMAGE, arrays, [Launch("saturations", blocks(n, 64), 64, [*arrays, np.int32(n)])], expected)


MIXED = struct.Struct("<bBhid4f5sH9x")


def mixed(random: Any, count: int) -> list[tuple[Any, ...]]:
    """Structs; the last number holds two fields of 5 and 11 bits."""
    return [
        (
            int(random.randint(-50, 50)), int(random.randint(0, 256)),
            int(random.randint(-9999, 9999)), int(random.randint(-9999, 9999)),
            float(random.randint(-99, 99)), *(float(v) for v in random.randint(-99, 99, 4)), random.bytes(5),
            int(random.randint(0, 65536)),
        )
        for _ in range(count)
    ]  # fmt: skip


def packed(values: list[tuple[Any, ...]]) -> Array:
    return np.frombuffer(b"".join(MIXED.pack(*value) for value in values), np.uint8)


def structs(n: int) -> Case:
    random = np.random.RandomState(n)
    (m,), x = mixed(random, 1), mixed(random, n)
    out = []
    for i, (c, also, s, k, d, f0, f1, f2, f3, small, bits) in enumerate(x):
        small = bytes(m[9][(i + 1) % 5] if at == i % 5 else byte for at, byte in enumerate(small))
        fields = bits + m[10] & 31 | (m[10] >> 5) - i << 5 & 0xFFE0
        out.append(
            (signed(c + m[0], 8), also ^ m[1], s - m[2], k ^ m[3], d + m[4], f0, f1, f2 + m[8], f3, small, fields)
        )
    pair, byte = random.randint(-99, 99, (n, 2)), random.randint(0, 256, (n, 4)).astype(np.uint8)
    reals = random.standard_normal((n, 2))
    arrays: Arrays = {"x": packed(x), "out": packed(x) * 0, "pair": pair, "bytes": byte, "reals": reals}
    turned = byte[:, ::-1].copy()
    turned[:, 1] += 1
    expected = {
        "out": packed(out), "pair": pair[:, ::-1] + [0, 1], "bytes": turned, "reals": reals[:, ::-1] * [1, -1]
    }  # fmt: skip
    launch = Launch("structs", blocks(n, 32), 32, [Struct(MIXED.pack(*m)), *arrays, np.int32(n)])
    return Case(IMAGE, arrays, [launch], expected)


def parameters(n: int) -> Case:
    table = np.random.RandomState(n).randint(0, 2**32, 1000, np.int64).astype(np.uint32)
    out = table[np.arange(n) * 7 % 1000] + table[300:301] * np.uint32(77)
    args = [Struct(table.tobytes()), "out", np.uint16(300), np.uint8(77), np.uint32(n)]
    return Case(IMAGE, {"out": out * 0}, [Launch("parameters", blocks(n, 96), 96, args)], {"out": out})


CASES: Cases = {
    "wide": partial(wide, 300),
    "narrow": partial(narrow, 300),
    "saturations": partial(saturations, 200),
    "structs": partial(structs, 70),
    "parameters": partial(parameters, 500),
}
