"""`.ftz`: denormals, numbers too small for a full fraction, become zeros of their sign."""

from __future__ import annotations

from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import Width
from softgpu.ptx.types import Scalar

_EXPONENTS = {"f64": 0x7FF << 52, "f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}


def flush(e: Emitter, op: Operation, w: Width, scalar: Scalar, a: str) -> str:
    """Return `a` with its denormals flushed if the opcode has .ftz."""
    exponent = _EXPONENTS.get(scalar.name.removesuffix("x2"))
    if "ftz" not in op.modifiers or exponent is None or a in e.flushed:
        return a
    bits, size = f"i{scalar.bits}", scalar.bits // (2 if scalar.name.endswith("x2") else 1)
    each, part = Width(w.lanes * scalar.bits // size), f"i{size}"
    given, kind = w.of(scalar.llvm), each.of(part)
    number = a if scalar.llvm == bits and size == scalar.bits else e.new(f"bitcast {given} {a} to {kind}")
    # Processors have tests of the exponent and the sign as masks: this is two instructions with AVX-512.
    field = e.new(f"and {kind} {number}, {each.const(part, exponent)}")
    small = e.new(f"icmp eq {kind} {field}, {each.const(part, 0)}")
    zero = e.new(f"and {kind} {number}, {each.const(part, 1 << (size - 1))}")
    value = e.new(f"select {each.of('i1')} {small}, {kind} {zero}, {kind} {number}")
    if given != kind:
        value = e.new(f"bitcast {kind} {value} to {given}")
    e.flushed.add(value)
    return value


def flush_all(e: Emitter, op: Operation, w: Width, *args: str) -> tuple[str, ...]:
    """Return operands of the opcode's last type, flushed as in `flush`."""
    return tuple(flush(e, op, w, op.type, a) for a in args)
