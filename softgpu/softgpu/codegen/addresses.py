"""The addresses of loads and stores.

An access whose addresses are equal or consecutive in a group of lanes becomes a scalar or vector access in place; every
other access calls the runner, which goes through the lanes one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import UNIFORM, VARYING, WARP, Affine, Wide, ramp
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.fences import fence_addresses, fenced, reaches
from softgpu.codegen.values import SCALAR, SIZES, VECTOR, Value, Width, integer
from softgpu.ptx.model import Address, Operand, PtxError, Register, Symbol
from softgpu.ptx.types import Scalar

_ORDERED = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})


@dataclass(slots=True)
class Place:
    """Host addresses as i64 by shape, as in Value.

    In fenced code they are within the window, but for a Wide, whose lanes `if_no_wrap` fences. inside: an address of
    parameters, which no instruction writes. named: as the program has them, without a fence.
    """

    value: Value
    inside: bool = False
    named: Value | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """One load or store: at each address, `count` elements of type `element`, one behind the other."""

    element: str
    count: int
    mask: str  # of the lanes that take part, as bits
    lanes: str  # the same as <32 x i1>; "" if all lanes take part
    surely_some: bool  # at least one lane takes part
    ordered: bool  # volatile or similar: never moved or merged

    @property
    def size(self) -> int:
        """Return the size of an element in bytes."""
        return SIZES[self.element] // 8


def place(e: Emitter, op: Operation, operand: Operand, size: int, space: str = "", *, wide: bool = False) -> Place:
    """Return the addresses of an operand [base + offset] in `space`, or in the opcode's space.

    size: the bytes that an access reads or writes there. wide: the caller takes a Wide to `if_no_wrap`.

    Raises:
        PtxError: the access ends outside of the kernel's parameters.
    """
    assert isinstance(operand, Address)
    words = (space,) if space else op.modifiers
    base, offset = operand.base, operand.offset
    if isinstance(base, Symbol):
        for parameter in e.kernel.parameters:
            if parameter.name == base.name:
                first = parameter.offset + offset + base.offset
                if not 0 <= first <= e.kernel.param_bytes - size:
                    raise PtxError(0, f"an access outside of the parameters: {first} to {first + size}")
                pointer = e.new(f"getelementptr i8, ptr %params, i64 {parameter.offset + offset + base.offset}")
                return Place(Value(UNIFORM, "ptr", [pointer]), True)
        value = e.symbol(base.name, base.offset + offset)
        offset = 0
    elif isinstance(base, Register):
        value = e.register(base.name)
    else:
        value = e.read(base, "i64")
    if any(word.split("::")[0] == "shared" for word in words):
        where = _in_shared(e, value, offset)
    else:
        where = _shift(e, in_local(e, value) if "local" in words else e.cast(value, "i64"), offset)
    if not e.fenced or (wide and isinstance(where.shape, Wide) and reaches(where.shape)):
        return Place(where)
    if where.type == "ptr":
        where = Value(where.shape, "i64", [e.new(f"ptrtoint ptr {part} to i64") for part in where.parts])
    return Place(fenced(e, where), named=where)


def _shift(e: Emitter, value: Value, offset: int) -> Value:
    if not offset:
        return value
    text = integer("i64", offset)
    match value.shape:
        case Affine(offsets):
            return Value(Affine(offsets), "i64", [e.new(f"add i64 {part}, {text}") for part in value.parts])
        case Wide() as shape:
            shifted = [e.new(f"add i64 {part}, {text}") for part in value.parts[shape.groups :]]
            return Value(shape, "i64", value.parts[: shape.groups] + shifted)
    return Value(VARYING, "i64", [e.new(f"add <32 x i64> {e.vector(value)}, splat (i64 {text})")])


def in_local(e: Emitter, value: Value) -> Value:
    """Return local addresses as 64 bits. They are host addresses, of which some compilers keep the low 32 bits."""
    if value.type != "i32":
        return value
    low = e.once("low local", lambda: e.new("trunc i64 %local to i32"))
    if isinstance(value.shape, Affine):
        parts = [_from_low(e, SCALAR, part, "%local", low) for part in value.parts]
        return Value(value.shape, "i64", parts)
    start, base = e.splat("i64", ["%local"]), e.splat("i32", [low])
    return Value(VARYING, "i64", [_from_low(e, VECTOR, e.vector(value), start, base)])


def _from_low(e: Emitter, w: Width, address: str, start: str, low: str) -> str:
    offset = e.new(f"sub {w.of('i32')} {address}, {low}")
    wide = e.new(f"sext {w.of('i32')} {offset} to {w.of('i64')}")
    return e.new(f"add {w.of('i64')} {start}, {wide}")


def _in_shared(e: Emitter, value: Value, offset: int) -> Value:
    """Return addresses in shared memory. Offsets are signed: a lane below the start cannot run, but keeps its place."""
    if isinstance(value.shape, Affine):
        parts = []
        for part in value.parts:
            if value.type != "i64":
                part = e.new(f"sext {value.type} {part} to i64") if part.startswith("%") else part
            pointer = e.new(f"getelementptr i8, ptr %shared, i64 {part}")
            parts.append(e.new(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer)
        return Value(Affine(value.shape.offsets), "ptr", parts)
    lanes = e.vector(e.cast(value, "i64", signed=True))
    base = e.once("shared", lambda: e.new("ptrtoint ptr %shared to i64"))
    base = e.new(f"add i64 {base}, {integer('i64', offset)}") if offset else base
    return Value(VARYING, "i64", [e.new(f"add <32 x i64> {lanes}, {e.splat('i64', [base])}")])


def address_vector(e: Emitter, value: Value) -> str:
    """Return the addresses of all lanes as <32 x i64>."""
    if value.type == "ptr":
        assert isinstance(value.shape, Affine)
        value = Value(value.shape, "i64", [e.new(f"ptrtoint ptr {part} to i64") for part in value.parts])
    return e.vector(value)


def access_of(e: Emitter, step: Step, scalar: Scalar, count: int) -> Access:
    """Return the access of a step that loads or stores `count` elements of a type."""
    mask, lanes = e.active(step)
    element = "i16" if scalar.llvm == "half" else scalar.llvm
    ordered = bool(_ORDERED & set(step.op.modifiers))
    return Access(element, count, mask, lanes, step.inst.guard is None, ordered)


def safe_pointer(e: Emitter, pointer: str, shape: Affine, group: int, access: Access) -> str:
    """Return the pointer, or one to scratch memory if no lane of the group takes part: its address may be bad."""
    if not access.lanes or (shape.segment == WARP and access.surely_some):
        return pointer
    bits = access.mask
    if shape.segment < WARP:
        bits = e.new(f"and i32 {bits}, {integer('i32', ((1 << shape.segment) - 1) << (group * shape.segment))}")
    some = e.new(f"icmp ne i32 {bits}, 0")
    return e.new(f"select i1 {some}, ptr {pointer}, ptr %out")


def can_mask(e: Emitter, access: Access) -> bool:
    """Return True if the processor can do the access as a vector under its mask."""
    if access.ordered:
        return False
    return not access.lanes or 0 < e.target.masked_bits <= 8 * access.size


def is_row(e: Emitter, shape: Affine, access: Access) -> bool:
    """Return True if neighbouring lanes have neighbouring elements."""
    return access.count == 1 and shape.offsets == ramp(shape.segment, access.size) and can_mask(e, access)


def group_mask(e: Emitter, access: Access, segment: int, group: int) -> str:
    """Return the lanes of a group that take part, as <segment x i1>."""
    if segment == WARP:
        return access.lanes

    def cut() -> str:
        shifted = e.new(f"lshr i32 {access.mask}, {group * segment}") if group else access.mask
        return e.unpack(shifted, segment)

    return e.once(("group mask", access.mask, segment, group), cut)


def pointers_of(e: Emitter, value: Value, segment: int) -> list[str]:
    """Return pointers to the beginnings of the groups of this size."""
    assert isinstance(value.shape, Affine)
    have, out = value.shape.segment, []
    for start in range(0, WARP, segment):
        part = value.parts[start // have]
        pointer = part if value.type == "ptr" else e.new(f"inttoptr i64 {part} to ptr")
        shift = value.shape.offsets[start % have]
        out.append(e.new(f"getelementptr i8, ptr {pointer}, i64 {shift}") if shift else pointer)
    return out


def if_all(e: Emitter, access: Access, kinds: list[str], body: Callable[[Access], list[str]]) -> list[str]:
    """Write `body` without a mask for all 32 lanes of a guarded access, and with the mask for fewer.

    The code of a block already knows if all lanes run it, so only a guard needs this test. A body must not keep its
    results: it is written twice.
    """
    if not access.lanes or access.surely_some or e.memcheck or e.target.has_mask_registers:
        return body(access)
    every, some, done = e.fresh("every"), e.fresh("some"), e.fresh("done")
    e.put(f"br i1 {e.new(f'icmp eq i32 {access.mask}, -1')}, label %{every}, label %{some}")
    cache = dict(e.cache)
    ways = []
    for label, way in ((every, replace(access, mask="-1", lanes="")), (some, access)):
        e.cache = dict(cache)
        e.start(label)
        results = body(way)
        ways.append((results, e.label))
        e.put(f"br label %{done}")
    e.cache = cache
    e.start(done)
    (first, first_end), (second, second_end) = ways
    return [
        e.new(f"phi {kind} [ {a}, %{first_end} ], [ {b}, %{second_end} ]")
        for kind, a, b in zip(kinds, first, second, strict=True)
    ]


def if_no_wrap(
    e: Emitter,
    value: Value,
    kinds: list[str],
    straight: Callable[[Value], list[str]],
    otherwise: Callable[[], list[str]],
) -> list[str]:
    """Write `straight`, with the addresses as an Affine, for the case that no lane's 32-bit part wraps.

    For the other case, write `otherwise`, with all addresses in %addresses.
    """
    shape = value.shape
    assert isinstance(shape, Wide)
    wraps = e.once(("wraps", *value.parts[: shape.groups], shape), lambda: _wraps(e, value, shape))
    fast, slow, done = e.fresh("straight"), e.fresh("wrapped"), e.fresh("done")
    cache = dict(e.cache)
    e.put(f"br i1 {wraps}, label %{slow}, label %{fast}, !prof !1")
    e.start(fast)
    parts = []
    for base, offset in zip(value.parts[: shape.groups], value.parts[shape.groups :], strict=False):
        wide = e.new(f"{'sext' if shape.signed else 'zext'} i32 {base} to i64")
        wide = e.new(f"mul i64 {wide}, {shape.scale}") if shape.scale != 1 else wide
        parts.append(e.new(f"add i64 {wide}, {offset}"))
    lanes = Value(Affine(tuple(offset * shape.scale for offset in shape.offsets)), "i64", parts)
    first = straight(fenced(e, lanes) if e.fenced else lanes)
    fast_end = e.label
    e.put(f"br label %{done}")
    e.cache = dict(cache)
    e.start(slow)
    _widen(e, value, shape)
    fence_addresses(e)
    second = otherwise()
    slow_end = e.label
    e.put(f"br label %{done}")
    e.cache = cache
    e.start(done)
    return [
        e.new(f"phi {kind} [ {a}, %{fast_end} ], [ {b}, %{slow_end} ]")
        for kind, a, b in zip(kinds, first, second, strict=False)
    ]


def _wraps(e: Emitter, value: Value, shape: Wide) -> str:
    result = ""
    for base in value.parts[: shape.groups]:
        for reach in (max(shape.offsets), min(shape.offsets)):
            if not reach:
                continue
            name = "sadd" if shape.signed else "uadd" if reach > 0 else "usub"
            amount = integer("i32", reach if shape.signed else abs(reach))
            pair = e.intrinsic(f"llvm.{name}.with.overflow.i32", "{ i32, i1 }", [("i32", base), ("i32", amount)])
            one = e.new(f"extractvalue {{ i32, i1 }} {pair}, 1")
            result = e.new(f"or i1 {result}, {one}") if result else one
    return result


def _widen(e: Emitter, value: Value, shape: Wide) -> None:
    """Write the 32 addresses to %addresses."""
    offsets = e.table(shape.offsets)
    for group in range(shape.groups):
        arguments = [
            ("i32", value.parts[group]),
            ("ptr", offsets),
            ("i32", str(int(shape.signed))),
            ("i64", str(shape.scale)),
            ("i64", value.parts[shape.groups + group]),
            ("i32", str(group * shape.segment)),
            ("i32", str(shape.segment)),
            ("ptr", "%addresses"),
        ]
        e.call("sg_rt_widen", arguments)
