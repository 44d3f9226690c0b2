"""Tests for the state space of a generic address. Generic addresses are host addresses."""

from __future__ import annotations

from softgpu.analysis.shapes import WARP
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.special import WARP_FIELDS, warp_field
from softgpu.codegen.values import Width

SPACES = ("global", "shared", "shared::cta", "local", "const", "param", "param::entry")


def is_in_space(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return isspacep.space of a. Parameters are part of global memory, as in the PTX manual."""
    match op.modifiers[0].split("::")[0]:
        case "shared":
            return in_shared(e, w, a)
        case "local":
            return _in_local(e, w, a)
        case "const":
            return _in_constants(e, w, a)
        case "param":
            return _within(e, w, a, e.new("ptrtoint ptr %params to i64"), str(e.kernel.param_bytes))
    others = [in_shared(e, w, a), _in_local(e, w, a), _in_constants(e, w, a)]
    return e.new(f"xor {w.of('i1')} {_any(e, w, others)}, {w.const('i1', 1)}")


def _within(e: Emitter, w: Width, a: str, start: str, size: str) -> str:
    """Return the truth of start <= a < start + size; start and size are scalars."""
    kind = w.of("i64")
    first, count = (e.splat("i64", [one]) if w.lanes > 1 else one for one in (start, size))
    offset = e.new(f"sub {kind} {a}, {first}")
    return e.new(f"icmp ult {kind} {offset}, {count}")


def _any(e: Emitter, w: Width, truths: list[str]) -> str:
    result = w.const("i1", 0)
    for truth in truths:
        result = e.new(f"or {w.of('i1')} {result}, {truth}")
    return result


def in_shared(e: Emitter, w: Width, a: str) -> str:
    """Return True where the address is in the block's shared memory."""
    start = e.once("shared", lambda: e.new("ptrtoint ptr %shared to i64"))
    size = e.new(f"zext i32 {warp_field(e, WARP_FIELDS['total'], 'i32')} to i64")
    return _within(e, w, a, start, size)


def _in_local(e: Emitter, w: Width, a: str) -> str:
    return _within(e, w, a, "%local", str(WARP * e.kernel.local_bytes))


def _in_constants(e: Emitter, w: Width, a: str) -> str:
    if not e.kernel.constants:
        return w.const("i1", 0)
    e.uses_globals = True
    spans = e.kernel.constants
    places = [_within(e, w, a, e.new(f"add i64 %globals, {start}"), str(end - start)) for start, end in spans]
    return _any(e, w, places)
