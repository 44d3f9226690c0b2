"""The instructions of random programs that each lane does by itself: their PTX, and what they compute, in NumPy.

Kinds of registers: r, d, h are integers of 32, 64 and 16 bits, f, g, x are f32, f64, f16, p is a predicate.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
DTYPES: dict[str, Any] = {
    "r": np.uint32, "d": np.uint64, "h": np.uint16, "f": np.float32, "g": np.float64, "x": np.float16, "p": np.bool_,
}  # fmt: skip
BITS = {"r": 32, "d": 64, "h": 16, "f": 32, "g": 64, "x": 16}


@dataclass(frozen=True)
class Op:
    """text: lines with {d}, {e} for the results and {a}, {b}, {c} for the operands; only the last writes a result
    unless there are two. Lines before it may use the temporaries %t, %s (32 bits), %w (64 bits) and %q."""

    text: tuple[str, ...]
    results: str
    operands: str
    compute: Callable[..., Any]


OPS: dict[str, Op] = {}


def _op(name: str, results: str, operands: str, compute: Callable[..., Any], *before: str) -> None:
    """An instruction `name d, [e,] a, b, c;`, or one that is spelt out where name has operands."""
    last = (
        name
        if "{" in name
        else f"{name} {', '.join('{' + x + '}' for x in 'de'[: len(results)] + 'abc'[: len(operands)])};"
    )
    OPS[name if not before else f"{before[0]} {name}"] = Op((*before, last), results, operands, compute)


def signed(a: Array) -> Array:
    return a.view(f"i{a.dtype.itemsize}")


def unsigned(a: Array) -> Array:
    return a.view(f"u{a.dtype.itemsize}")


def _on_signed(compute: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *operands: unsigned(compute(*(signed(a) for a in operands)))


def _exactly(bits: int, sign: bool, compute: Callable[..., Any]) -> Callable[..., Array]:
    """On Python's unbounded integers; the result is cut to so many bits."""

    def each(*operands: Array) -> Array:
        wide = [(signed(a) if sign else a).astype(object) for a in operands]
        return np.asarray(compute(*wide) & ((1 << bits) - 1), object).astype(f"u{bits // 8}")

    return each


def _clip(low: int, high: int) -> Callable[[Any], Any]:
    return lambda a: np.minimum(np.maximum(a, low), high)


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


def _each_bit(a: Array, tell: Callable[[int, int], int]) -> Array:
    bits = 8 * a.dtype.itemsize
    return np.array([tell(int(x), bits) & 0xFFFFFFFF for x in a.ravel()], np.uint32).reshape(a.shape)


