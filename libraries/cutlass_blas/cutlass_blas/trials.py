"""What kernels are tried with: numbers whose product is exact, and numbers as they come, for measuring."""

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
"""Different numbers in an operand; the rest repeats them."""


class WrongResult(BlasError):
    """A candidate whose result is not the product; `wrong` is how many of its elements differ."""

    instance: str
    wrong: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The inputs of a product, by name.

    Fields:
        integers: small ones, of which every kernel has to make exactly `wanted`; or nearly, if it is not `exact`.
        random: others, as they come.
    """

    integers: dict[str, Array]
    random: dict[str, Array]
    wanted: Array
    exact: bool

    def check(self, instance: str, made: Array) -> None:
        """
        Raises:
            WrongResult
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
    """For a product with these options of gemm; GELU is the one epilogue that it knows, and whose results differ."""
    factors = operands[:2]
    integers = {buffer.name: _integers(buffer) for buffer in factors}
    wanted = _product(operands, integers, options)
    exact = options.get("epilogue") != "gelu"
    return Trial(integers, {buffer.name: _random(buffer) for buffer in factors}, wanted, exact)


def _integers(buffer: Buffer) -> Array:
    """From -2 to 2, in no pattern that a shift would keep: exact in every dtype, as are their sums up to k of 2^22."""
    rng = np.random.default_rng(sum(buffer.name.encode()))
    return _filled(buffer, rng.integers(-2, 3, VALUES) + 1j * rng.integers(-2, 3, VALUES))


def _random(buffer: Buffer) -> Array:
    rng = np.random.default_rng(0)
    return _filled(buffer, rng.uniform(-1, 1, VALUES) + 1j * rng.uniform(-1, 1, VALUES))


def _numpy_dtype(name: str) -> Any:
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # on demand: it is the only dtype that NumPy has not

    return np.dtype(ml_dtypes.bfloat16)


def _filled(buffer: Buffer, values: Array) -> Array:
    """The real parts unless the buffer holds complex numbers."""
    dtype = _numpy_dtype(buffer.dtype)
    some = values if dtype.kind == "c" else values.real
    return np.resize(some.astype(dtype), math.prod(buffer.shape)).reshape(buffer.shape)


def _product(operands: Operands, integers: dict[str, Array], options: dict[str, Any]) -> Array:
    """What comes of the integers, by NumPy."""
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
    """The matrices that lie in memory of their shape, in one layout or the other."""
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
