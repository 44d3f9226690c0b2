"""How much a kernel can load at once: up to 16 bytes, if all rows of a matrix begin at multiples of that."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Final

from cutlass_blas.errors import AlignmentWarning
from cutlass_blas.operands import DTYPE_BYTES, Operand

WIDEST_BYTES: Final = 16


def alignment(x: Operand, contiguous: int) -> int:
    """The largest power of two, up to what 16 bytes hold, that divides all distances of an operand, in elements.

    Args:
        contiguous: elements in each of its rows, or columns if these are what is contiguous.
    """
    bits = WIDEST_BYTES // DTYPE_BYTES[x.dtype] | x.ld | contiguous
    for offset in x.offsets:
        bits |= offset
    if x.count is not None and x.count > 1:
        bits |= x.stride
    return bits & -bits


def warn(operands: Iterable[tuple[Operand, int]]) -> None:
    """Say which operands are loaded, or stored, in smaller pieces than they could be; to who called this library.

    Args:
        operands: each with its contiguous elements; "c" is stored.
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
    """The more, the less it is aligned."""
    return 1 / (offset & -offset) if offset else 0


def _callers_level() -> int:
    """How many frames up from `warn` the first stands that is not of this library, as `warnings` counts them."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{__package__}."):
        frame, level = frame.f_back, level + 1
    return level
