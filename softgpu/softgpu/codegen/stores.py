"""Stores."""

from __future__ import annotations

from dataclasses import replace

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import WARP, Affine, Wide, flattened
from softgpu.codegen.addresses import (
    Access,
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
from softgpu.codegen.memcheck import Verb, check
from softgpu.codegen.spans import store_span
from softgpu.codegen.values import SCALAR, Value
from softgpu.ptx.model import Vector


def store(e: Emitter, step: Step) -> None:
    """Emit st, of one element or a list."""
    op = step.op
    source = step.inst.operands[1]
    items = source.items if isinstance(source, Vector) else (source,)
    access = access_of(e, step, op.type, len(items))
    where = place(e, op, step.inst.operands[0], access.size * access.count, wide=True)
    check(e, step, where, access.mask, access.size * access.count, Verb.WRITE)
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
            _scatter(e, values, access)
            return []

        if_no_wrap(e, where.value, [], straight, wrapped)
    else:
        _scatter_to(e, e.vector(where.value), values, access)


def _store_affine(e: Emitter, where: Value, values: list[Value], access: Access) -> None:
    shape = where.shape
    assert isinstance(shape, Affine)
    together = flattened(shape)
    levels = [flattened(value.shape) for value in values]
    if together is not None and all(one is not None and one.segment >= together.segment for one in levels):
        pointers = pointers_of(e, where, together.segment)
        for index, value in enumerate(values):
            _store_flat(e, pointers, together, value, index, access)
        return
    for value in values:
        e.vector(value)

    def apart(access: Access) -> list[str]:
        pointers = pointers_of(e, where, shape.segment)
        if is_row(e, shape, access):
            for group, pointer in enumerate(pointers):
                _store_row(e, pointer, e.vector(values[0]), shape.segment, group, access)
        elif not store_span(e, shape, pointers, values, access):
            _scatter_to(e, address_vector(e, replace(where)), values, access)
        return []

    if_all(e, access, [], apart)


def _store_flat(e: Emitter, pointers: list[str], shape: Affine, value: Value, index: int, access: Access) -> None:
    kind = "store volatile" if access.ordered else "store"
    for group, (pointer, part) in enumerate(zip(pointers, e.groups(value, shape.segment), strict=False)):
        if index:
            pointer = e.new(f"getelementptr i8, ptr {pointer}, i64 {index * access.size}")
        pointer = safe_pointer(e, pointer, shape, group, access)
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
    mask = group_mask(e, access, segment, group)
    e.declared.add(f"declare void @{name}({kind}, ptr, <{segment} x i1>)")
    e.put(f"call void @{name}({kind} {vector}, ptr align {access.size} {pointer}, <{segment} x i1> {mask})")


def _scatter_to(e: Emitter, addresses: str, values: list[Value], access: Access) -> None:
    e.put(f"store <32 x i64> {addresses}, ptr %addresses")
    _scatter(e, values, access)


def _scatter(e: Emitter, values: list[Value], access: Access) -> None:
    """Store to %addresses."""
    for index, value in enumerate(values):
        pointer = e.new(f"getelementptr i8, ptr %in0, i64 {index * WARP * access.size}") if index else "%in0"
        e.put(f"store <32 x {access.element}> {e.vector(value)}, ptr {pointer}")
    arguments = [("ptr", "%addresses"), ("i32", str(access.count)), ("i32", access.mask), ("ptr", "%in0")]
    e.call(f"sg_rt_scatter_b{8 * access.size}", arguments)
