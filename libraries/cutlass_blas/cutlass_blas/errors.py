"""The errors of the BLAS library, and its warning about slow loads."""

from __future__ import annotations

from kaas import KaasError


class BlasError(KaasError):
    """The base of this library's errors."""


class InvalidOperand(BlasError, ValueError):
    """An argument that is no matrix or vector, no list of them, or does not lie within its buffer.

    Fields:
        operand: "a", "b", "c", "bias", … buffer: its buffer's name. shape: of the buffer.
    """

    operand: str
    buffer: str
    shape: tuple[int, ...]


class ShapeMismatch(BlasError, ValueError):
    """Operands whose shapes do not fit; `shapes` has the shapes by operand, as given, before they are transposed."""

    shapes: dict[str, tuple[int, ...]]


class InvalidDtype(BlasError, ValueError):
    """Dtypes that this library does not multiply, or not with each other; `dtypes` has them by operand."""

    dtypes: dict[str, str]


class InvalidOption(BlasError, ValueError):
    """An option whose value has no meaning, or no meaning for these dtypes.

    Fields:
        option: its name. value: the given value, as Python writes it. known: the possible values, if they are few.
    """

    option: str
    value: str
    known: tuple[str, ...]


class InvalidScalar(BlasError, ValueError):
    """An alpha or beta that is no number of the kind in which the product is computed.

    Fields:
        scalar: "alpha" or "beta". value: the given value, as Python writes it. kind: the required kind of kaas.Scalar.
    """

    scalar: str
    value: str
    kind: str


class OverlappingOperands(BlasError, ValueError):
    """An operand that is written overlaps another operand, or itself.

    Fields:
        operands: the two operands. buffer: the name of the buffer.
    """

    operands: tuple[str, str]
    buffer: str


class ProblemTooLarge(BlasError, ValueError):
    """A size that the kernels' 32-bit counts cannot hold; `sizes` has m, n and k by name, `limit` the largest."""

    sizes: dict[str, int]
    limit: int


class StoreFailed(BlasError):
    """A built file cannot be written, read or loaded; `path` is its path."""

    path: str


class AlignmentWarning(UserWarning):
    """A kernel loads less than 16 bytes at once, because rows do not begin at multiples of 16 bytes."""
