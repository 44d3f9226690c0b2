"""Literals by the names of their kinds: `kaas.i32(5)`, `kaas.f32(0.5)`, …"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kaas.ktask.arguments import Literal, literal


def _of(kind: str, what: str, example: str) -> Callable[[Any], Literal]:
    def make(value: Any) -> Literal:
        return literal(kind, value)

    make.__name__ = make.__qualname__ = kind
    make.__doc__ = f"""A kernel's by-value argument that is {what}, fixed in the kTask: `kaas.{kind}({example})`.

    One that each invocation chooses is `kaas.Scalar(name, "{kind}")`.

    Raises:
        InvalidLiteral: value is no such number, or out of range.
    """
    return make


i8 = _of("i8", "a signed integer of 8 bits", "-5")
i16 = _of("i16", "a signed integer of 16 bits", "-5")
i32 = _of("i32", "a signed integer of 32 bits, C's int", "-5")
i64 = _of("i64", "a signed integer of 64 bits, C's long long", "-5")
u8 = _of("u8", "an unsigned integer of 8 bits", "5")
u16 = _of("u16", "an unsigned integer of 16 bits", "5")
u32 = _of("u32", "an unsigned integer of 32 bits, C's unsigned int", "5")
u64 = _of("u64", "an unsigned integer of 64 bits, C's unsigned long long or size_t", "5")
f16 = _of("f16", "a floating-point number of 16 bits, CUDA's __half", "0.5")
bf16 = _of("bf16", "a floating-point number of 16 bits, CUDA's __nv_bfloat16", "0.5")
f32 = _of("f32", "a floating-point number of 32 bits, C's float", "0.5")
f64 = _of("f64", "a floating-point number of 64 bits, C's double", "0.5")
c64 = _of("c64", "a complex number of two floats, CUDA's cuFloatComplex", "1 + 2j")
c128 = _of("c128", "a complex number of two doubles, CUDA's cuDoubleComplex", "1 + 2j")
boolean = _of("boolean", "a truth value, C's bool", "True")