def _highest(a: Array, sign: bool) -> Array:
    def tell(x: int, bits: int) -> int:
        return ((x ^ (1 << bits) - 1) if sign and x >> (bits - 1) else x).bit_length() - 1

    return _each_bit(a, tell)


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
        _op(f"add.{_t}", _kind, _kind * 2, lambda a, b: a + b)
        _op(f"sub.{_t}", _kind, _kind * 2, lambda a, b: a - b)
        _op(f"mul.lo.{_t}", _kind, _kind * 2, lambda a, b: a * b)
        _op(f"mad.lo.{_t}", _kind, _kind * 3, lambda a, b, c: a * b + c)
        _op(f"mul.hi.{_t}", _kind, _kind * 2, _exactly(_bits, _sign, lambda a, b, n=_bits: a * b >> n))
        _op(f"mad.hi.{_t}", _kind, _kind * 3, _exactly(_bits, _sign, lambda a, b, c, n=_bits: (a * b >> n) + c))
        _op(f"min.{_t}", _kind, _kind * 2, _on(np.minimum))
        _op(f"max.{_t}", _kind, _kind * 2, _on(np.maximum))
        _op(f"sad.{_t}", _kind, _kind * 3, _exactly(_bits, _sign, lambda a, b, c: abs(a - b) + c))
        _op(f"shr.{_t}", _kind, _kind + "r", lambda a, b, n="s" if _sign else "r": _shift(a, b, n))
        if _bits < 64:
            _wide = "r" if _bits == 16 else "d"
            _op(f"mul.wide.{_t}", _wide, _kind * 2, _exactly(2 * _bits, _sign, lambda a, b: a * b))
            _op(
                f"mad.wide.{_t}",
                _wide,
                _kind * 2 + _wide,
                _exactly(2 * _bits, _sign, lambda a, b, c: a * b + c),
            )
        if _sign:
            _op(f"neg.{_t}", _kind, _kind, lambda a: ~a + a.dtype.type(1))
            _op(f"abs.{_t}", _kind, _kind, _exactly(_bits, True, abs))
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

            _op(f"div.{_t} {{d}}, {{a}}, {_temp};", _kind, _kind * 2, _quotient, _small, _again)
            _op(f"rem.{_t} {{d}}, {{a}}, {_temp};", _kind, _kind * 2, _remainder, _small, _again)
            _op(f"bfind.{_t}", "r", _kind, lambda a, s=_sign: _highest(a, s))
            _op(f"bfe.{_t}", _kind, _kind + "rr", lambda a, b, c, s=_sign: _extract(a, b, c, s))
    _b = f"b{_bits}"
    _op(f"and.{_b}", _kind, _kind * 2, lambda a, b: a & b)
    _op(f"or.{_b}", _kind, _kind * 2, lambda a, b: a | b)
    _op(f"xor.{_b}", _kind, _kind * 2, lambda a, b: a ^ b)
    _op(f"not.{_b}", _kind, _kind, lambda a: ~a)
    _op(f"cnot.{_b}", _kind, _kind, lambda a: (a == 0).astype(a.dtype))
    _op(f"shl.{_b}", _kind, _kind + "r", lambda a, b: _shift(a, b, "l"))
    _op(f"selp.{_b}", _kind, _kind * 2 + "p", lambda a, b, c: np.where(c, a, b))
    _op(f"slct.{_b}.s32", _kind, _kind * 2 + "r", lambda a, b, c: np.where(signed(c) >= 0, a, b))
    _op(f"mov.{_b}", _kind, _kind, lambda a: a)
    if _bits > 16:
        _op(f"popc.{_b}", "r", _kind, lambda a: _each_bit(a, lambda x, _: x.bit_count()))
        _op(f"clz.{_b}", "r", _kind, lambda a: _each_bit(a, lambda x, n: n - x.bit_length()))
        _op(f"bfi.{_b} {{d}}, {{a}}, {{b}}, {{c}}, 5;", _kind, _kind * 2 + "r", lambda a, b, c: _insert(a, b, c, 5))
        _op(f"bfi.{_b} {{d}}, {{a}}, {{b}}, {{c}}, 40;", _kind, _kind * 2 + "r", lambda a, b, c: _insert(a, b, c, 40))

_op("brev.b32", "r", "r", lambda a: _each_bit(a, lambda x, n: int(f"{x:0{n}b}"[::-1], 2)))
for _function in (0x96, 0xE8, 0xCA, 0x1B):
    _op(
        f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {_function};",
        "r",
        "rrr",
        lambda a, b, c, f=_function: _truth(f, a, b, c),
    )
