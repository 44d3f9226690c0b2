"""Floating-point arithmetic lane by lane. Only .ftz flushes denormals; nothing is contracted or reordered.

16-bit types compute in float and round once more. For + - * and / the result is the same as with one rounding.
"""

from __future__ import annotations

from collections.abc import Callable

from softgpu.codegen.denormals import flush, flush_all
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.forms import TF32_BITS
from softgpu.codegen.values import Width
from softgpu.ptx.types import SCALARS, Scalar

_SUFFIX = {"float": "f32", "double": "f64"}
_OUTLINE = {"fadd": "add", "fsub": "sub", "fmul": "mul", "fdiv": "div"}


def to_float(e: Emitter, scalar: Scalar, w: Width, a: str) -> str:
    """Return a 16-bit number as float; exact."""
    if scalar.name.startswith("bf16"):
        wide = e.new(f"zext {w.of('i16')} {a} to {w.of('i32')}")
        high = e.new(f"shl {w.of('i32')} {wide}, {w.const('i32', 16)}")
        return e.new(f"bitcast {w.of('i32')} {high} to {w.of('float')}")
    if not e.target.has_half:
        bits = a if scalar.llvm != "half" else e.new(f"bitcast {w.of('half')} {a} to {w.of('i16')}")
        return e.outline("sg_rt_half_to_float", "float", [("i16", bits)], w)
    if scalar.llvm != "half":
        a = e.new(f"bitcast {w.of('i16')} {a} to {w.of('half')}")
    return e.new(f"fpext {w.of('half')} {a} to {w.of('float')}")


def from_float(e: Emitter, scalar: Scalar, w: Width, a: str) -> str:
    """Round a float to 16 bits, to nearest even, in the element type of `scalar` (i16 for the half of a pair)."""
    if scalar.name.startswith("bf16"):
        return _round_to_bfloat(e, w, a)
    if not e.target.has_half:
        bits = e.outline("sg_rt_float_to_half", "i16", [("float", a)], w)
        return bits if scalar.llvm != "half" else e.new(f"bitcast {w.of('i16')} {bits} to {w.of('half')}")
    half = e.new(f"fptrunc {w.of('float')} {a} to {w.of('half')}")
    return half if scalar.llvm == "half" else e.new(f"bitcast {w.of('half')} {half} to {w.of('i16')}")


def _round_to_bfloat(e: Emitter, w: Width, a: str) -> str:
    kind = w.of("i32")
    bits = e.new(f"bitcast {w.of('float')} {a} to {kind}")
    sixteen = w.const("i32", 16)
    odd = e.new(f"lshr {kind} {bits}, {sixteen}")
    odd = e.new(f"and {kind} {odd}, {w.const('i32', 1)}")
    bias = e.new(f"add {kind} {odd}, {w.const('i32', 0x7FFF)}")
    biased = e.new(f"add {kind} {bits}, {bias}")
    rounded = e.new(f"lshr {kind} {biased}, {sixteen}")
    nan = e.new(f"fcmp uno {w.of('float')} {a}, {a}")
    chosen = e.new(f"select {w.of('i1')} {nan}, {kind} {w.const('i32', 0x7FFF)}, {kind} {rounded}")
    return e.new(f"trunc {kind} {chosen} to {w.of('i16')}")


def to_tf32(e: Emitter, _op: Operation, w: Width, a: str) -> str:
    """Return cvt.rna.tf32.f32 of a: ties round away from zero, 13 bits of the fraction become zero."""
    kind = w.of("i32")
    bits = e.new(f"bitcast {w.of('float')} {a} to {kind}")
    more = e.new(f"add {kind} {bits}, {w.const('i32', 1 << 12)}")
    rounded = e.new(f"and {kind} {more}, {w.const('i32', TF32_BITS)}")
    nan = e.new(f"fcmp uno {w.of('float')} {a}, {a}")
    return e.new(f"select {w.of('i1')} {nan}, {kind} {w.const('i32', 0x7FFFFFFF)}, {kind} {rounded}")


