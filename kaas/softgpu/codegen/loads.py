"""Loads."""

from __future__ import annotations

from kaas.softgpu.analysis.blocks import Step
from kaas.softgpu.analysis.shapes import VARYING, WARP, Affine, Shape, Wide, is_flat
from kaas.softgpu.codegen.addresses import (
    Access,
    Place,
    access_of,
    can_mask,
    group_mask,
    if_no_wrap,
    place,
    pointer_of,
    safe_pointer,
    step_arguments,
    widened,
)
from kaas.softgpu.codegen.emitter import Emitter
from kaas.softgpu.codegen.family import Operation
from kaas.softgpu.codegen.memcheck import Verb, check
from kaas.softgpu.codegen.values import SCALAR, Value
from kaas.softgpu.ptx.model import Register, Vector


def load_shape(_op: Operation, sources: list[Shape]) -> Shape:
    address = sources[0]
    return Affine(address.segment, 0) if isinstance(address, Affine) and is_flat(address) else VARYING


def load(e: Emitter, step: Step) -> None:
    op = step.op
    target = step.inst.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    access = access_of(e, step, op.type, len(items))
    where = place(e, op, step.inst.operands[1])
    check(e, step, where, access.mask, access.size * access.count, Verb.READ)
    values = _load(e, where, access)
    for item, value in zip(items, values, strict=False):
        assert isinstance(item, Register)
        e.write(item.name, value, step, op.type.signed)


def _load(e: Emitter, where: Place, access: Access) -> list[Value]:
    shape = where.value.shape
    if isinstance(shape, Affine):
        return _load_affine(e, where, access)
    if isinstance(shape, Wide):
        kinds = [f"<32 x {access.element}>"] * access.count
        results = if_no_wrap(
            e,
            where.value,
            kinds,
            lambda straight: [e.vector(v) for v in _load_affine(e, Place(straight), access)],
            lambda: _gather(e, widened(e, where.value), access),
        )
        return [Value(VARYING, access.element, [result]) for result in results]
    e.put(f"store <32 x i64> {e.vector(where.value)}, ptr %addresses")
    return [Value(VARYING, access.element, [part]) for part in _gather(e, "%addresses", access)]


def _load_affine(e: Emitter, where: Place, access: Access) -> list[Value]:
    shape, size = where.value.shape, access.size
    assert isinstance(shape, Affine)
    pointers = [pointer_of(e, where.value.type, part) for part in where.value.parts]
    if shape.step == 0:
        return [_load_flat(e, where, pointers, shape, access, index) for index in range(access.count)]
    if shape.step == size and access.count == 1 and can_mask(e, access):
        parts = [_load_row(e, pointer, shape.segment, group, access) for group, pointer in enumerate(pointers)]
        return [Value(VARYING, access.element, [concatenate(e, access.element, parts)])]
    for group, pointer in enumerate(pointers):
        e.call(f"kaas_rt_load_step_b{8 * size}", step_arguments(pointer, shape, group, access, "%out"))
    return [Value(VARYING, access.element, [part]) for part in _results(e, access)]


def _load_flat(e: Emitter, where: Place, pointers: list[str], shape: Affine, access: Access, index: int) -> Value:
    parts = []
    for group, pointer in enumerate(pointers):
        if index:
            pointer = e.new(f"getelementptr i8, ptr {pointer}, i64 {index * access.size}")
        pointer = safe_pointer(e, pointer, shape, group, access)
        kind = "load volatile" if access.ordered else "load"
        ending = ", !invariant.load !0" if where.inside else ""
        parts.append(e.new(f"{kind} {access.element}, ptr {pointer}, align {access.size}{ending}"))
    return Value(Affine(shape.segment, 0), access.element, parts)


def _load_row(e: Emitter, pointer: str, segment: int, group: int, access: Access) -> str:
    kind = f"<{segment} x {access.element}>"
    if not access.lanes:
        return e.new(f"load {kind}, ptr {pointer}, align {access.size}")
    name = f"llvm.masked.load.v{segment}{SCALAR.name(access.element)}.p0"
    mask = group_mask(e, access, segment, group)
    arguments = [(f"ptr align {access.size}", pointer), (f"<{segment} x i1>", mask), (kind, "zeroinitializer")]
    e.declared.add(f"declare {kind} @{name}(ptr, <{segment} x i1>, {kind})")
    return e.new(f"call {kind} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")


def concatenate(e: Emitter, element: str, parts: list[str]) -> str:
    """Neighbouring vectors as one."""
    lanes = WARP // len(parts)
    while len(parts) > 1:
        order = ", ".join(f"i32 {lane}" for lane in range(2 * lanes))
        kind = f"<{lanes} x {element}>"
        parts = [
            e.new(f"shufflevector {kind} {a}, {kind} {b}, <{2 * lanes} x i32> <{order}>")
            for a, b in zip(parts[::2], parts[1::2], strict=False)
        ]
        lanes *= 2
    return parts[0]


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
