"""The SIMD video instructions: arithmetic on the two halves or four bytes of 32-bit registers."""

from __future__ import annotations

from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import Width

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

_ACTIONS = ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vavrg", *COMPARISONS)


def body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return vop2/vop4[.sat].dtype.atype.btype[.add] of a, b, c. With .add, it is c + the sum of the parts' results."""
    action = next((word for word in op.modifiers if word in COMPARISONS), op.base[:-1])
    signs = [scalar.signed for scalar in op.types]
    if len(signs) == 2:  # vset names no type for the result
        signs.insert(0, False)
    flags = [*signs, "sat" in op.modifiers, "add" in op.modifiers, op.base.endswith("2")]
    how = _ACTIONS.index(action) << 8 | sum(flag << place for place, flag in enumerate(flags))
    arguments = [("i32", a), ("i32", b), ("i32", c), ("i32", w.const("i32", how))]
    return e.outline("sg_rt_video", "i32", arguments, w)