def in_float(e: Emitter, op: Operation, w: Width, body: Callable[..., str], args: tuple[str, ...]) -> str:
    """Return body("float", ...) of 16-bit numbers, or of both halves of a pair."""
    if op.type.bits == 16:
        return from_float(e, op.type, w, body("float", *(to_float(e, op.type, w, a) for a in args)))
    low, high = zip(*(halves(e, w, a) for a in args), strict=True)
    results = [
        from_float(e, op.type, w, body("float", *(to_float(e, op.type, w, a) for a in half))) for half in (low, high)
    ]
    return join_halves(e, w, *results)


def halves(e: Emitter, w: Width, a: str) -> tuple[str, str]:
    """Return the low and the high 16 bits."""
    kind, small = w.of("i32"), w.of("i16")
    low = e.new(f"trunc {kind} {a} to {small}")
    high = e.new(f"lshr {kind} {a}, {w.const('i32', 16)}")
    return low, e.new(f"trunc {kind} {high} to {small}")


def join_halves(e: Emitter, w: Width, low: str, high: str) -> str:
    """Return 32 bits from the low and the high 16 bits."""
    kind = w.of("i32")
    a, b = (e.new(f"zext {w.of('i16')} {half} to {kind}") for half in (low, high))
    b = e.new(f"shl {kind} {b}, {w.const('i32', 16)}")
    return e.new(f"or {kind} {a}, {b}")


def is_small(op: Operation) -> bool:
    """Return True if the opcode's type is a 16-bit float or a pair of such floats."""
    return op.type.kind == "h" or op.type.bits == 16


def finish(e: Emitter, op: Operation, w: Width, element: str, value: str) -> str:
    """Return the value after the opcode's .sat or .relu, if it has one; both turn NaN into 0."""
    kind = w.of(element)
    one = 0x3FF0000000000000 if element == "double" else 0x3F800000
    if "sat" in op.modifiers or "relu" in op.modifiers:
        value = e.intrinsic(f"llvm.maxnum.{w.name(element)}", kind, [(kind, value), (kind, w.const(element, 0))])
    if "sat" in op.modifiers:
        value = e.intrinsic(f"llvm.minnum.{w.name(element)}", kind, [(kind, value), (kind, w.const(element, one))])
    return value


def arithmetic(e: Emitter, op: Operation, w: Width, name: str, a: str, b: str) -> str:
    """Return fadd, fsub, fmul or fdiv with the opcode's rounding."""

    def body(element: str, x: str, y: str) -> str:
        if op.rounding:
            routine = f"sg_rt_{_OUTLINE[name]}_{op.rounding}_{_SUFFIX[element]}"
            value = e.outline(routine, element, [(element, x), (element, y)], w)
        else:
            value = e.new(f"{name} {w.of(element)} {x}, {y}")
        return finish(e, op, w, element, value)

    a, b = flush_all(e, op, w, a, b)
    value = in_float(e, op, w, body, (a, b)) if is_small(op) else body(op.llvm, a, b)
    return flush(e, op, w, op.type, value)