_op("prmt.b32", "r", "rrr", _permute)
_op("shf.l.wrap.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, True, True))
_op("shf.r.wrap.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, False, True))
_op("shf.l.clamp.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, True, False))
_op("shf.r.clamp.b32", "r", "rrr", lambda a, b, c: _funnel(a, b, c, False, False))
_op("dp4a.u32.u32", "r", "rrr", lambda a, b, c: _dot(a, b, c, False))
_op("dp4a.s32.s32", "r", "rrr", lambda a, b, c: _dot(a, b, c, True))
_24 = 0xFFFFFF
_op("mul24.lo.u32", "r", "rr", _exactly(32, False, lambda a, b: (a & _24) * (b & _24)))
_op("mul24.hi.u32", "r", "rr", _exactly(32, False, lambda a, b: (a & _24) * (b & _24) >> 16))
_op("mad24.lo.u32", "r", "rrr", _exactly(32, False, lambda a, b, c: (a & _24) * (b & _24) + c))


def _low24(a: int) -> int:
    return ((a & _24) ^ 0x800000) - 0x800000


_op("mul24.lo.s32", "r", "rr", _exactly(32, True, np.frompyfunc(lambda a, b: _low24(a) * _low24(b), 2, 1)))
_op("mul24.hi.s32", "r", "rr", _exactly(32, True, np.frompyfunc(lambda a, b: _low24(a) * _low24(b) >> 16, 2, 1)))
_op(
    "mad24.hi.s32",
    "r",
    "rrr",
    _exactly(32, True, np.frompyfunc(lambda a, b, c: (_low24(a) * _low24(b) >> 16) + c, 3, 1)),
)
for _name, _count in (("clamp", lambda b: min(b, 32)), ("wrap", lambda b: b & 31)):
    _op(
        f"szext.{_name}.u32",
        "r",
        "rr",
        _exactly(32, False, np.frompyfunc(lambda a, b, n=_count: a & ((1 << n(b)) - 1), 2, 1)),
    )
for _half, _by in (("lo", 0), ("hi", 16)):
    for _sign, _t in ((False, "u32"), (True, "s32")):
        _op(
            f"dp2a.{_half}.{_t}.{_t}",
            "r",
            "rrr",
            lambda a, b, c, n=_by, s=_sign: _dot_halves(a, b >> np.uint32(n), c, s),
        )
_op("add.sat.s32", "r", "rr", _exactly(32, True, lambda a, b: _clip(-(1 << 31), (1 << 31) - 1)(a + b)))
_op("sub.sat.s32", "r", "rr", _exactly(32, True, lambda a, b: _clip(-(1 << 31), (1 << 31) - 1)(a - b)))

# --- more than one register for a number


def _halves(whole: Array) -> tuple[Array, Array]:
    return whole.astype(np.uint32), (whole >> np.uint64(32)).astype(np.uint32)


def _u64(a: Array) -> Array:
    return a.astype(np.uint64)


_op("mov.b64 {d}, {{{a}, {b}}};", "d", "rr", lambda a, b: _u64(a) | _u64(b) << np.uint64(32))
_op("mov.b64 {{{d}, {e}}}, {a};", "rr", "d", _halves)
_op("mov.b32 {d}, {{{a}, {b}}};", "r", "hh", lambda a, b: a.astype(np.uint32) | b.astype(np.uint32) << np.uint32(16))
_op("mov.b32 {{{d}, {e}}}, {a};", "hh", "r", lambda a: (a.astype(np.uint16), (a >> np.uint32(16)).astype(np.uint16)))
_op("mov.b32 {d}, %t;", "r", "rrr", lambda a, b, c: (_u64(a) + _u64(b) >> np.uint64(32)).astype(np.uint32) + c,
    "add.cc.u32 %t, {a}, {b};", "addc.u32 %t, {c}, 0;")  # fmt: skip
_op("madc.hi.u32 {d}, {a}, {b}, 7;", "r", "rrr",
    lambda a, b, c: (_u64(a) * _u64(b) + _u64(c) >> np.uint64(32)).astype(np.uint32) + np.uint32(7),
    "mad.lo.cc.u32 %t, {a}, {b}, {c};")  # fmt: skip
_op("subc.u32 {d}, {c}, 3;", "r", "rrr", lambda a, b, c: c - np.uint32(3) - (a < b).astype(np.uint32),
    "sub.cc.u32 %t, {a}, {b};")  # fmt: skip

# --- comparisons and predicates

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor,
}  # fmt: skip
for _type, _kind in (
    ("u16", "h"),
    ("s16", "h"),
    ("u32", "r"),
    ("s32", "r"),
    ("u64", "d"),
    ("s64", "d"),
    ("f32", "f"),
    ("f64", "g"),
    ("f16", "x"),
):
    _seen = signed if _type[0] == "s" else lambda a: a
    for _name, _test in _COMPARE.items():
        _op(f"setp.{_name}.{_type}", "p", _kind * 2, lambda a, b, t=_test, s=_seen: t(s(a), s(b)))
    if _type in ("s32", "u32", "f32"):
        for _name, _combine in _COMBINE.items():
            _both = lambda a, b, c, k=_combine, s=_seen: (k(s(a) < s(b), c), k(~(s(a) < s(b)), c))  # noqa: E731
            _op(f"setp.lt.{_name}.{_type} {{d}}|{{e}}, {{a}}, {{b}}, {{c}};", "pp", _kind * 2 + "p", _both)
            _op(f"setp.lt.{_name}.{_type} {{d}}, {{a}}, {{b}}, !{{c}};", "p", _kind * 2 + "p",
                lambda a, b, c, k=_combine, s=_seen: k(s(a) < s(b), ~c))  # fmt: skip
        _op(
            f"set.ge.u32.{_type}",
            "r",
            _kind * 2,
            lambda a, b, s=_seen: np.where(s(a) >= s(b), np.uint32(0xFFFFFFFF), np.uint32(0)),
        )
for _type, _kind in (("f32", "f"), ("f64", "g")):
    _op(f"setp.num.{_type}", "p", _kind * 2, lambda a, b: ~(np.isnan(a) | np.isnan(b)))
    _op(f"setp.nan.{_type}", "p", _kind * 2, lambda a, b: np.isnan(a) | np.isnan(b))
    for _name in ("lt", "ge", "eq", "ne"):
        _op(f"setp.{_name}u.{_type}", "p", _kind * 2,
            lambda a, b, t=_COMPARE[_name]: t(a, b) | np.isnan(a) | np.isnan(b))  # fmt: skip
# an ordered comparison is false where a number is none, also "ne", which NumPy finds true
for _type in ("f32", "f64", "f16"):
    _old = OPS[f"setp.ne.{_type}"]
    OPS[f"setp.ne.{_type}"] = Op(_old.text, "p", _old.operands, lambda a, b: (a < b) | (a > b))
_op("set.lt.f32.s32", "f", "rr", lambda a, b: (signed(a) < signed(b)).astype(np.float32))
_op("and.pred", "p", "pp", np.logical_and)
_op("or.pred", "p", "pp", np.logical_or)
_op("xor.pred", "p", "pp", np.logical_xor)
_op("not.pred", "p", "p", np.logical_not)
_op("mov.pred", "p", "p", lambda a: a)

# --- numbers with a fraction

_libm = ctypes.CDLL("libm.so.6")
_libm.fma.argtypes, _libm.fma.restype = [ctypes.c_double] * 3, ctypes.c_double
_libm.fmaf.argtypes, _libm.fmaf.restype = [ctypes.c_float] * 3, ctypes.c_float


def _fused(function: Any, dtype: Any) -> Callable[..., Array]:
    def compute(a: Array, b: Array, c: Array) -> Array:
        flat = zip(a.ravel().tolist(), b.ravel().tolist(), c.ravel().tolist(), strict=True)
        return np.array([function(*three) for three in flat], dtype).reshape(a.shape)

    return compute


def _extreme(a: Array, b: Array, lesser: bool) -> Array:
    """The number of the two where one is none; -0 lies below +0."""
    first = (a < b) | ((a == b) & np.signbit(a)) if lesser else (a > b) | ((a == b) & ~np.signbit(a))
    return np.where(np.isnan(a), b, np.where(np.isnan(b) | first, a, b))


def _directed(near: Array, rest: Array, mode: str) -> Array:
    """near + rest, two doubles whose sum is exact, as a float rounded to zero, down or up."""
    out = near.astype(np.float32)
    left = np.where(np.isfinite(near), (near - out.astype(np.float64)) + rest, 0)
    down = {"rm": left < 0, "rp": np.zeros_like(left, bool), "rz": np.where(near > 0, left < 0, False)}[mode]
    up = {"rp": left > 0, "rm": np.zeros_like(left, bool), "rz": np.where(near < 0, left > 0, False)}[mode]
    out = np.where(down, np.nextafter(out, np.float32(-np.inf)), out)
    return np.where(up, np.nextafter(out, np.float32(np.inf)), out)


def _sum(a: Array, b: Array, mode: str) -> Array:
    x, y = a.astype(np.float64), b.astype(np.float64)
    near = x + y
    part = near - x
    return _directed(near, np.where(np.isfinite(near), (x - (near - part)) + (y - part), 0), mode)


def _saturated(a: Array) -> Any:
    return np.where(np.isnan(a), a.dtype.type(0), np.clip(a, 0, 1) + a.dtype.type(0))


for _type, _kind in (("f32", "f"), ("f64", "g"), ("f16", "x")):
    _rn = "" if _kind == "x" else ".rn"
    _op(f"add{_rn}.{_type}", _kind, _kind * 2, lambda a, b: a + b)
    _op(f"sub{_rn}.{_type}", _kind, _kind * 2, lambda a, b: a - b)
    _op(f"mul{_rn}.{_type}", _kind, _kind * 2, lambda a, b: a * b)
    _op(f"min.{_type}", _kind, _kind * 2, lambda a, b: _extreme(a, b, True))
    _op(f"max.{_type}", _kind, _kind * 2, lambda a, b: _extreme(a, b, False))
    _op(f"neg.{_type}", _kind, _kind, lambda a: -a)
    _op(f"abs.{_type}", _kind, _kind, np.abs)
    if _kind != "x":
        _op(f"mov.{_type}", _kind, _kind, lambda a: a)
        _op(f"selp.{_type}", _kind, _kind * 2 + "p", lambda a, b, c: np.where(c, a, b))
        _op(f"div.rn.{_type}", _kind, _kind * 2, lambda a, b: a / b)
        _op(f"sqrt.rn.{_type}", _kind, _kind, np.sqrt)
        _op(f"rcp.rn.{_type}", _kind, _kind, lambda a: a.dtype.type(1) / a)
        _op(f"copysign.{_type}", _kind, _kind * 2, lambda a, b: np.copysign(b, a))
        _op(f"testp.finite.{_type}", "p", _kind, np.isfinite)
        _op(f"testp.infinite.{_type}", "p", _kind, np.isinf)
        _op(f"testp.subnormal.{_type}", "p", _kind, lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny))
_op("fma.rn.f32", "f", "fff", _fused(_libm.fmaf, np.float32))
_op("fma.rn.f64", "g", "ggg", _fused(_libm.fma, np.float64))
_op("add.sat.f32", "f", "ff", lambda a, b: _saturated(a + b))
_op("mul.sat.f32", "f", "ff", lambda a, b: _saturated(a * b))
for _mode in ("rz", "rp"):
    _op(f"add.{_mode}.f32", "f", "ff", lambda a, b, m=_mode: _sum(a, b, m))
for _mode in ("rz", "rp", "rm"):
    _op(f"mul.{_mode}.f32", "f", "ff",
        lambda a, b, m=_mode: _directed(a.astype(np.float64) * b, np.zeros(a.shape), m))  # fmt: skip
    _op(f"cvt.{_mode}.f32.f64", "f", "g", lambda a, m=_mode: _directed(a, np.zeros(a.shape), m))

_op("fma.rn.sat.f32", "f", "fff", lambda a, b, c: _saturated(_fused(_libm.fmaf, np.float32)(a, b, c)))
_op(
    "min.NaN.f32", "f", "ff", lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), _extreme(a, b, True))
)
_op(
    "max.NaN.f32",
    "f",
    "ff",
    lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), _extreme(a, b, False)),
)

