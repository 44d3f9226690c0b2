"""Inputs for trials of kernels: integers with an exact product for the check, random numbers for the measurement."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutlass_blas.errors import BlasError
from kaas import Buffer

Array = np.ndarray[Any, Any]
Operands = tuple[Buffer, Buffer, Buffer]

VALUES = 1 << 20
"""The most different numbers in an operand; the rest repeats them."""


class WrongResult(BlasError):
    """A candidate whose result is not the product; `wrong` is the number of its wrong elements."""

    instance: str
    wrong: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The inputs of a product, by name.

    Fields:
        integers: small integers, for which every kernel has to give exactly `wanted`, or nearly if not `exact`.
        random: random numbers.
    """

    integers: dict[str, Array]
    random: dict[str, Array]
    wanted: Array
    exact: bool

    def check(self, instance: str, made: Array) -> None:
        """Check the result for `integers`.

        Raises:
            WrongResult: it differs from `wanted`.
        """
        if self.exact:
            same = made == self.wanted.astype(made.dtype)
        else:
            same = np.isclose(made.astype(np.float64), self.wanted, rtol=0.02, atol=0.02)
        if not same.all():
            wrong = int(same.size - np.count_nonzero(same))
            words = f"{instance} gives {wrong} of {same.size} elements wrong"
            raise WrongResult(words, instance=instance, wrong=wrong)


def trial(operands: Operands, options: dict[str, Any]) -> Trial:
    """Return the trial of a product with these options of gemm; GELU is the only epilogue, and is not exact."""
    factors = operands[:2]
    integers = {buffer.name: _integers(buffer) for buffer in factors}
    wanted = _product(operands, integers, options)
    exact = options.get("epilogue") != "gelu"
    return Trial(integers, {buffer.name: _random(buffer) for buffer in factors}, wanted, exact)


def _integers(buffer: Buffer) -> Array:
    """Return integers from -2 to 2, without a pattern that a shift keeps: exact in every dtype.

    Sums of their products are exact too, up to a k of 2^22.
    """
    rng = np.random.default_rng(sum(buffer.name.encode()))
    return _filled(buffer, rng.integers(-2, 3, VALUES) + 1j * rng.integers(-2, 3, VALUES))


def _random(buffer: Buffer) -> Array:
    rng = np.random.default_rng(0)
    return _filled(buffer, rng.uniform(-1, 1, VALUES) + 1j * rng.uniform(-1, 1, VALUES))


def _numpy_dtype(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # imported here: bfloat16 is the only dtype that NumPy lacks

    return np.dtype(ml_dtypes.bfloat16)


def _filled(buffer: Buffer, values: Array) -> Array:
    """Return the values in a buffer's shape and dtype; only the real parts unless the dtype is complex."""
    dtype = _numpy_dtype(buffer.dtype)
    some = values if dtype.kind == "c" else values.real
    return np.resize(some.astype(dtype), math.prod(buffer.shape)).reshape(buffer.shape)


def _product(operands: Operands, integers: dict[str, Array], options: dict[str, Any]) -> Array:
    """Return the product of the integers by NumPy, as it lies in C's memory."""
    a, b, c = operands
    is_complex = a.dtype.startswith("complex")
    exact = np.complex128 if is_complex else np.float64
    column = options["layout"] == "column"
    first = _op(_logical(integers[a.name], column), options["trans_a"]).astype(exact)
    second = _op(_logical(integers[b.name], column), options["trans_b"]).astype(exact)
    product = first @ second
    if options.get("epilogue") == "gelu":
        values, places = np.unique(product, return_inverse=True)
        curve = np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in values])
        product = curve[places].reshape(product.shape)
    made: Array = _as_lying(product, column).reshape(c.shape)
    return made


def _logical(memory: Array, column: bool) -> Array:
    """Return the logical matrices of memory in either layout."""
    if not column:
        return memory
    *batch, rows, columns = memory.shape
    return memory.reshape(*batch, columns, rows).swapaxes(-1, -2)


def _as_lying(matrices: Array, column: bool) -> Array:
    return np.ascontiguousarray(matrices.swapaxes(-1, -2)) if column else matrices


def _op(matrices: Array, letter: str) -> Array:
    match letter.lower():
        case "t":
            return matrices.swapaxes(-1, -2)
        case "c":
            return matrices.swapaxes(-1, -2).conj()
    return matrices
