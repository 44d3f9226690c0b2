"""Comparison and selection."""

from __future__ import annotations

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import Varying, flat
from softgpu.codegen import reals
from softgpu.codegen.denormals import flush, flush_all
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import SCALAR, VECTOR, Value, Width
from softgpu.ptx.model import Pair
from softgpu.ptx.types import SCALARS, Scalar


def selp_kinds(op: Operation, _count: int) -> list[str]:
    """Return the element types of selp's operands."""
    return [op.llvm, op.llvm, "i1"]


def selp_body(e: Emitter, op: Operation, w: Width, a: str, b: str, p: str) -> str:
    """Return a where p holds, else b."""
    return e.new(f"select {w.of('i1')} {p}, {w.of(op.llvm)} {a}, {w.of(op.llvm)} {b}")


def slct_kinds(op: Operation, _count: int) -> list[str]:
    """Return the element types of slct's operands."""
    return [op.types[0].llvm, op.types[0].llvm, op.llvm]


def slct_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return a where c >= 0, else b."""
    kind = w.of(op.llvm)
    c = flush(e, op, w, op.type, c)
    test = "fcmp oge" if op.type.kind == "f" else "icmp sge"
    zero = w.const(op.llvm, 0) if op.type.kind != "f" else "zeroinitializer" if w.lanes > 1 else "0.0"
    first = e.new(f"{test} {kind} {c}, {zero}")
    return e.new(f"select {w.of('i1')} {first}, {w.of(op.types[0].llvm)} {a}, {w.of(op.types[0].llvm)} {b}")


_UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}

_REAL = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord", "nan": "uno"}

_REAL |= {f"{name}u": f"u{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")}

COMPARISONS = frozenset({*_UNSIGNED, *_REAL})


def compare(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return the truth of the opcode's comparison."""
    test = next(m for m in op.modifiers if m in COMPARISONS)
    kind = op.llvm
    if op.type.kind in "fh":
        if reals.is_small(op):
            kind = "float"
            a, b = (reals.to_float(e, op.type, w, x) for x in (a, b))
        return e.new(f"fcmp {_REAL[test]} {w.of(kind)} {a}, {b}")
    if test in ("eq", "ne"):
        return e.new(f"icmp {test} {w.of(kind)} {a}, {b}")
    name = _UNSIGNED.get(test) or ("s" if op.type.signed else "u") + test
    return e.new(f"icmp {name} {w.of(kind)} {a}, {b}")


def setp(e: Emitter, step: Step) -> None:
    """Emit setp.cmp[.bool].type p[|q], a, b[, c]; q is the opposite of p, for pairs the truth of the upper halves."""
    op = step.op
    target, a, b = step.inst.operands[:3]
    values = [e.read(a, op.llvm), e.read(b, op.llvm)]
    values += [e.read(c, "i1") for c in step.inst.operands[3:]]
    combine = next((m for m in op.modifiers if m in ("and", "or", "xor")), "")
    form = flat([value.shape for value in values])
    names = [target.first.name, target.second.name] if isinstance(target, Pair) else [target.name]  # type: ignore[union-attr]
    width = VECTOR if isinstance(form, Varying) else SCALAR
    if op.type.name.endswith("x2"):
        results = [
            e.apply(form, "i1", lambda w, *args, at=at: _compare_half(e, op, w, at, args[0], args[1]), values)
            for at in range(len(names))
        ]
    else:
        results = [
            e.apply(form, "i1", lambda w, *args: compare(e, op, w, *flush_all(e, op, w, args[0], args[1])), values)
        ]
    if len(names) > len(results):
        first = results[0]
        inverted = [e.new(f"xor {width.of('i1')} {p}, {width.const('i1', 1)}") for p in first.parts]
        results.append(Value(first.shape, "i1", inverted))
    for name, value in zip(names, results, strict=False):
        if combine:
            value = e.apply(form, "i1", lambda w, p, c: e.new(f"{combine} {w.of('i1')} {p}, {c}"), [value, values[2]])
        e.write(name, value, step)


def _compare_half(e: Emitter, op: Operation, w: Width, at: int, a: str, b: str) -> str:
    """Compare halves of pairs. at: 0 for the lower half, 1 for the upper."""
    a, b = flush_all(e, op, w, a, b)
    return compare(e, op, w, reals.halves(e, w, a)[at], reals.halves(e, w, b)[at])


def set_kinds(op: Operation, count: int) -> list[str]:
    """Return the element types of set's operands."""
    return [op.llvm, op.llvm, "i1"][:count]


def set_body(e: Emitter, op: Operation, w: Width, a: str, b: str, *c: str) -> str:
    """Return set.cmp[.bool] a, b[, c]: the truth as a number."""
    a, b = flush_all(e, op, w, a, b)
    if op.type.name.endswith("x2"):
        halves = [_truth(e, op, w, x, y, *c) for x, y in zip(*(reals.halves(e, w, x) for x in (a, b)), strict=True)]
        if not op.types[0].name.endswith("x2"):
            return _as_number(e, w, e.new(f"and {w.of('i1')} {halves[0]}, {halves[1]}"), op.types[0])
        small = SCALARS[op.types[0].name.removesuffix("x2")]
        bits = [_as_number(e, w, half, small) for half in halves]
        if small.llvm != "i16":
            bits = [e.new(f"bitcast {w.of(small.llvm)} {one} to {w.of('i16')}") for one in bits]
        return reals.join_halves(e, w, *bits)
    return _as_number(e, w, _truth(e, op, w, a, b, *c), op.types[0])


def _truth(e: Emitter, op: Operation, w: Width, a: str, b: str, *c: str) -> str:
    truth = compare(e, op, w, a, b)
    combine = next((m for m in op.modifiers if m in ("and", "or", "xor")), "")
    return e.new(f"{combine} {w.of('i1')} {truth}, {c[0]}") if combine else truth


def _as_number(e: Emitter, w: Width, truth: str, to: Scalar) -> str:
    """Return a truth as 1.0 or 0.0, or for integers as all bits set or none."""
    if to.kind == "f":
        return e.new(f"uitofp {w.of('i1')} {truth} to {w.of(to.llvm)}")
    if to.kind == "h":
        one = w.const("i16", 0x3F80)
        return e.new(f"select {w.of('i1')} {truth}, {w.of('i16')} {one}, {w.of('i16')} {w.const('i16', 0)}")
    return e.new(f"sext {w.of('i1')} {truth} to {w.of(to.llvm)}")


def first_type(op: Operation) -> str:
    """Return the LLVM element type of the opcode's first type."""
    return op.types[0].llvm
