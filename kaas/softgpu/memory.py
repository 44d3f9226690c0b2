"""Loads, stores and atomic operations.

An access whose addresses are known to be equal or consecutive in a group of lanes becomes a scalar or vector access in
place; every other one calls the runner, which goes through the lanes one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kaas.softgpu.emitter import SCALAR, SIZES, Emitter, Value, integer
from kaas.softgpu.family import Operation
from kaas.softgpu.flow import Step
from kaas.softgpu.ptx import Address, Operand, Register, Symbol, Vector
from kaas.softgpu.ptx_types import Scalar
from kaas.softgpu.shapes import UNIFORM, VARYING, WARP, Affine, Shape, Wide, is_flat

SPACES = frozenset({"global", "shared", "const", "local", "param"})
_ORDERED = frozenset({"volatile", "relaxed", "acquire", "release", "mmio"})


@dataclass(slots=True)
class Place:
    """Host addresses as i64 by shape, as in Value; `inside` for parameters, which nothing writes."""

    value: Value
    inside: bool = False


@dataclass(frozen=True, slots=True)
class Access:
    """What one load or store does to each address: `count` elements of `element`, one behind the other."""

    element: str
    count: int
    mask: str  # of the lanes that take part, as bits
    lanes: str  # the same as <32 x i1>; "" if all do
    surely_some: bool  # at least one lane takes part
    ordered: bool  # volatile and the like: never moved or merged

    @property
    def size(self) -> int:
        return SIZES[self.element] // 8


def load_shape(op: Operation, sources: list[Shape]) -> Shape:
    address = sources[0]
    return Affine(address.segment, 0) if isinstance(address, Affine) and is_flat(address) else VARYING


def varying_shape(op: Operation, sources: list[Shape]) -> Shape:
    return VARYING


def place(e: Emitter, op: Operation, operand: Operand) -> Place:
    """The addresses that an operand [base + offset] names in the opcode's space."""
    assert isinstance(operand, Address)
    base, offset = operand.base, operand.offset
    if isinstance(base, Symbol):
        for parameter in e.kernel.parameters:
            if parameter.name == base.name:
                pointer = e.new(f"getelementptr i8, ptr %params, i64 {parameter.offset + offset + base.offset}")
                return Place(Value(UNIFORM, "ptr", [pointer]), True)
        value = e.symbol(base.name, base.offset + offset)
        offset = 0
    elif isinstance(base, Register):
        value = e.register(base.name)
    else:
        value = e.read(base, "i64")
    if "shared" in op.modifiers or any(m.startswith("shared::") for m in op.modifiers):
        return Place(_in_shared(e, value, offset))
    value = e.cast(value, "i64")
    return Place(_shift(e, value, offset))


def _shift(e: Emitter, value: Value, offset: int) -> Value:
    if not offset:
        return value
    text = integer("i64", offset)
    match value.shape:
        case Affine(segment, step):
            return Value(Affine(segment, step), "i64", [e.new(f"add i64 {part}, {text}") for part in value.parts])
        case Wide() as shape:
            offsets = [e.new(f"add i64 {part}, {text}") for part in value.parts[shape.groups :]]
            return Value(shape, "i64", value.parts[: shape.groups] + offsets)
    return Value(VARYING, "i64", [e.new(f"add <32 x i64> {e.vector(value)}, splat (i64 {text})")])


def _in_shared(e: Emitter, value: Value, offset: int) -> Value:
    """Shared memory: signed, so that a lane below the start (which must not be running) keeps its distance to others."""
    if isinstance(value.shape, Affine):
        parts = []
        for part in value.parts:
            if value.type != "i64":
                part = e.new(f"sext {value.type} {part} to i64") if part.startswith("%") else part
            pointer = e.new(f"getelementptr i8, ptr %shared, i64 {part}")
            parts.append(e.new(f"getelementptr i8, ptr {pointer}, i64 {offset}") if offset else pointer)
        return Value(Affine(value.shape.segment, value.shape.step), "ptr", parts)
    lanes = e.vector(e.cast(value, "i64", signed=True))
    base = e.once("shared", lambda: e.new("ptrtoint ptr %shared to i64"))
    base = e.new(f"add i64 {base}, {integer('i64', offset)}") if offset else base
    return Value(VARYING, "i64", [e.new(f"add <32 x i64> {lanes}, {e.splat('i64', [base])}")])


