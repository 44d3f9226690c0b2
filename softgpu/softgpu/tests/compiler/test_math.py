"""CUDA's mathematics library, as nvcc compiles it, against the C library; bounds in units of the last place."""

from __future__ import annotations

import ctypes
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MATH = (Path(__file__).parent / "kernels" / "math.ptx").read_text()
TYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
Reference = Callable[..., Any]
Range = tuple[float, float]
LIBM = ctypes.CDLL("libm.so.6")


def long(name: str) -> Reference:
    """A function of the C library in extended precision, of which a double comes back."""
    function = getattr(LIBM, f"{name}l")
    function.restype = ctypes.c_longdouble

    def apply(*columns: Any) -> Any:
        function.argtypes = [ctypes.c_longdouble] * len(columns)
        return np.array([function(*map(float, row)) for row in zip(*columns, strict=True)])

    return apply


def each(function: Callable[[float], float]) -> Reference:
    return lambda column: np.array([function(float(x)) for x in column])


def bessel_i(order: int) -> Reference:
    def apply(x: Any) -> Any:
        term = (x / 2) ** order
        total = term
        for k in range(1, 60):
            term = term * x * x / (4 * k * (k + order))
            total = total + term
        return total

    return apply


def normal(p: float) -> float:
    return statistics.NormalDist().inv_cdf(p)


def erfcx(x: Any) -> Any:
    return np.exp(x * x) * long("erfc")(x)


def half_turns(function: Reference, x: Any, zero: float) -> Any:
    """The sine or cosine of pi times x, which is 0 a whole number after `zero`."""
    return np.where(np.remainder(x - zero, 1) == 0, 0, function(PI * np.fmod(x, 2)))


PI = np.arccos(np.longdouble(-1))
NEAR_ONE = -1  # a bound of 12 units of numbers near 1, or of larger results: these functions have zeros
ALL, SMALL, POSITIVE = (-1e30, 1e30), (-9.0, 9.0), (1e-30, 1e30)

# name: (reference, range of the operands, bound for float, bound for double). The bounds are those of the CUDA
# programming guide, and one more where the reference is itself a rounded double.
ONE: dict[str, tuple[Reference, Range, int, int]] = {
    "sin": (np.sin, ALL, 2, 2), "cos": (np.cos, ALL, 2, 2), "tan": (np.tan, ALL, 4, 2),
    "asin": (np.arcsin, (-1, 1), 2, 2), "acos": (np.arccos, (-1, 1), 2, 2), "atan": (np.arctan, ALL, 2, 2),
    "sinh": (np.sinh, (-80, 80), 3, 2), "cosh": (np.cosh, (-80, 80), 2, 1), "tanh": (np.tanh, SMALL, 2, 2),
    "asinh": (np.arcsinh, ALL, 3, 3), "acosh": (np.arccosh, (1, 1e30), 4, 3), "atanh": (np.arctanh, (-1, 1), 3, 2),
    "exp": (np.exp, (-80, 80), 2, 1), "exp2": (np.exp2, (-120, 120), 2, 1), "exp10": (long("exp10"), (-35, 35), 2, 2),
    "expm1": (np.expm1, (-20, 20), 1, 1), "log": (np.log, POSITIVE, 1, 1), "log2": (np.log2, POSITIVE, 1, 1),
    "log10": (np.log10, POSITIVE, 2, 1), "log1p": (np.log1p, (-0.999, 1e9), 1, 1), "sqrt": (np.sqrt, POSITIVE, 0, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), POSITIVE, 2, 1), "cbrt": (np.cbrt, ALL, 1, 1),
    "rcbrt": (lambda x: 1 / np.cbrt(x), ALL, 1, 1), "erf": (long("erf"), SMALL, 2, 3),
    "erfc": (long("erfc"), (-5, 9), 4, 6), "erfcx": (erfcx, (-4, 9), 4, 5),
    "erfinv": (each(lambda x: normal((x + 1) / 2) / math.sqrt(2)), (0.1, 0.9), 2, 40),
    "erfcinv": (each(lambda x: -normal(x / 2) / math.sqrt(2)), (0.01, 0.9), 4, 20),
    "normcdf": (lambda x: long("erfc")(-x / np.sqrt(np.longdouble(2))) / 2, (-1.5, 5), 5, 6),
    "normcdfinv": (each(normal), (0.001, 0.45), 5, 20),
    "lgamma": (long("lgamma"), (0.1, 1e5), 6, 5), "tgamma": (long("tgamma"), (0.05, 30), 5, 11),
    "j0": (long("j0"), SMALL, NEAR_ONE, NEAR_ONE), "j1": (long("j1"), SMALL, NEAR_ONE, NEAR_ONE),
    "y0": (long("y0"), (0.01, 9), NEAR_ONE, NEAR_ONE), "y1": (long("y1"), (0.01, 9), NEAR_ONE, NEAR_ONE),
    "cyl_bessel_i0": (bessel_i(0), SMALL, 6, 6), "cyl_bessel_i1": (bessel_i(1), SMALL, 6, 6),
    "sinpi": (lambda x: half_turns(np.sin, x, 0), SMALL, 1, 2),
    "cospi": (lambda x: half_turns(np.cos, x, 0.5), SMALL, 1, 2),
    "floor": (np.floor, ALL, 0, 0), "ceil": (np.ceil, ALL, 0, 0), "trunc": (np.trunc, ALL, 0, 0),
    "rint": (np.rint, ALL, 0, 0), "round": (long("round"), ALL, 0, 0), "logb": (long("logb"), ALL, 0, 0),
}  # fmt: skip
TWO: dict[str, tuple[Reference, Range, int, int]] = {
    "fmod": (np.fmod, ALL, 0, 0), "remainder": (long("remainder"), ALL, 0, 0), "pow": (np.power, (0.01, 12), 4, 2),
    "atan2": (np.arctan2, ALL, 3, 2), "hypot": (np.hypot, (-1e15, 1e15), 3, 2), "fdim": (long("fdim"), ALL, 0, 0),
    "fmin": (np.fmin, ALL, 0, 0), "fmax": (np.fmax, ALL, 0, 0),
}  # fmt: skip
LONG = {"j0", "j1", "y0", "y1"}
"""Functions whose kernels take a second or more to compile."""
CASES = [
    pytest.param(name, *row, id=name, marks=[pytest.mark.slow] if name in LONG else [])
    for name, row in (ONE | TWO).items()
]


