"""The number of elements that a kernel can load at once: up to 16 bytes, if all rows begin at multiples of that."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Final

from cutlass_blas.errors import AlignmentWarning
from cutlass_blas.operands import DTYPE_BYTES, Operand

WIDEST_BYTES: Final = 16


def alignment(x: Operand, contiguous: int) -> int:
    """Return the largest power of two, at most 16 bytes, that divides all distances of an operand, in elements.

    Args:
        x: the operand.
        contiguous: the number of elements in each row, or in each column if the columns are contiguous.
    """
    bits = WIDEST_BYTES // DTYPE_BYTES[x.dtype] | x.ld | contiguous
    for offset in x.offsets:
        bits |= offset
    if x.count is not None and x.count > 1:
        bits |= x.stride
    return bits & -bits


def warn(operands: Iterable[tuple[Operand, int]]) -> None:
    """Warn the library's caller about operands that are loaded or stored in pieces of less than 16 bytes.

    Args:
        operands: each with the number of its contiguous elements; "c" is stored.
    """
    for x, contiguous in operands:
        element_bytes = DTYPE_BYTES[x.dtype]
        aligned, widest = alignment(x, contiguous), WIDEST_BYTES // element_bytes
        if aligned < widest:
            distances = {
                "leading dimension": x.ld,
                "contiguous elements": contiguous,
                "offset": max(x.offsets, key=_odd),
            }
            if x.count is not None and x.count > 1:
                distances["stride"] = x.stride
            why = ", ".join(f"{name} {distance}" for name, distance in distances.items() if distance % widest)
            done = "stored" if x.name == "c" else "loaded"
            warnings.warn(
                f"gemm: {x.name} ({x.dtype}) is {done} {aligned * element_bytes} bytes at a time, not {WIDEST_BYTES}, "
                f"because {widest} does not divide its {why}",
                AlignmentWarning,
                stacklevel=_callers_level(),
            )


def _odd(offset: int) -> float:
    """Return a number that is larger for an offset with less alignment."""
    return 1 / (offset & -offset) if offset else 0


def _callers_level() -> int:
    """Return the level of the first frame above `warn` that is not of this library, as `warnings` counts levels."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    return level