# --- conversions

_op("cvt.sat.f32.f32", "f", "f", _saturated)
_op("cvt.rn.f32.u8", "f", "r", lambda a: (a & np.uint32(255)).astype(np.float32))
_op("cvt.rn.f64.s16", "g", "h", lambda a: signed(a).astype(np.float64))
_op("cvt.rzi.u16.f32 {d}, %ff;", "h", "f", lambda a: _to_integer(_number(a), 16, False, np.trunc),
    "setp.num.f32 %q, {a}, {a};", "selp.f32 %ff, {a}, 0f00000000, %q;")  # fmt: skip

_op("cvt.rn.f32.f64", "f", "g", lambda a: a.astype(np.float32))
_op("cvt.f64.f32", "g", "f", lambda a: a.astype(np.float64))
_op("cvt.rn.f16.f32", "x", "f", lambda a: a.astype(np.float16))
_op("cvt.rn.f16.f64", "x", "g", lambda a: a.astype(np.float16))
_op("cvt.f32.f16", "f", "x", lambda a: a.astype(np.float32))
_WHOLE: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
for _name, _whole in _WHOLE.items():
    _op(f"cvt.{_name}.f32.f32", "f", "f", _whole)
    _op(f"cvt.{_name}.f64.f64", "g", "g", _whole)


