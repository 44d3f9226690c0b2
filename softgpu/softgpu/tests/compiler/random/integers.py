"""Instructions on integers, lane by lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from softgpu.tests.compiler.random.ops import Array, clip, define, signed, unsigned


def _on_signed(compute: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *operands: unsigned(compute(*(signed(a) for a in operands)))


def _exactly(bits: int, sign: bool, compute: Callable[..., Any]) -> Callable[..., Array]:
    """On Python's unbounded integers; the result is cut to so many bits."""

    def each(*operands: Array) -> Array:
        wide = [(signed(a) if sign else a).astype(object) for a in operands]
        return np.asarray(compute(*wide) & ((1 << bits) - 1), object).astype(f"u{bits // 8}")

    return each


def _shift(a: Array, by: Array, name: str) -> Any:
    """PTX shifts by at most the width."""
    bits = 8 * a.dtype.itemsize
    amount = np.minimum(by, bits - 1).astype(a.dtype)
    if name == "s":
        return unsigned(signed(a) >> signed(amount))
    return np.where(by >= bits, a.dtype.type(0), a << amount if name == "l" else a >> amount)


def _truth(function: int, a: Array, b: Array, c: Array) -> Array:
    out = np.zeros_like(a)
    for place in range(8):
        if function >> place & 1:
            out |= (a if place & 4 else ~a) & (b if place & 2 else ~b) & (c if place & 1 else ~c)
    return out


def _permute(a: Array, b: Array, c: Array) -> Array:
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    out = np.zeros_like(a)
    for place in range(4):
        pick = (c >> np.uint32(4 * place) & np.uint32(15)).astype(np.uint64)
        byte = whole >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        byte = np.where(pick & np.uint64(8), np.where(byte & np.uint64(128), 255, 0), byte)
        out |= byte.astype(np.uint32) << np.uint32(8 * place)
    return out


def _extract(a: Array, at: Array, count: Array, sign: bool) -> Array:
    bits, one = 8 * a.dtype.itemsize, a.dtype.type(1)
    at, count = (at & np.uint32(255)).astype(int), (count & np.uint32(255)).astype(int)
    last = np.minimum(at + count - 1, bits - 1).clip(0).astype(a.dtype)
    fill = (a >> last & one) * (count > 0) if sign else np.zeros_like(a)
    out = np.zeros_like(a)
    for place in range(bits):
        inside = (place < count) & (at + place < bits)
        bit = np.where(inside, a >> np.minimum(at + place, bits - 1).astype(a.dtype) & one, fill)
        out |= bit.astype(a.dtype) << a.dtype.type(place)
    return out


def _insert(a: Array, b: Array, at: Array, count: int) -> Array:
    bits, one, out = 8 * a.dtype.itemsize, a.dtype.type(1), b.copy()
    at = (at & np.uint32(255)).astype(int)
    for place in range(bits):
        inside = (at <= place) & (place < at + count)
        bit = a >> np.clip(place - at, 0, bits - 1).astype(a.dtype) & one
        out = np.where(inside, (out & ~(one << a.dtype.type(place))) | bit << a.dtype.type(place), out)
    return out


def _each_bit(a: Array, of_one: Callable[[int, int], int]) -> Array:
    bits = 8 * a.dtype.itemsize
    return np.array([of_one(int(x), bits) & 0xFFFFFFFF for x in a.ravel()], np.uint32).reshape(a.shape)


def _highest(a: Array, sign: bool) -> Array:
    def of_one(x: int, bits: int) -> int:
        return ((x ^ (1 << bits) - 1) if sign and x >> (bits - 1) else x).bit_length() - 1

    return _each_bit(a, of_one)


def _funnel(a: Array, b: Array, c: Array, left: bool, wrap: bool) -> Array:
    whole = a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32)
    by = (c & np.uint32(31) if wrap else np.minimum(c, 32)).astype(np.uint64)
    if left:
        return (whole << by >> np.uint64(32)).astype(np.uint32)
    return (whole >> by).astype(np.uint32)


def _dot(a: Array, b: Array, c: Array, sign: bool) -> Any:
    kind = np.int8 if sign else np.uint8
    left, right = (np.ascontiguousarray(x).view(kind).astype(np.int64).reshape(*x.shape, 4) for x in (a, b))
    return ((left * right).sum(-1) + c.astype(np.int64)).astype(np.uint32)


def _dot_halves(a: Array, b: Array, c: Array, sign: bool) -> Any:
    """The two halves of a times the low two bytes of b."""
    half, byte = (np.int16, np.int8) if sign else (np.uint16, np.uint8)
    left = np.ascontiguousarray(a).view(half).astype(np.int64).reshape(*a.shape, 2)
    right = np.ascontiguousarray(b).view(byte).astype(np.int64).reshape(*b.shape, 4)[..., :2]
    return ((left * right).sum(-1) + c.astype(np.int64)).astype(np.uint32)


# --- integers

