"""Instructions that do the same in each lane: one body for scalars and vectors, and the shapes of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from softgpu.analysis import shapes
from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import Affine, Shape, Wide, add, flat, is_flat, join, multiply, widen
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import Value

Body = Callable[..., str]  # (emitter, operation, width, *arguments) -> value

Kinds = Callable[[Operation, int], list[str]]

ShapeRule = Callable[[Operation, list[Shape]], Shape]


def flat_shape(_op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of a result that is the same in lanes with the same inputs."""
    return flat(sources)


def same_types(op: Operation, count: int) -> list[str]:
    """Return the opcode's last type for every operand."""
    return [op.llvm] * count


def elementwise(
    body: Body,
    shape: ShapeRule = flat_shape,
    kinds: Kinds = same_types,
    result: Callable[[Operation], str] = lambda op: op.llvm,
) -> Callable[[Emitter, Step], None]:
    """Return the emitter of an instruction d, a, b, ... that computes body(a, b, ...) in each lane."""

    def emit(e: Emitter, step: Step) -> None:
        op = step.op
        operands = step.inst.operands[1:]
        wanted = kinds(op, len(operands))
        signed = op.type.signed
        values = [e.read(operand, kind, signed) for operand, kind in zip(operands, wanted, strict=False)]
        form = shape(op, [value.shape for value in values])
        if isinstance(form, Wide):
            value = wide(e, op, form, values)
        else:
            value = e.apply(form, result(op), lambda width, *args: body(e, op, width, *args), values)
        target = step.inst.operands[0]
        e.write(target.name, value, step, signed)  # type: ignore[union-attr]

    return emit


def wide(e: Emitter, op: Operation, form: Wide, values: list[Value]) -> Value:
    """Return the result of an operation as a Wide: the bases stay, the offsets are added or scaled."""
    first, others = values[0], values[1:]
    if not isinstance(first.shape, Wide) and others and isinstance(others[0].shape, Wide):
        first, others = others[0], [first, *others[1:]]
    if isinstance(first.shape, Wide):
        source = e.reshape(first, replace(first.shape, offsets=form.offsets))
        bases, offsets = source.parts[: form.groups], source.parts[form.groups :]
    else:
        narrow = others[0] if is_flat(first.shape) else first
        bases, offsets = e.groups(narrow, form.segment), ["0"] * form.groups
    match op.base:
        case "add" | "sub":
            addends = e.groups(others[0], form.segment)
            offsets = [e.new(f"{op.base} i64 {a}, {b}") for a, b in zip(offsets, addends, strict=False)]
        case "mad" if "wide" in op.modifiers:
            offsets = e.groups(others[1], form.segment)
        case "mul" | "mad" | "shl" if isinstance(first.shape, Wide):
            factor = form.scale // first.shape.scale
            offsets = [e.new(f"mul i64 {a}, {factor}") for a in offsets]
            if op.base == "mad":
                addends = e.groups(others[1], form.segment)
                offsets = [e.new(f"add i64 {a}, {b}") for a, b in zip(offsets, addends, strict=False)]
    return Value(form, "i64", [*bases, *offsets])


def _integer(rule: ShapeRule) -> ShapeRule:
    """Return the rule for integers of 16 bits or more; other results are flat or varying."""

    def shape(op: Operation, sources: list[Shape]) -> Shape:
        return rule(op, sources) if op.type.kind in "bsu" and op.type.bits >= 16 else flat(sources)

    return shape


add_shape = _integer(lambda op, s: flat(s) if op.modifiers and op.modifiers[0] in ("cc", "sat") else add(s[0], s[1]))

sub_shape = _integer(
    lambda op, s: flat(s) if op.modifiers and op.modifiers[0] in ("cc", "sat") else add(s[0], s[1], -1)
)

and_shape = _integer(lambda _, s: shapes.bit_and(s[0], s[1]))

or_shape = _integer(lambda _, s: shapes.bit_or(s[0], s[1]))

shr_shape = _integer(lambda _, s: shapes.shift_right(s[0], s[1]))

neg_shape = _integer(lambda _, s: add(shapes.constant(0), s[0], -1))


@_integer
def shl_shape(op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of a left shift: that of a product if the count is a constant."""
    by = sources[1]
    if isinstance(by, Affine) and by.value is not None and 0 <= by.value < min(op.type.bits, 31):
        return multiply(sources[0], shapes.constant(1 << by.value))
    return flat(sources)


@_integer
def mul_shape(op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of mul's or mad's result."""
    if "hi" in op.modifiers:
        return flat(sources)
    a, b = sources[0], sources[1]
    if "wide" in op.modifiers:
        if op.type.bits != 32:
            return flat(sources)
        a, b = widen(a, op.type.signed), widen(b, op.type.signed)
    product = multiply(a, b)
    if len(sources) < 3:
        return product
    total = add(product, sources[2])
    return total if isinstance(total, Wide) == isinstance(product, Wide) else flat(sources)


def mov_shape(op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of mov's result: a plain copy of an integer keeps its shape."""
    if len(sources) == 1 and (op.type.kind in "bsu" or is_flat(sources[0])):
        return sources[0]
    return flat(sources)


def selp_shape(_op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of selp's result: if all lanes choose alike, the shape that holds both choices."""
    if not shapes.is_uniform(sources[2]):
        return flat(sources)
    both = join(sources[0], sources[1])
    if isinstance(both, Affine):
        return Affine(both.offsets)
    return flat(sources)
