"""Loads."""

from __future__ import annotations

from dataclasses import replace

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import VARYING, WARP, Affine, Shape, Wide, flat, flattened, level
from softgpu.codegen.addresses import (
    Access,
    Place,
    access_of,
    address_vector,
    group_mask,
    if_all,
    if_no_wrap,
    is_row,
    place,
    pointers_of,
    safe_pointer,
)
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.memcheck import Verb, check
from softgpu.codegen.spans import concatenate, load_span
from softgpu.codegen.values import SCALAR, Value
from softgpu.ptx.model import Register, Vector


def load_shape(_op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of a loaded value: the same in lanes with the same address."""
    address = sources[0]
    return flat([address])


def load(e: Emitter, step: Step) -> None:
    """Emit ld and ldu, of one element or a list."""
    op = step.op
    target = step.inst.operands[0]
    items = target.items if isinstance(target, Vector) else (target,)
    access = access_of(e, step, op.type, len(items))
    where = place(e, op, step.inst.operands[1], access.size * access.count, wide=True)
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
            lambda: _gather(e, access),
        )
        return [Value(VARYING, access.element, [result]) for result in results]
    return [Value(VARYING, access.element, [part]) for part in _gather_from(e, e.vector(where.value), access)]


def _load_affine(e: Emitter, where: Place, access: Access) -> list[Value]:
    shape = where.value.shape
    assert isinstance(shape, Affine)
    together = flattened(shape)
    if together is not None:
        pointers = pointers_of(e, where.value, together.segment)
        return [_load_flat(e, where, pointers, together, access, index) for index in range(access.count)]
    kinds = [f"<{WARP} x {access.element}>"] * access.count
    results = if_all(e, access, kinds, lambda access: _load_apart(e, where.value, shape, access))
    return [Value(VARYING, access.element, [result]) for result in results]


def _load_apart(e: Emitter, where: Value, shape: Affine, access: Access) -> list[str]:
    """Load from addresses that differ within a group; return vectors."""
    pointers = pointers_of(e, where, shape.segment)
    if is_row(e, shape, access):
        parts = [_load_row(e, pointer, shape.segment, group, access) for group, pointer in enumerate(pointers)]
        return [concatenate(e, access.element, parts, shape.segment)]
    results = load_span(e, shape, pointers, access)
    return _gather_from(e, address_vector(e, replace(where)), access) if results is None else results


def _load_flat(e: Emitter, where: Place, pointers: list[str], shape: Affine, access: Access, index: int) -> Value:
    parts = []
    for group, pointer in enumerate(pointers):
        if index:
            pointer = e.new(f"getelementptr i8, ptr {pointer}, i64 {index * access.size}")
        pointer = safe_pointer(e, pointer, shape, group, access)
        kind = "load volatile" if access.ordered else "load"
        ending = ", !invariant.load !0" if where.inside else ""
        parts.append(e.new(f"{kind} {access.element}, ptr {pointer}, align {access.size}{ending}"))
    return Value(level(shape.segment), access.element, parts)


def _load_row(e: Emitter, pointer: str, segment: int, group: int, access: Access) -> str:
    kind = f"<{segment} x {access.element}>"
    if not access.lanes:
        return e.new(f"load {kind}, ptr {pointer}, align {access.size}")
    name = f"llvm.masked.load.v{segment}{SCALAR.name(access.element)}.p0"
    mask = group_mask(e, access, segment, group)
    arguments = [(f"ptr align {access.size}", pointer), (f"<{segment} x i1>", mask), (kind, "zeroinitializer")]
    e.declared.add(f"declare {kind} @{name}(ptr, <{segment} x i1>, {kind})")
    return e.new(f"call {kind} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")


def _gather_from(e: Emitter, addresses: str, access: Access) -> list[str]:
    e.put(f"store <32 x i64> {addresses}, ptr %addresses")
    return _gather(e, access)


def _gather(e: Emitter, access: Access) -> list[str]:
    """Load from %addresses."""
    arguments = [("ptr", "%addresses"), ("i32", str(access.count)), ("i32", access.mask), ("ptr", "%out")]
    e.call(f"sg_rt_gather_b{8 * access.size}", arguments)
    return [e.result(access.element, index=index) for index in range(access.count)]
