"""Epilogues: a bias is added to a product, and an activation applied, before the product is stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cutlass_blas.errors import InvalidDtype, InvalidOperand, InvalidOption, OverlappingOperands, ShapeMismatch
from cutlass_blas.operands import Operand
from kaas import Buffer

ACTIVATIONS: Final = {None: 0, "relu": 1, "gelu": 2}
"""Activations -> their numbers in device/finish.cuh."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """act(alpha op(A) op(B) + beta C + bias), in the kernel that multiplies.

    With both a bias and a beta other than 0, the product goes through a workspace, and one more kernel does the rest.

    Args:
        bias: a vector of C's dtype that is added along C's contiguous dimension: one element for each column (layout
            "row"), or one for each row (layout "column").
        activation: "relu", or "gelu", which is the exact one, x (1 + erf(x / sqrt 2)) / 2. ReLU of NaN is NaN.

    Raises:
        InvalidOperand: a bias that is no vector. InvalidOption: no such activation.
    """

    bias: Buffer | None = None
    activation: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.bias, Buffer | None):
            raise InvalidOperand(f"bias is a kaas.Buffer, not {self.bias!r}", operand="bias")
        if self.bias is not None and len(self.bias.shape) != 1:
            raise InvalidOperand(
                f"bias is a vector, but buffer {self.bias.name!r} has the shape {self.bias.shape}",
                operand="bias",
                buffer=self.bias.name,
                shape=self.bias.shape,
            )
        if not isinstance(self.activation, str | None) or self.activation not in ACTIVATIONS:
            known = tuple(name for name in ACTIVATIONS if name)
            raise InvalidOption(
                f"activation is {' or '.join(known)}, not {self.activation!r}",
                option="activation",
                value=repr(self.activation),
                known=known,
            )


NOTHING: Final = Epilogue()


def epilogue_of(given: Any) -> Epilogue:
    """Return the epilogue for an argument: an Epilogue, the name of an activation, or None.

    Raises:
        InvalidOption: none of these.
    """
    if given is None:
        return NOTHING
    if isinstance(given, Epilogue):
        return given
    if isinstance(given, str):
        return Epilogue(activation=given)
    raise InvalidOption(
        f"epilogue is an Epilogue or the name of an activation, not {given!r}", option="epilogue", value=repr(given)
    )


def check(epilogue: Epilogue, c: Operand, contiguous: int, is_complex: bool) -> None:
    """Check that an epilogue fits C, whose contiguous dimension has so many elements.

    Raises:
        InvalidOption, ShapeMismatch, InvalidDtype, OverlappingOperands: it does not.
    """
    if epilogue.activation and is_complex:
        raise InvalidOption(
            f"{epilogue.activation} is for real numbers; c is {c.dtype}",
            option="activation",
            value=repr(epilogue.activation),
            known=(),
        )
    bias = epilogue.bias
    if bias is None:
        return
    if bias.shape[0] != contiguous:
        raise ShapeMismatch(
            f"a bias goes along the contiguous dimension of c, {c.rows}x{c.columns}: it has {contiguous} elements, not "
            f"{bias.shape[0]}",
            shapes={"bias": bias.shape, "c": c.shape},
        )
    if bias.dtype != c.dtype:
        raise InvalidDtype(
            f"a bias has c's dtype, {c.dtype}, not {bias.dtype}", dtypes={"bias": bias.dtype, "c": c.dtype}
        )
    if any(bias.name == buffer.name for buffer in c.buffers):
        raise OverlappingOperands(
            f"c is written to buffer {bias.name!r}, in which the bias lies", operands=("bias", "c"), buffer=bias.name
        )