def _access(e: Emitter, step: Step, scalar: Scalar, count: int) -> Access:
    mask, lanes = e.active(step)
    element = "i16" if scalar.llvm == "half" else scalar.llvm
    ordered = bool(_ORDERED & set(step.op.modifiers))
    return Access(element, count, mask, lanes, step.inst.guard is None, ordered)


# --- loads


def load(e: Emitter, step: Step) -> None:
    op = step.op
    target = step.inst.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    access = _access(e, step, op.type, len(items))
    where = place(e, op, step.inst.operands[1])
    values = _load(e, where, access)
    for item, value in zip(items, values):
        assert isinstance(item, Register)
        e.write(item.name, value, step, op.type.signed)


def _load(e: Emitter, where: Place, access: Access) -> list[Value]:
    shape = where.value.shape
    if isinstance(shape, Affine):
        return _load_affine(e, where, access)
    if isinstance(shape, Wide):
        kinds = [f"<32 x {access.element}>"] * access.count
        results = _if_no_wrap(
            e,
            where.value,
            kinds,
            lambda straight: [e.vector(v) for v in _load_affine(e, Place(straight), access)],
            lambda: _gather(e, _widened(e, where.value), access),
        )
        return [Value(VARYING, access.element, [result]) for result in results]
    e.put(f"store <32 x i64> {e.vector(where.value)}, ptr %addresses")
    return [Value(VARYING, access.element, [part]) for part in _gather(e, "%addresses", access)]


def _load_affine(e: Emitter, where: Place, access: Access) -> list[Value]:
    shape, size = where.value.shape, access.size
    assert isinstance(shape, Affine)
    pointers = [_pointer(e, where.value.type, part) for part in where.value.parts]
    if shape.step == 0:
        return [_load_flat(e, where, pointers, shape, access, index) for index in range(access.count)]
    if shape.step == size and access.count == 1 and _inline(e, access):
        parts = [_load_row(e, pointer, shape.segment, group, access) for group, pointer in enumerate(pointers)]
        return [Value(VARYING, access.element, [concatenate(e, access.element, parts)])]
    for group, pointer in enumerate(pointers):
        e.call(f"kaas_rt_load_step_b{8 * size}", _step_arguments(pointer, shape, group, access, "%out"))
    return [Value(VARYING, access.element, [part]) for part in _results(e, access)]


def _load_flat(
    e: Emitter, where: Place, pointers: list[str], shape: Affine, access: Access, index: int
) -> Value:
    parts = []
    for group, pointer in enumerate(pointers):
        if index:
            pointer = e.new(f"getelementptr i8, ptr {pointer}, i64 {index * access.size}")
        pointer = _safe_pointer(e, pointer, shape, group, access)
        kind = "load volatile" if access.ordered else "load"
        ending = ", !invariant.load !0" if where.inside else ""
        parts.append(e.new(f"{kind} {access.element}, ptr {pointer}, align {access.size}{ending}"))
    return Value(Affine(shape.segment, 0), access.element, parts)


def _safe_pointer(e: Emitter, pointer: str, shape: Affine, group: int, access: Access) -> str:
    """Where no lane of the group takes part, the address may be bad: scratch memory stands in for it."""
    if not access.lanes or (shape.segment == WARP and access.surely_some):
        return pointer
    bits = access.mask
    if shape.segment < WARP:
        bits = e.new(f"and i32 {bits}, {integer('i32', ((1 << shape.segment) - 1) << (group * shape.segment))}")
    some = e.new(f"icmp ne i32 {bits}, 0")
    return e.new(f"select i1 {some}, ptr {pointer}, ptr %out")


