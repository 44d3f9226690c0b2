"""An instruction of random programs, and the table of them, which `integers` and `reals` fill.

Kinds of registers: r, d, h are integers of 32, 64 and 16 bits, f, g, x are f32, f64, f16, p is a predicate.
"""

from __future__ import annotations

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


def define(name: str, results: str, operands: str, compute: Callable[..., Any], *before: str) -> None:
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


def clip(low: int, high: int) -> Callable[[Any], Any]:
    return lambda a: np.minimum(np.maximum(a, low), high)