def _to_integer(a: Array, bits: int, sign: bool, whole: Callable[[Array], Array]) -> Array:
    """The nearest end of the range where a lies beyond it. What is no number is not asked for."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if sign else (0, (1 << bits) - 1)

    def one(value: float) -> int:
        return (low if value < 0 else high) if math.isinf(value) else min(max(int(value), low), high)

    values = whole(a).astype(np.float64).ravel().tolist()
    return np.array([one(value) & ((1 << bits) - 1) for value in values], f"u{bits // 8}").reshape(a.shape)


def _number(a: Array) -> Array:
    return np.where(np.isnan(a), a.dtype.type(0), a)


for _bits, _kind in ((32, "r"), (64, "d")):
    for _sign, _letter in ((False, "u"), (True, "s")):
        _t = f"{_letter}{_bits}"
        _seen = signed if _sign else lambda a: a
        for _type, _real, _dtype in (("f32", "f", np.float32), ("f64", "g", np.float64)):
            _op(f"cvt.rn.{_type}.{_t}", _real, _kind, lambda a, s=_seen, t=_dtype: s(a).astype(t))
            for _name, _whole in _WHOLE.items():
                # what no number becomes differs from type to type
                _zero, _temp = ("0f00000000", "%ff") if _real == "f" else ("0d0000000000000000", "%gg")
                _op(f"cvt.{_name}.{_t}.{_type} {{d}}, {_temp};", _kind, _real,
                    lambda a, n=_bits, s=_sign, w=_whole: _to_integer(_number(a), n, s, w),
                    f"setp.num.{_type} %q, {{a}}, {{a}};", f"selp.{_type} {_temp}, {{a}}, {_zero}, %q;")  # fmt: skip
_op("cvt.rn.f16.s32", "x", "r", lambda a: signed(a).astype(np.float16))
_op("cvt.rn.f16.u16", "x", "h", lambda a: a.astype(np.float16))
_op("cvt.u64.u32", "d", "r", lambda a: a.astype(np.uint64))
_op("cvt.s64.s32", "d", "r", lambda a: unsigned(signed(a).astype(np.int64)))
_op("cvt.u32.u64", "r", "d", lambda a: a.astype(np.uint32))
_op("cvt.u32.u16", "r", "h", lambda a: a.astype(np.uint32))
_op("cvt.s32.s16", "r", "h", lambda a: unsigned(signed(a).astype(np.int32)))
_op("cvt.u16.u32", "h", "r", lambda a: a.astype(np.uint16))
_op("cvt.s32.s8", "r", "r", lambda a: unsigned(signed(a.astype(np.uint8)).astype(np.int32)))
_op("cvt.u32.u8", "r", "r", lambda a: a & np.uint32(255))
_op("cvt.sat.s16.s32", "h", "r", lambda a: unsigned(_clip(-32768, 32767)(signed(a)).astype(np.int16)))
_op("cvt.sat.u16.s32", "h", "r", lambda a: _clip(0, 65535)(signed(a)).astype(np.uint16))
_op("cvt.sat.u8.s32", "r", "r", lambda a: _clip(0, 255)(signed(a)).astype(np.uint32))
_op("cvt.sat.s32.u32", "r", "r", lambda a: np.minimum(a, np.uint32(0x7FFFFFFF)))
_op("cvt.sat.s32.s64", "r", "d", lambda a: unsigned(_clip(-(1 << 31), (1 << 31) - 1)(signed(a)).astype(np.int32)))


def _bits_of(a: Array) -> Array:
    """Of a number; which bits stand for none is not laid down."""
    return unsigned(_number(a))


_op("selp.b32 {d}, %t, 0, %q;", "r", "f", _bits_of, "setp.num.f32 %q, {a}, {a};", "mov.b32 %t, {a};")
_op("selp.b64 {d}, %w, 0, %q;", "d", "g", _bits_of, "setp.num.f64 %q, {a}, {a};", "mov.b64 %w, {a};")
_op("mov.b32 {d}, {a};", "f", "r", lambda a: a.view(np.float32))
_op("mov.b64 {d}, {a};", "g", "d", lambda a: a.view(np.float64))