def operands(limits: Range, kind: str, count: int, seed: int) -> Any:
    """Evenly and, where the range is wide, logarithmically spread numbers, with simple ones among them."""
    low, high = limits
    chance = np.random.default_rng(seed)
    even = chance.uniform(low, high, count)
    sizes = np.exp(chance.uniform(math.log(max(low, 1e-8)), math.log(high), count))
    signs = chance.choice([-1.0, 1.0], count) if low < 0 else 1.0
    simple = np.array([x for x in (0.25, 0.5, 1, 2, 3, 10, -0.5, -1, -2) if low < x < high])
    column = np.where(chance.random(count) < 0.5, even, np.clip(signs * sizes, low, high))
    column[: len(simple)] = simple
    return np.clip(column.astype(TYPES[kind]), *map(TYPES[kind], limits))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("name", "reference", "limits", "single", "double"), CASES)
def test_functions(
    gpu: Any, name: str, reference: Reference, limits: Range, single: int, double: int, kind: str
) -> None:
    columns = [operands(limits, kind, 512, seed) for seed in range(2 if name in TWO else 1)]
    if name == "fmod" or name == "remainder":
        columns[1] = columns[0] / operands((1, 1e6), kind, 512, 5)
    out = np.zeros(512, TYPES[kind])
    gpu.run(MATH, f"{name}_{kind}", 4, 128, *columns, out)
    with np.errstate(all="ignore"):
        expected = reference(*(column.astype(np.longdouble) for column in columns))
    bound = single if kind == "f32" else double
    near = expected.astype(TYPES[kind])
    unit = np.spacing(np.abs(near))
    if bound == NEAR_ONE:
        unit, bound = np.maximum(unit, np.finfo(TYPES[kind]).eps), 12
    error = np.abs(out.astype(np.longdouble) - expected) / unit
    error = np.where(out == near, 0, error)  # infinities, and what rounds to the same
    worst = int(np.argmax(error))
    assert error[worst] <= bound + 0.5, (
        float(error[worst]), [column[worst] for column in columns], out[worst], expected[worst]
    )  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", [name for name in ONE if isinstance(ONE[name][0], np.ufunc)])
def test_functions_of_special_numbers(gpu: Any, name: str, kind: str) -> None:
    dtype = TYPES[kind]
    tiny = np.finfo(dtype).smallest_subnormal
    given = np.zeros(32, dtype)
    given[:10] = [0.0, -0.0, np.inf, -np.inf, np.nan, tiny, -tiny, np.finfo(dtype).max, 2, -2]
    out = np.zeros(32, dtype)
    gpu.run(MATH, f"{name}_{kind}", 1, 32, given, out)
    with np.errstate(all="ignore"):
        expected = ONE[name][0](given.astype(np.longdouble)).astype(dtype)
    np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
    number = ~np.isnan(out)
    np.testing.assert_array_equal(np.signbit(out[number]), np.signbit(expected[number]))
    np.testing.assert_allclose(out[number].astype("f8"), expected[number].astype("f8"), rtol=4 * np.finfo(dtype).eps)
