"""Floating-point arithmetic by fractions: what one rounding of the true result gives, in any format and direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from softgpu.tests.compiler.harness import Array


@dataclass(frozen=True)
class Format:
    exponent_bits: int
    fraction_bits: int
    dtype: Any
    bits: Any  # the unsigned integer of this size

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    def number(self, magnitude: int, negative: bool) -> Any:
        sign = int(negative) << (self.exponent_bits + self.fraction_bits)
        return np.array([magnitude | sign], self.bits).view(self.dtype)[0]


FORMATS = {
    "f16": Format(5, 10, np.float16, np.uint16),
    "bf16": Format(8, 7, ml_dtypes.bfloat16, np.uint16),
    "f32": Format(8, 23, np.float32, np.uint32),
    "f64": Format(11, 52, np.float64, np.uint64),
}


def _away(mode: str, n: int, rest: Fraction, negative: bool) -> bool:
    """Return True to round away from zero; rest: the part that is left out, in units of n."""
    match mode:
        case "rz" | "rzi":
            return False
        case "rp" | "rpi":
            return rest > 0 and not negative
        case "rm" | "rmi":
            return rest > 0 and negative
        case "rna":
            return rest >= Fraction(1, 2)
    return rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n % 2 == 1)


def whole(value: Fraction, mode: str) -> int:
    """The value as an integer, rounded as rni, rzi, rmi or rpi say."""
    size = abs(value)
    n = math.floor(size)
    n += _away(mode, n, size - n, value < 0)
    return -n if value < 0 else n


def rounded(kind: str, value: Fraction, mode: str = "rn", negative: bool = False) -> Any:
    """The value in a format; `negative` is the sign of a zero."""
    form = FORMATS[kind]
    if value:
        negative = value < 0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    exponent = max(exponent, 1 - form.bias) if size else 1 - form.bias
    units = size / Fraction(2) ** (exponent - form.fraction_bits)
    n = math.floor(units)
    n += _away(mode, n, units - n, negative)
    magnitude = n + ((exponent + form.bias - 1) << form.fraction_bits)
    if magnitude >= form.infinity:
        stays = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        magnitude = form.infinity - stays
    return form.number(magnitude, negative)


def root(kind: str, value: Fraction, mode: str) -> Any:
    """The square root, from one with so many digits that what is behind them only says that there is more."""
    shift = 700
    scaled = value * 4**shift
    n = math.isqrt(math.floor(scaled))
    more = Fraction(n * n) != scaled
    return rounded(kind, (n + Fraction(int(more), 3)) / 2**shift, mode)


def in_turn(kind: str, function: Callable[..., Any], *columns: Array) -> Array:
    """function(numbers...) in every row, as an array of this format."""
    rows = [[float(x) for x in row] for row in zip(*columns, strict=True)]
    return np.array([function(*row) for row in rows], FORMATS[kind].dtype)


def _special(kind: str, name: str, row: tuple[float, ...]) -> Any | None:
    """Results with an operand that is no finite number, or divided by zero; None for all others."""
    divides = name in ("div", "rcp")
    if all(math.isfinite(x) for x in row) and not (divides and row[-1] == 0) and not (name == "sqrt" and row[0] < 0):
        return None
    a, b, c = (*(np.float64(x) for x in row), np.float64(0), np.float64(0))[:3]
    results: dict[str, Any] = {
        "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b, "div": lambda: a / b,
        "rcp": lambda: 1 / a, "sqrt": lambda: np.sqrt(a), "fma": lambda: a * b + c,
    }  # fmt: skip
    with np.errstate(all="ignore"):
        result = float(results[name]())
        if name == "fma" and not math.isnan(a * b) and math.isinf(c):
            result = math.nan if math.isinf(a) and math.isinf(b) and (a * b) != c else float(c)
            if math.isinf(float(a)) or math.isinf(float(b)):
                result = float(a * b + c)
    return FORMATS[kind].dtype(result)


def operation(kind: str, name: str, mode: str) -> Callable[..., Any]:
    """add, sub, mul, div, rcp, sqrt or fma of numbers of a format."""

    def compute(*row: float) -> Any:
        special = _special(kind, name, row)
        if special is not None:
            return special
        signs = [math.copysign(1, x) < 0 for x in row]
        exact = [Fraction(x) for x in row]
        match name:
            case "sqrt":
                return root(kind, exact[0], mode) if exact[0] else FORMATS[kind].dtype(row[0])
            case "rcp":
                return rounded(kind, 1 / exact[0], mode)
            case "mul":
                return rounded(kind, exact[0] * exact[1], mode, signs[0] != signs[1])
            case "div":
                return rounded(kind, exact[0] / exact[1], mode, signs[0] != signs[1])
            case "sub":
                exact[1], signs[1] = -exact[1], not signs[1]
                return _sum(kind, exact, signs, mode)
            case "add":
                return _sum(kind, exact, signs, mode)
        return _sum(kind, [exact[0] * exact[1], exact[2]], [signs[0] != signs[1], signs[2]], mode)

    return compute


def _sum(kind: str, terms: list[Fraction], negative: list[bool], mode: str) -> Any:
    """A sum that is 0 is -0 where both terms are negative, or where opposites meet and rounding goes down."""
    total = terms[0] + terms[1]
    zero_sign = negative[0] if negative[0] == negative[1] else mode == "rm"
    return rounded(kind, total, mode, zero_sign)