def _inline(e: Emitter, access: Access) -> bool:
    if access.ordered:
        return False
    return not access.lanes or 0 < e.target.masked_bits <= 8 * access.size


def _load_row(e: Emitter, pointer: str, segment: int, group: int, access: Access) -> str:
    kind = f"<{segment} x {access.element}>"
    if not access.lanes:
        return e.new(f"load {kind}, ptr {pointer}, align {access.size}")
    name = f"llvm.masked.load.v{segment}{SCALAR.name(access.element)}.p0"
    mask = _group_mask(e, access, segment, group)
    arguments = [(f"ptr align {access.size}", pointer), (f"<{segment} x i1>", mask), (kind, "zeroinitializer")]
    e.declared.add(f"declare {kind} @{name}(ptr, <{segment} x i1>, {kind})")
    return e.new(f"call {kind} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")


def _group_mask(e: Emitter, access: Access, segment: int, group: int) -> str:
    if segment == WARP:
        return access.lanes

    def cut() -> str:
        shifted = e.new(f"lshr i32 {access.mask}, {group * segment}") if group else access.mask
        few = e.new(f"trunc i32 {shifted} to i{segment}")
        return e.new(f"bitcast i{segment} {few} to <{segment} x i1>")

    return e.once(("group mask", access.mask, segment, group), cut)