for _kind, _bits in (("h", 16), ("r", 32), ("d", 64)):
    for _sign, _letter in ((False, "u"), (True, "s")):
        _t = f"{_letter}{_bits}"
        _on = _on_signed if _sign else lambda compute: compute
        define(f"add.{_t}", _kind, _kind * 2, lambda a, b: a + b)
        define(f"sub.{_t}", _kind, _kind * 2, lambda a, b: a - b)
        define(f"mul.lo.{_t}", _kind, _kind * 2, lambda a, b: a * b)
        define(f"mad.lo.{_t}", _kind, _kind * 3, lambda a, b, c: a * b + c)
        define(f"mul.hi.{_t}", _kind, _kind * 2, _exactly(_bits, _sign, lambda a, b, n=_bits: a * b >> n))
        define(f"mad.hi.{_t}", _kind, _kind * 3, _exactly(_bits, _sign, lambda a, b, c, n=_bits: (a * b >> n) + c))
        define(f"min.{_t}", _kind, _kind * 2, _on(np.minimum))
        define(f"max.{_t}", _kind, _kind * 2, _on(np.maximum))
        define(f"sad.{_t}", _kind, _kind * 3, _exactly(_bits, _sign, lambda a, b, c: abs(a - b) + c))
        define(f"shr.{_t}", _kind, _kind + "r", lambda a, b, n="s" if _sign else "r": _shift(a, b, n))
        if _bits < 64:
            _wide = "r" if _bits == 16 else "d"
            define(f"mul.wide.{_t}", _wide, _kind * 2, _exactly(2 * _bits, _sign, lambda a, b: a * b))
            define(
                f"mad.wide.{_t}",
                _wide,
                _kind * 2 + _wide,
                _exactly(2 * _bits, _sign, lambda a, b, c: a * b + c),
            )
        if _sign:
            define(f"neg.{_t}", _kind, _kind, lambda a: ~a + a.dtype.type(1))
            define(f"abs.{_t}", _kind, _kind, _exactly(_bits, True, abs))
        if _bits > 16:
            _divisor = f"or.b{_bits} {'%t' if _bits == 32 else '%w'}, {{b}}, 1;"
            _temp = "%t" if _bits == 32 else "%w"
            _small = f"and.b{_bits} {_temp}, {{b}}, 255;"
            _again = f"or.b{_bits} {_temp}, {_temp}, 1;"

            def _divide(a: Array, b: Array) -> Any:
                by = (b & b.dtype.type(255)) | b.dtype.type(1)
                return a // by

            def _divide_signed(a: Array, b: Array) -> Any:
                by = signed((b & b.dtype.type(255)) | b.dtype.type(1)).astype(object)
                wide = signed(a).astype(object)
                quotient = np.where(wide < 0, -(-wide // by), wide // by)
                return (quotient & ((1 << 8 * a.dtype.itemsize) - 1)).astype(a.dtype)

            _quotient = _divide_signed if _sign else _divide

            def _remainder(a: Array, b: Array, quotient: Callable[..., Array] = _quotient) -> Any:
                by = (b & b.dtype.type(255)) | b.dtype.type(1)
                return a - quotient(a, b) * by

            define(f"div.{_t} {{d}}, {{a}}, {_temp};", _kind, _kind * 2, _quotient, _small, _again)
            define(f"rem.{_t} {{d}}, {{a}}, {_temp};", _kind, _kind * 2, _remainder, _small, _again)
            define(f"bfind.{_t}", "r", _kind, lambda a, s=_sign: _highest(a, s))
            define(f"bfe.{_t}", _kind, _kind + "rr", lambda a, b, c, s=_sign: _extract(a, b, c, s))
    _b = f"b{_bits}"
    define(f"and.{_b}", _kind, _kind * 2, lambda a, b: a & b)
    define(f"or.{_b}", _kind, _kind * 2, lambda a, b: a | b)
    define(f"xor.{_b}", _kind, _kind * 2, lambda a, b: a ^ b)
    define(f"not.{_b}", _kind, _kind, lambda a: ~a)
    define(f"cnot.{_b}", _kind, _kind, lambda a: (a == 0).astype(a.dtype))
    define(f"shl.{_b}", _kind, _kind + "r", lambda a, b: _shift(a, b, "l"))
    define(f"selp.{_b}", _kind, _kind * 2 + "p", lambda a, b, c: np.where(c, a, b))
    define(f"slct.{_b}.s32", _kind, _kind * 2 + "r", lambda a, b, c: np.where(signed(c) >= 0, a, b))
    define(f"mov.{_b}", _kind, _kind, lambda a: a)
    if _bits > 16:
        define(f"popc.{_b}", "r", _kind, lambda a: _each_bit(a, lambda x, _: x.bit_count()))
        define(f"clz.{_b}", "r", _kind, lambda a: _each_bit(a, lambda x, n: n - x.bit_length()))
        define(f"bfi.{_b} {{d}}, {{a}}, {{b}}, {{c}}, 5;", _kind, _kind * 2 + "r", lambda a, b, c: _insert(a, b, c, 5))
        define(
            f"bfi.{_b} {{d}}, {{a}}, {{b}}, {{c}}, 40;", _kind, _kind * 2 + "r", lambda a, b, c: _insert(a, b, c, 40)
        )

define("brev.b32", "r", "r", lambda a: _each_bit(a, lambda x, n: int(f"{x:0{n}b}"[::-1], 2)))
for _function in (0x96, 0xE8, 0xCA, 0x1B):
    define(
        f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {_function};",
        "r",
        "rrr",
        lambda a, b, c, f=_function: _truth(f, a, b, c),
    )
define("prmt.b32", "r", "rrr", _permute)
define("shf.l.wrap.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, True, True))
define("shf.r.wrap.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, False, True))
define("shf.l.clamp.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, True, False))
define("shf.r.clamp.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, False, False))
define("dp4a.u32.u32", "r", "rrr", lambda a, b, c: _dot(a, b, c, False))
define("dp4a.s32.s32", "r", "rrr", lambda a, b, c: _dot(a, b, c, True))
_24 = 0xFFFFFF
define("mul24.lo.u32", "r", "rr", _exactly(32, False, lambda a, b: (a & _24) * (b & _24)))
define("mul24.hi.u32", "r", "rr", _exactly(32, False, lambda a, b: (a & _24) * (b & _24) >> 16))
define("mad24.lo.u32", "r", "rrr", _exactly(32, False, lambda a, b, c: (a & _24) * (b & _24) + c))


def _low24(a: int) -> int:
    return ((a & _24) ^ 0x800000) - 0x800000


define("mul24.lo.s32", "r", "rr", _exactly(32, True, np.frompyfunc(lambda a, b: _low24(a) * _low24(b), 2, 1)))
define("mul24.hi.s32", "r", "rr", _exactly(32, True, np.frompyfunc(lambda a, b: _low24(a) * _low24(b) >> 16, 2, 1)))
define(
    "mad24.hi.s32",
    "r",
    "rrr",
    _exactly(32, True, np.frompyfunc(lambda a, b, c: (_low24(a) * _low24(b) >> 16) + c, 3, 1)),
)
for _name, _count in (("clamp", lambda b: min(b, 32)), ("wrap", lambda b: b & 31)):
    define(
        f"szext.{_name}.u32",
        "r",
        "rr",
        _exactly(32, False, np.frompyfunc(lambda a, b, n=_count: a & ((1 << n(b)) - 1), 2, 1)),
    )
for _half, _by in (("lo", 0), ("hi", 16)):
    for _sign, _t in ((False, "u32"), (True, "s32")):
        define(
            f"dp2a.{_half}.{_t}.{_t}",
            "r",
            "rrr",
            lambda a, b, c, n=_by, s=_sign: _dot_halves(a, b >> np.uint32(n), c, s),
        )
define("add.sat.s32", "r", "rr", _exactly(32, True, lambda a, b: clip(-(1 << 31), (1 << 31) - 1)(a + b)))
define("sub.sat.s32", "r", "rr", _exactly(32, True, lambda a, b: clip(-(1 << 31), (1 << 31) - 1)(a - b)))

# --- more than one register for a number


def _halves(whole: Array) -> tuple[Array, Array]:
    return whole.astype(np.uint32), (whole >> np.uint64(32)).astype(np.uint32)


def _u64(a: Array) -> Array:
    return a.astype(np.uint64)


define("mov.b64 {d}, {{{a}, {b}}};", "d", "rr", lambda a, b: _u64(a) | _u64(b) << np.uint64(32))
define("mov.b64 {{{d}, {e}}}, {a};", "rr", "d", _halves)
define("mov.b32 {d}, {{{a}, {b}}};", "r", "hh", lambda a, b: a.astype(np.uint32) | b.astype(np.uint32) << np.uint32(16))
define("mov.b32 {{{d}, {e}}}, {a};", "hh", "r", lambda a: (a.astype(np.uint16), (a >> np.uint32(16)).astype(np.uint16)))
define("mov.b32 {d}, %t;", "r", "rrr", lambda a, b, c: (_u64(a) + _u64(b) >> np.uint64(32)).astype(np.uint32) + c,
    "add.cc.u32 %t, {a}, {b};", "addc.u32 %t, {c}, 0;")  # fmt: skip
define("madc.hi.u32 {d}, {a}, {b}, 7;", "r", "rrr",
    lambda a, b, c: (_u64(a) * _u64(b) + _u64(c) >> np.uint64(32)).astype(np.uint32) + np.uint32(7),
    "mad.lo.cc.u32 %t, {a}, {b}, {c};")  # fmt: skip
define("subc.u32 {d}, {c}, 3;", "r", "rrr", lambda a, b, c: c - np.uint32(3) - (a < b).astype(np.uint32),
    "sub.cc.u32 %t, {a}, {b};")  # fmt: skip
