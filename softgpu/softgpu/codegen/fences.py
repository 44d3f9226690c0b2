"""Fences: the addresses of a confined kernel, moved into the window of its launch.

An address becomes `(address & mask) | base`, whatever its state space: buffers, the variables of the module, shared and
local memory and the parameters all lie in the window. There is no branch, so nothing can change between a check and an
access. One fence serves a group of lanes: guards around the window take what their constant offsets add.
"""

from __future__ import annotations

from softgpu.analysis.shapes import VARYING, Affine, Wide
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.values import SCALAR, VECTOR, Value, Width

LANES_REACH = 32 << 20
"""The most bytes by which a lane is away from the base of its group. The guards have twice as many (window.c)."""


def fenced(e: Emitter, value: Value) -> Value:
    """Return addresses, which are 64-bit integers, within the window."""
    shape = value.shape
    if isinstance(shape, Affine) and reaches(shape):
        return Value(Affine(shape.offsets), "i64", [_fence(e, SCALAR, part) for part in value.parts])
    return Value(VARYING, "i64", [_fence(e, VECTOR, e.vector(value))])


def reaches(shape: Affine | Wide) -> bool:
    """Return True if no lane is farther from the base of its group than the guards take."""
    scale = shape.scale if isinstance(shape, Wide) else 1
    return max(abs(offset * scale) for offset in shape.offsets) <= LANES_REACH


def fence_addresses(e: Emitter) -> None:
    """Move the addresses in %addresses into the window."""
    if e.fenced:
        kind = VECTOR.of("i64")
        e.put(f"store {kind} {_fence(e, VECTOR, e.new(f'load {kind}, ptr %addresses'))}, ptr %addresses")


def _fence(e: Emitter, w: Width, address: str) -> str:
    """Return the address within the window. A value that LLVM may choose is chosen before that (freeze)."""
    kind = w.of("i64")
    mask, base = (_everywhere(e, name) if w.lanes > 1 else name for name in NAMES)
    inside = e.new(f"and {kind} {e.new(f'freeze {kind} {address}')}, {mask}")
    return e.new(f"or {kind} {inside}, {base}")


def _everywhere(e: Emitter, name: str) -> str:
    return e.once(name, lambda: e.splat("i64", [name]))


NAMES = ("%within", "%window")
"""The mask and the base, which each kernel loads at its beginning."""