def divide(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return a / b with the opcode's rounding; approximate forms round correctly too."""
    return arithmetic(e, op, w, "fdiv", a, b)


def fma(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return a * b + c, rounded once, with the opcode's rounding."""
    return flush(e, op, w, op.type, _fma(e, op, w, *flush_all(e, op, w, a, b, c)))


def _fma(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    if op.type.bits == 16:
        name = "bf16" if op.type.name == "bf16" else "f16"
        bits = [x if op.llvm == "i16" else e.new(f"bitcast {w.of(op.llvm)} {x} to {w.of('i16')}") for x in (a, b, c)]
        value = e.outline(f"sg_rt_fma_{name}", "i16", [("i16", x) for x in bits], w)
        value = value if op.llvm == "i16" else e.new(f"bitcast {w.of('i16')} {value} to {w.of(op.llvm)}")
        return _finish_small(e, op, w, value)
    if op.type.kind == "h":
        return _finish_small(
            e, op, w, e.outline(f"sg_rt_fma_{op.type.name}", "i32", [("i32", x) for x in (a, b, c)], w)
        )
    element = op.llvm
    if op.rounding:
        args = [(element, x) for x in (a, b, c)]
        value = e.outline(f"sg_rt_fma_{op.rounding}_{_SUFFIX[element]}", element, args, w)
    else:
        kind = w.of(element)
        value = e.intrinsic(f"llvm.fma.{w.name(element)}", kind, [(kind, a), (kind, b), (kind, c)])
    return finish(e, op, w, element, value)


def _finish_small(e: Emitter, op: Operation, w: Width, value: str) -> str:
    if "sat" not in op.modifiers and "relu" not in op.modifiers:
        return value
    return in_float(e, op, w, lambda element, x: finish(e, op, w, element, x), (value,))


def extreme(e: Emitter, op: Operation, w: Width, name: str, *args: str) -> str:
    """Return min or max: of a number and a NaN it is the number, with .NaN it is NaN; -0 is less than +0."""

    def body(element: str, *numbers: str) -> str:
        kind = w.of(element)
        intrinsic = f"llvm.{name}imum{'' if 'NaN' in op.modifiers else 'num'}.{w.name(element)}"
        value = numbers[0]
        for other in numbers[1:]:
            value = e.intrinsic(intrinsic, kind, [(kind, value), (kind, other)])
        return value

    args = flush_all(e, op, w, *args)
    return in_float(e, op, w, body, args) if is_small(op) else body(op.llvm, *args)


def _sign_mask(scalar: Scalar) -> int:
    return 0x80008000 if scalar.name.endswith("x2") else 1 << (scalar.bits - 1)


def _on_bits(e: Emitter, op: Operation, w: Width, a: str, name: str, mask: int) -> str:
    bits = f"i{op.type.bits}"
    a = flush(e, op, w, op.type, a)
    if op.llvm != bits:
        a = e.new(f"bitcast {w.of(op.llvm)} {a} to {w.of(bits)}")
    value = e.new(f"{name} {w.of(bits)} {a}, {w.const(bits, mask)}")
    return value if op.llvm == bits else e.new(f"bitcast {w.of(bits)} {value} to {w.of(op.llvm)}")


def clear_sign(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return the absolute value, of both halves of a pair."""
    return _on_bits(e, op, w, a, "and", ~_sign_mask(op.type) & ((1 << op.type.bits) - 1))


def flip_sign(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return -a, of both halves of a pair."""
    return _on_bits(e, op, w, a, "xor", _sign_mask(op.type))


def copysign(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return b with the sign of a: PTX names the source of the sign first."""
    kind = w.of(op.llvm)
    return e.intrinsic(f"llvm.copysign.{w.name(op.llvm)}", kind, [(kind, b), (kind, a)])


def function(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return rcp, sqrt, rsqrt, ex2, lg2, sin, cos or tanh; approximations are at least as close as PTX requires."""

    def body(element: str, x: str) -> str:
        kind = w.of(element)
        one = w.const(element, 0x3FF0000000000000 if element == "double" else 0x3F800000)
        if op.rounding and op.base == "sqrt":
            return e.outline(f"sg_rt_sqrt_{op.rounding}_{_SUFFIX[element]}", element, [(element, x)], w)
        if op.rounding and op.base == "rcp":
            args = [(element, one), (element, x)]
            return e.outline(f"sg_rt_div_{op.rounding}_{_SUFFIX[element]}", element, args, w)
        if op.base in ("sqrt", "rsqrt"):
            x = e.intrinsic(f"llvm.sqrt.{w.name(element)}", kind, [(kind, x)])
        if op.base in ("rcp", "rsqrt"):
            x = e.new(f"fdiv {kind} {one}, {x}")
        if op.base in ("ex2", "lg2", "sin", "cos", "tanh"):
            x = e.outline(f"sg_rt_{op.base}_f32", "float", [("float", x)], w)
        return x

    a = flush(e, op, w, op.type, a)
    value = in_float(e, op, w, body, (a,)) if is_small(op) else body(op.llvm, a)
    # The other functions give a denormal only for a denormal.
    return flush(e, op, w, op.type, value) if op.base in ("rcp", "ex2") else value


def testp_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return True where the number is of the opcode's kind, such as .finite."""
    test = {"finite": 0x1F8, "infinite": 0x204, "number": 0x3FC, "notanumber": 3, "normal": 0x108, "subnormal": 0x90}
    kind = w.of(op.llvm)
    name = next(m for m in op.modifiers if m in test)
    return e.intrinsic(f"llvm.is.fpclass.{w.name(op.llvm)}", w.of("i1"), [(kind, a), ("i32", str(test[name]))])


HALF = SCALARS["f16"]
