"""What can be wrong with a call of the BLAS library, and the one thing that is only slow."""

from __future__ import annotations

from kaas import KaasError


class BlasError(KaasError):
    """Base of what this library raises."""


class InvalidOperand(BlasError, ValueError):
    """A matrix, vector or list of them that cannot be one.

    Fields:
        operand: "a", "b", "c", "bias", … buffer: its buffer's name. shape: of the buffer.
    """

    operand: str
    buffer: str
    shape: tuple[int, ...]


class ShapeMismatch(BlasError, ValueError):
    """Operands whose shapes do not go together; `shapes` has them by operand, as given: not transposed."""

    shapes: dict[str, tuple[int, ...]]


class InvalidDtype(BlasError, ValueError):
    """Elements that this library does not multiply, or not together; `dtypes` has them by operand."""

    dtypes: dict[str, str]


class InvalidOption(BlasError, ValueError):
    """An option without a meaning, or without one for these elements.

    Fields:
        option: its name. value: what was given, as Python writes it. known: what may be given, if that can be listed.
    """

    option: str
    value: str
    known: tuple[str, ...]


class InvalidScalar(BlasError, ValueError):
    """An alpha or beta that is no number of the kind in which the product is computed.

    Fields:
        scalar: "alpha" or "beta". value: what was given, as Python writes it. kind: what it has to be, as kaas.Scalar
        calls it.
    """

    scalar: str
    value: str
    kind: str


class OverlappingOperands(BlasError, ValueError):
    """What is written lies in a buffer that is read, or in two places at once.

    Fields:
        operands: the two of them. buffer: the name of the buffer.
    """

    operands: tuple[str, str]
    buffer: str


class ProblemTooLarge(BlasError, ValueError):
    """A size that the kernels' 32-bit counts cannot hold; `sizes` has m, n and k by name, `limit` the largest."""

    sizes: dict[str, int]
    limit: int


class StoreFailed(BlasError):
    """What was built cannot be kept or loaded; `path` says where."""

    path: str


class AlignmentWarning(UserWarning):
    """The loads of a kernel are narrower than they could be, since rows do not begin at multiples of 16 bytes."""