def concatenate(e: Emitter, element: str, parts: list[str]) -> str:
    """Neighbouring vectors as one."""
    lanes = WARP // len(parts)
    while len(parts) > 1:
        order = ", ".join(f"i32 {lane}" for lane in range(2 * lanes))
        kind = f"<{lanes} x {element}>"
        parts = [
            e.new(f"shufflevector {kind} {a}, {kind} {b}, <{2 * lanes} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2])
        ]
        lanes *= 2
    return parts[0]


def _pointer(e: Emitter, kind: str, part: str) -> str:
    return part if kind == "ptr" else e.new(f"inttoptr i64 {part} to ptr")


def _step_arguments(pointer: str, shape: Affine, group: int, access: Access, data: str) -> list[tuple[str, str]]:
    first = group * shape.segment
    return [
        ("ptr", pointer),
        ("i64", str(shape.step)),
        ("i32", str(access.count)),
        ("i32", str(first)),
        ("i32", str(shape.segment)),
        ("i32", access.mask),
        ("ptr", data),
    ]


def _gather(e: Emitter, addresses: str, access: Access) -> list[str]:
    arguments = [("ptr", addresses), ("i32", str(access.count)), ("i32", access.mask), ("ptr", "%out")]
    e.call(f"kaas_rt_gather_b{8 * access.size}", arguments)
    return _results(e, access)


def _results(e: Emitter, access: Access) -> list[str]:
    parts = []
    for index in range(access.count):
        pointer = e.new(f"getelementptr i8, ptr %out, i64 {index * WARP * access.size}") if index else "%out"
        parts.append(e.new(f"load <32 x {access.element}>, ptr {pointer}"))
    return parts


# --- 32-bit ramps made 64 bits wide


def _if_no_wrap(
    e: Emitter,
    value: Value,
    kinds: list[str],
    straight: Callable[[Value], list[str]],
    otherwise: Callable[[], list[str]],
) -> list[str]:
    """Runs `straight` with the addresses as an Affine if no lane's 32-bit part wraps, else `otherwise`."""
    shape = value.shape
    assert isinstance(shape, Wide)
    wraps = e.once(("wraps", *value.parts[: shape.groups], shape), lambda: _wraps(e, value, shape))
    fast, slow, done = e.fresh("straight"), e.fresh("wrapped"), e.fresh("done")
    cache = dict(e.cache)
    e.put(f"br i1 {wraps}, label %{slow}, label %{fast}, !prof !1")
    e.start(fast)
    parts = []
    for base, offset in zip(value.parts[: shape.groups], value.parts[shape.groups :]):
        wide = e.new(f"{'sext' if shape.signed else 'zext'} i32 {base} to i64")
        wide = e.new(f"mul i64 {wide}, {shape.scale}") if shape.scale != 1 else wide
        parts.append(e.new(f"add i64 {wide}, {offset}"))
    first = straight(Value(Affine(shape.segment, shape.step * shape.scale), "i64", parts))
    fast_end = e.label
    e.put(f"br label %{done}")
    e.cache = dict(cache)
    e.start(slow)
    second = otherwise()
    slow_end = e.label
    e.put(f"br label %{done}")
    e.cache = cache
    e.start(done)
    return [
        e.new(f"phi {kind} [ {a}, %{fast_end} ], [ {b}, %{slow_end} ]") for kind, a, b in zip(kinds, first, second)
    ]


def _wraps(e: Emitter, value: Value, shape: Wide) -> str:
    reach = shape.step * (shape.segment - 1)
    name = "sadd" if shape.signed else "uadd" if reach > 0 else "usub"
    result = ""
    for base in value.parts[: shape.groups]:
        amount = integer("i32", reach if shape.signed else abs(reach))
        pair = e.intrinsic(f"llvm.{name}.with.overflow.i32", "{ i32, i1 }", [("i32", base), ("i32", amount)])
        one = e.new(f"extractvalue {{ i32, i1 }} {pair}, 1")
        result = e.new(f"or i1 {result}, {one}") if result else one
    return result


def _widened(e: Emitter, value: Value) -> str:
    """Writes the 32 addresses of a Wide to memory."""
    shape = value.shape
    assert isinstance(shape, Wide)
    for group in range(shape.groups):
        arguments = [
            ("i32", value.parts[group]),
            ("i32", str(shape.step)),
            ("i32", str(int(shape.signed))),
            ("i64", str(shape.scale)),
            ("i64", value.parts[shape.groups + group]),
            ("i32", str(group * shape.segment)),
            ("i32", str(shape.segment)),
            ("ptr", "%addresses"),
        ]
        e.call("kaas_rt_widen", arguments)
    return "%addresses"


# --- stores


def store(e: Emitter, step: Step) -> None:
    op = step.op
    source = step.inst.operands[1]
    items = source.items if isinstance(source, Vector) else (source,)
    access = _access(e, step, op.type, len(items))
    where = place(e, op, step.inst.operands[0])
    values = [e.read(item, access.element) for item in items]
    shape = where.value.shape
    if isinstance(shape, Affine):
        _store_affine(e, where.value, values, access)
    elif isinstance(shape, Wide):
        for value in values:
            e.vector(value)

        def straight(affine: Value) -> list[str]:
            _store_affine(e, affine, values, access)
            return []

        def wrapped() -> list[str]:
            _scatter(e, _widened(e, where.value), values, access)
            return []

        _if_no_wrap(e, where.value, [], straight, wrapped)
    else:
        e.put(f"store <32 x i64> {e.vector(where.value)}, ptr %addresses")
        _scatter(e, "%addresses", values, access)


def _store_affine(e: Emitter, where: Value, values: list[Value], access: Access) -> None:
    shape = where.shape
    assert isinstance(shape, Affine)
    pointers = [_pointer(e, where.type, part) for part in where.parts]
    if shape.step == 0 and all(is_flat(v.shape) and v.shape.segment >= shape.segment for v in values):  # type: ignore[union-attr]
        for index, value in enumerate(values):
            _store_flat(e, pointers, shape, value, index, access)
    elif shape.step == access.size and access.count == 1 and _inline(e, access):
        vector = e.vector(values[0])
        for group, pointer in enumerate(pointers):
            _store_row(e, pointer, vector, shape.segment, group, access)
    else:
        _spill(e, values, access)
        for group, pointer in enumerate(pointers):
            e.call(f"kaas_rt_store_step_b{8 * access.size}", _step_arguments(pointer, shape, group, access, "%in0"))


def _store_flat(e: Emitter, pointers: list[str], shape: Affine, value: Value, index: int, access: Access) -> None:
    kind = "store volatile" if access.ordered else "store"
    for group, (pointer, part) in enumerate(zip(pointers, e.groups(value, shape.segment))):
        if index:
            pointer = e.new(f"getelementptr i8, ptr {pointer}, i64 {index * access.size}")
        pointer = _safe_pointer(e, pointer, shape, group, access)
        e.put(f"{kind} {access.element} {part}, ptr {pointer}, align {access.size}")


def _store_row(e: Emitter, pointer: str, vector: str, segment: int, group: int, access: Access) -> None:
    kind = f"<{segment} x {access.element}>"
    if segment < WARP:
        order = ", ".join(f"i32 {group * segment + lane}" for lane in range(segment))
        whole = f"<32 x {access.element}>"
        vector = e.new(f"shufflevector {whole} {vector}, {whole} poison, <{segment} x i32> <{order}>")
    if not access.lanes:
        e.put(f"store {kind} {vector}, ptr {pointer}, align {access.size}")
        return
    name = f"llvm.masked.store.v{segment}{SCALAR.name(access.element)}.p0"
    mask = _group_mask(e, access, segment, group)
    e.declared.add(f"declare void @{name}({kind}, ptr, <{segment} x i1>)")
    e.put(f"call void @{name}({kind} {vector}, ptr align {access.size} {pointer}, <{segment} x i1> {mask})")


def _spill(e: Emitter, values: list[Value], access: Access) -> None:
    for index, value in enumerate(values):
        pointer = e.new(f"getelementptr i8, ptr %in0, i64 {index * WARP * access.size}") if index else "%in0"
        e.put(f"store <32 x {access.element}> {e.vector(value)}, ptr {pointer}")


def _scatter(e: Emitter, addresses: str, values: list[Value], access: Access) -> None:
    _spill(e, values, access)
    arguments = [("ptr", addresses), ("i32", str(access.count)), ("i32", access.mask), ("ptr", "%in0")]
    e.call(f"kaas_rt_scatter_b{8 * access.size}", arguments)


# --- atomics

ATOMIC_OPERATIONS = frozenset({"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"})


def atomic(e: Emitter, step: Step) -> None:
    """atom.op.type d, [a], b[, c] and red.op.type [a], b. Lanes go one after the other, in lane order."""
    op = step.op
    has_result = op.family.has_result
    operands = step.inst.operands[1:] if has_result else step.inst.operands
    mask, _ = e.active(step)
    where = place(e, op, operands[0])
    scalar = op.type
    bits = f"i{scalar.bits}"
    for slot, operand in zip(("%in0", "%in1"), operands[1:]):
        e.put(f"store <32 x {bits}> {e.vector(e.read(operand, bits))}, ptr {slot}")
    e.put(f"store <32 x i64> {_address_vector(e, where.value)}, ptr %addresses")
    name = next(m for m in op.modifiers if m in ATOMIC_OPERATIONS)
    arguments = [("ptr", "%addresses"), ("ptr", "%in0"), ("ptr", "%in1"), ("i32", mask), ("ptr", "%out")]
    e.call(f"kaas_rt_atom_{name}_{_atomic_type(name, scalar)}", arguments)
    if has_result:
        target = step.inst.operands[0]
        assert isinstance(target, Register)
        e.write(target.name, Value(VARYING, bits, [e.new(f"load <32 x {bits}>, ptr %out")]), step)


def _atomic_type(name: str, scalar: Scalar) -> str:
    """Helpers exist for the types that make a difference."""
    if scalar.kind in "fh" and name in ("add", "min", "max"):
        return scalar.name
    if name in ("min", "max"):
        return f"{'s' if scalar.signed else 'u'}{scalar.bits}"
    return f"b{scalar.bits}"


def _address_vector(e: Emitter, value: Value) -> str:
    if value.type == "ptr":
        assert isinstance(value.shape, Affine)
        parts = [e.new(f"ptrtoint ptr {part} to i64") for part in value.parts]
        value = Value(value.shape, "i64", parts)
    return e.vector(value)
