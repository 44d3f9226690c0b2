"""Comparisons, instructions on numbers with a fraction, and conversions, lane by lane."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from softgpu.tests.compiler.random.ops import OPS, Array, Op, clip, define, signed, unsigned

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
        define(f"setp.{_name}.{_type}", "p", _kind * 2, lambda a, b, t=_test, s=_seen: t(s(a), s(b)))
    if _type in ("s32", "u32", "f32"):
        for _name, _combine in _COMBINE.items():
            _both = lambda a, b, c, k=_combine, s=_seen: (k(s(a) < s(b), c), k(~(s(a) < s(b)), c))  # noqa: E731
            define(f"setp.lt.{_name}.{_type} {{d}}|{{e}}, {{a}}, {{b}}, {{c}};", "pp", _kind * 2 + "p", _both)
            define(f"setp.lt.{_name}.{_type} {{d}}, {{a}}, {{b}}, !{{c}};", "p", _kind * 2 + "p",
                lambda a, b, c, k=_combine, s=_seen: k(s(a) < s(b), ~c))  # fmt: skip
        define(
            f"set.ge.u32.{_type}",
            "r",
            _kind * 2,
            lambda a, b, s=_seen: np.where(s(a) >= s(b), np.uint32(0xFFFFFFFF), np.uint32(0)),
        )
for _type, _kind in (("f32", "f"), ("f64", "g")):
    define(f"setp.num.{_type}", "p", _kind * 2, lambda a, b: ~(np.isnan(a) | np.isnan(b)))
    define(f"setp.nan.{_type}", "p", _kind * 2, lambda a, b: np.isnan(a) | np.isnan(b))
    for _name in ("lt", "ge", "eq", "ne"):
        define(f"setp.{_name}u.{_type}", "p", _kind * 2,
            lambda a, b, t=_COMPARE[_name]: t(a, b) | np.isnan(a) | np.isnan(b))  # fmt: skip
# an ordered comparison is false where a number is none, also "ne", which NumPy finds true
for _type in ("f32", "f64", "f16"):
    _old = OPS[f"setp.ne.{_type}"]
    OPS[f"setp.ne.{_type}"] = Op(_old.text, "p", _old.operands, lambda a, b: (a < b) | (a > b))
define("set.lt.f32.s32", "f", "rr", lambda a, b: (signed(a) < signed(b)).astype(np.float32))
define("and.pred", "p", "pp", np.logical_and)
define("or.pred", "p", "pp", np.logical_or)
define("xor.pred", "p", "pp", np.logical_xor)
define("not.pred", "p", "p", np.logical_not)
define("mov.pred", "p", "p", lambda a: a)

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
    define(f"add{_rn}.{_type}", _kind, _kind * 2, lambda a, b: a + b)
    define(f"sub{_rn}.{_type}", _kind, _kind * 2, lambda a, b: a - b)
    define(f"mul{_rn}.{_type}", _kind, _kind * 2, lambda a, b: a * b)
    define(f"min.{_type}", _kind, _kind * 2, lambda a, b: _extreme(a, b, True))
    define(f"max.{_type}", _kind, _kind * 2, lambda a, b: _extreme(a, b, False))
    define(f"neg.{_type}", _kind, _kind, lambda a: -a)
    define(f"abs.{_type}", _kind, _kind, np.abs)
    if _kind != "x":
        define(f"mov.{_type}", _kind, _kind, lambda a: a)
        define(f"selp.{_type}", _kind, _kind * 2 + "p", lambda a, b, c: np.where(c, a, b))
        define(f"div.rn.{_type}", _kind, _kind * 2, lambda a, b: a / b)
        define(f"sqrt.rn.{_type}", _kind, _kind, np.sqrt)
        define(f"rcp.rn.{_type}", _kind, _kind, lambda a: a.dtype.type(1) / a)
        define(f"copysign.{_type}", _kind, _kind * 2, lambda a, b: np.copysign(b, a))
        define(f"testp.finite.{_type}", "p", _kind, np.isfinite)
        define(f"testp.infinite.{_type}", "p", _kind, np.isinf)
        define(f"testp.subnormal.{_type}", "p", _kind, lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny))
define("fma.rn.f32", "f", "fff", _fused(_libm.fmaf, np.float32))
define("fma.rn.f64", "g", "ggg", _fused(_libm.fma, np.float64))
define("add.sat.f32", "f", "ff", lambda a, b: _saturated(a + b))
define("mul.sat.f32", "f", "ff", lambda a, b: _saturated(a * b))
for _mode in ("rz", "rp"):
    define(f"add.{_mode}.f32", "f", "ff", lambda a, b, m=_mode: _sum(a, b, m))
for _mode in ("rz", "rp", "rm"):
    define(f"mul.{_mode}.f32", "f", "ff",
        lambda a, b, m=_mode: _directed(a.astype(np.float64) * b, np.zeros(a.shape), m))  # fmt: skip
    define(f"cvt.{_mode}.f32.f64", "f", "g", lambda a, m=_mode: _directed(a, np.zeros(a.shape), m))

define("fma.rn.sat.f32", "f", "fff", lambda a, b, c: _saturated(_fused(_libm.fmaf, np.float32)(a, b, c)))
define(
    "min.NaN.f32", "f", "ff", lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), _extreme(a, b, True))
)
define(
    "max.NaN.f32",
    "f",
    "ff",
    lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), _extreme(a, b, False)),
)

# --- denormals flushed


def _flushed(a: Any) -> Any:
    if a.dtype.kind != "f":
        return a
    return np.where(np.abs(a) < np.finfo(a.dtype).tiny, np.copysign(a.dtype.type(0), a), a)


def _flushing(name: str) -> None:
    """The operation of this name with .ftz: on flushed operands, with a flushed result."""
    old = OPS[name]
    head, _, kind = name.rpartition(".")
    define(f"{head}.ftz.{kind}", old.results, old.operands,
        lambda *args, f=old.compute: _flushed(f(*(_flushed(a) for a in args))))  # fmt: skip


for _name in ("add.rn", "sub.rn", "mul.rn", "mul.rz", "add.rp", "div.rn", "fma.rn", "sqrt.rn", "rcp.rn"):
    _flushing(f"{_name}.f32")
for _name in ("min", "max", "neg", "abs", *(f"setp.{name}" for name in _COMPARE), "setp.ltu"):
    _flushing(f"{_name}.f32")
for _name in ("add", "sub", "mul", "min", "max", "neg", "abs"):
    _flushing(f"{_name}.f16")

# --- conversions

define("cvt.sat.f32.f32", "f", "f", _saturated)
define("cvt.rn.f32.u8", "f", "r", lambda a: (a & np.uint32(255)).astype(np.float32))
define("cvt.rn.f64.s16", "g", "h", lambda a: signed(a).astype(np.float64))
define("cvt.rzi.u16.f32 {d}, %ff;", "h", "f", lambda a: _to_integer(_number(a), 16, False, np.trunc),
    "setp.num.f32 %q, {a}, {a};", "selp.f32 %ff, {a}, 0f00000000, %q;")  # fmt: skip

define("cvt.rn.f32.f64", "f", "g", lambda a: a.astype(np.float32))
define("cvt.f64.f32", "g", "f", lambda a: a.astype(np.float64))
define("cvt.rn.f16.f32", "x", "f", lambda a: a.astype(np.float16))
define("cvt.rn.f16.f64", "x", "g", lambda a: a.astype(np.float16))
define("cvt.f32.f16", "f", "x", lambda a: a.astype(np.float32))
_WHOLE: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
for _name, _whole in _WHOLE.items():
    define(f"cvt.{_name}.f32.f32", "f", "f", _whole)
    define(f"cvt.{_name}.f64.f64", "g", "g", _whole)


def _to_integer(a: Array, bits: int, sign: bool, whole: Callable[[Array], Array]) -> Array:
    """The nearest end of the range where a lies beyond it. Values that are no numbers are not asked for."""
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
            define(f"cvt.rn.{_type}.{_t}", _real, _kind, lambda a, s=_seen, t=_dtype: s(a).astype(t))
            for _name, _whole in _WHOLE.items():
                # NaN becomes another value in each type
                _zero, _temp = ("0f00000000", "%ff") if _real == "f" else ("0d0000000000000000", "%gg")
                define(f"cvt.{_name}.{_t}.{_type} {{d}}, {_temp};", _kind, _real,
                    lambda a, n=_bits, s=_sign, w=_whole: _to_integer(_number(a), n, s, w),
                    f"setp.num.{_type} %q, {{a}}, {{a}};", f"selp.{_type} {_temp}, {{a}}, {_zero}, %q;")  # fmt: skip
define("cvt.rn.f16.s32", "x", "r", lambda a: signed(a).astype(np.float16))
define("cvt.rn.f16.u16", "x", "h", lambda a: a.astype(np.float16))
define("cvt.u64.u32", "d", "r", lambda a: a.astype(np.uint64))
define("cvt.s64.s32", "d", "r", lambda a: unsigned(signed(a).astype(np.int64)))
define("cvt.u32.u64", "r", "d", lambda a: a.astype(np.uint32))
define("cvt.u32.u16", "r", "h", lambda a: a.astype(np.uint32))
define("cvt.s32.s16", "r", "h", lambda a: unsigned(signed(a).astype(np.int32)))
define("cvt.u16.u32", "h", "r", lambda a: a.astype(np.uint16))
define("cvt.s32.s8", "r", "r", lambda a: unsigned(signed(a.astype(np.uint8)).astype(np.int32)))
define("cvt.u32.u8", "r", "r", lambda a: a & np.uint32(255))
define("cvt.sat.s16.s32", "h", "r", lambda a: unsigned(clip(-32768, 32767)(signed(a)).astype(np.int16)))
define("cvt.sat.u16.s32", "h", "r", lambda a: clip(0, 65535)(signed(a)).astype(np.uint16))
define("cvt.sat.u8.s32", "r", "r", lambda a: clip(0, 255)(signed(a)).astype(np.uint32))
define("cvt.sat.s32.u32", "r", "r", lambda a: np.minimum(a, np.uint32(0x7FFFFFFF)))
define("cvt.sat.s32.s64", "r", "d", lambda a: unsigned(clip(-(1 << 31), (1 << 31) - 1)(signed(a)).astype(np.int32)))


def _bits_of(a: Array) -> Array:
    """Of a number; which bits stand for none is not laid down."""
    return unsigned(_number(a))


define("selp.b32 {d}, %t, 0, %q;", "r", "f", _bits_of, "setp.num.f32 %q, {a}, {a};", "mov.b32 %t, {a};")
define("selp.b64 {d}, %w, 0, %q;", "d", "g", _bits_of, "setp.num.f64 %q, {a}, {a};", "mov.b64 %w, {a};")
define("mov.b32 {d}, {a};", "f", "r", lambda a: a.view(np.float32))
define("mov.b64 {d}, {a};", "g", "d", lambda a: a.view(np.float64))
