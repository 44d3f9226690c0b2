"""Arithmetic lane by lane: integers here, floating point through `reals`."""

from __future__ import annotations

from collections.abc import Callable

from softgpu.codegen import reals
from softgpu.codegen.elementwise import Body
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import Width


def binary(integer: str, real: str = "") -> Body:
    """Return the body that is one LLVM instruction: `integer` for integers and bits, `real` for floating point."""

    def body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
        if op.type.kind in "fh":
            return reals.arithmetic(e, op, w, real, a, b)
        return e.new(f"{integer} {w.of(op.llvm)} {a}, {b}")

    return body


def call_by_sign(e: Emitter, op: Operation, w: Width, name: str, *args: str) -> str:
    """Call llvm.s<name> or llvm.u<name>, by the sign of the opcode's type."""
    kind = w.of(op.llvm)
    sign = "s" if op.type.signed else "u"
    return e.intrinsic(f"llvm.{sign}{name}.{w.name(op.llvm)}", kind, [(kind, arg) for arg in args])


def add_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return a + b."""
    if op.type.kind in "fh":
        return reals.arithmetic(e, op, w, "fadd", a, b)
    if op.type.kind == "v":
        return _on_pairs(e, w, lambda pair, x, y: e.new(f"add {pair} {x}, {y}"), (a, b))
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "add.sat", a, b)
    return e.new(f"add {w.of(op.llvm)} {a}, {b}")


def sub_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return a - b."""
    if op.type.kind in "fh":
        return reals.arithmetic(e, op, w, "fsub", a, b)
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "sub.sat", a, b)
    return e.new(f"sub {w.of(op.llvm)} {a}, {b}")


def mul_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return a * b: the low half, the high half (.hi) or the whole product (.wide) of integers."""
    if op.type.kind in "fh":
        return reals.arithmetic(e, op, w, "fmul", a, b)
    if "wide" in op.modifiers:
        return _wide_product(e, op, w, a, b)
    if "hi" in op.modifiers:
        if op.type.bits == 64 and w.lanes > 1:
            name = f"sg_rt_mulhi_{'s' if op.type.signed else 'u'}64"
            return e.outline(name, "i64", [("i64", a), ("i64", b)], w)
        product = _wide_product(e, op, w, a, b)
        twice, bits = f"i{2 * op.type.bits}", op.type.bits
        high = e.new(f"lshr {w.of(twice)} {product}, {w.const(twice, bits) if bits < 64 else bits}")
        return e.new(f"trunc {w.of(twice)} {high} to {w.of(op.llvm)}")
    return e.new(f"mul {w.of(op.llvm)} {a}, {b}")


def _wide_product(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    extend = "sext" if op.type.signed else "zext"
    kind, twice = w.of(op.llvm), w.of(f"i{2 * op.type.bits}")
    x, y = (e.new(f"{extend} {kind} {value} to {twice}") for value in (a, b))
    return e.new(f"mul {twice} {x}, {y}")


def product_kinds(op: Operation, count: int) -> list[str]:
    """Return the element types of the operands of mul and mad."""
    wide_type = f"i{2 * op.type.bits}" if "wide" in op.modifiers else op.llvm
    return [op.llvm, op.llvm, wide_type][:count]


def product_type(op: Operation) -> str:
    """Return the element type of the result of mul and mad."""
    return f"i{2 * op.type.bits}" if "wide" in op.modifiers else op.llvm


def mad_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return a * b + c; floating point rounds once."""
    if op.type.kind in "fh":
        return reals.fma(e, op, w, a, b, c)
    product = mul_body(e, op, w, a, b)
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "add.sat", product, c)
    return e.new(f"add {w.of(product_type(op))} {product}, {c}")


def bits24_body(e: Emitter, op: Operation, w: Width, *args: str) -> str:
    """Return mul24 or mad24: the product of the factors' low 24 bits, plus c."""
    kind, extend = w.of("i32"), "ashr" if op.type.signed else "lshr"
    shift = w.const("i32", 8)
    x, y = (e.new(f"{extend} {kind} {e.new(f'shl {kind} {value}, {shift}')}, {shift}") for value in args[:2])
    if "hi" in op.modifiers:
        extend, twice = ("sext" if op.type.signed else "zext"), w.of("i64")
        x, y = (e.new(f"{extend} {kind} {value} to {twice}") for value in (x, y))
        product = e.new(f"lshr {twice} {e.new(f'mul {twice} {x}, {y}')}, {w.const('i64', 16)}")
        product = e.new(f"trunc {twice} {product} to {kind}")
    else:
        product = e.new(f"mul {kind} {x}, {y}")
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "add.sat", product, args[2])
    return e.new(f"add {kind} {product}, {args[2]}") if len(args) > 2 else product


def divide_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return a / b."""
    if op.type.kind in "fh":
        return reals.divide(e, op, w, a, b)
    return _quotient(e, op, w, a, b)


def remainder_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return the remainder of a / b for integers."""
    if op.type.bits == 64:
        return e.outline(f"sg_rt_rem_{op.type.name}", "i64", [("i64", a), ("i64", b)], w)
    kind = w.of(op.llvm)
    product = e.new(f"mul {kind} {_quotient(e, op, w, a, b)}, {b}")
    return e.new(f"sub {kind} {a}, {product}")


def _quotient(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return a / b for integers; by zero: all bits set, as on GPUs.

    Integers of 32 bits and less divide as doubles: that is exact for them, and processors have it for vectors.
    """
    kind = w.of(op.llvm)
    if op.type.bits == 64:
        return e.outline(f"sg_rt_div_{op.type.name}", "i64", [("i64", a), ("i64", b)], w)
    sign = "s" if op.type.signed else "u"
    real = w.of("double")
    zero = e.new(f"icmp eq {kind} {b}, {w.const(op.llvm, 0)}")
    divisor = e.new(f"select {w.of('i1')} {zero}, {kind} {w.const(op.llvm, 1)}, {kind} {b}")
    x, y = (e.new(f"{sign}itofp {kind} {value} to {real}") for value in (a, divisor))
    quotient = e.new(f"fdiv {real} {x}, {y}")
    # One bit more than the type: the most negative number over -1 overflows it.
    whole = e.new(f"fpto{sign}i {real} {quotient} to {w.of('i64')}")
    whole = e.new(f"trunc {w.of('i64')} {whole} to {kind}")
    return e.new(f"select {w.of('i1')} {zero}, {kind} {w.const(op.llvm, -1)}, {kind} {whole}")


def extreme(name: str) -> Body:
    """Return the body of min or max, of two or more operands."""

    def body(e: Emitter, op: Operation, w: Width, a: str, b: str, *more: str) -> str:
        if op.type.kind in "fh":
            return reals.extreme(e, op, w, name, a, b, *more)
        if op.type.kind == "v":
            return _on_pairs(e, w, lambda pair, *x: _extreme_of_pairs(e, op, w, name, pair, *x), (a, b, *more))
        value = call_by_sign(e, op, w, name, a, b)
        for other in more:
            value = call_by_sign(e, op, w, name, value, other)
        if "relu" in op.modifiers:
            value = call_by_sign(e, op, w, "max", value, w.const(op.llvm, 0))
        return value

    return body


def _on_pairs(e: Emitter, w: Width, body: Callable[..., str], args: tuple[str, ...]) -> str:
    """Return body(type, ...) on vectors of 16-bit integers, two for each lane."""
    pair, whole = f"<{2 * w.lanes} x i16>", w.of("i32")
    value = body(pair, *(e.new(f"bitcast {whole} {arg} to {pair}") for arg in args))
    return e.new(f"bitcast {pair} {value} to {whole}")


def _extreme_of_pairs(e: Emitter, op: Operation, w: Width, name: str, pair: str, *args: str) -> str:
    width, sign = f"v{2 * w.lanes}i16", op.type.name[0]
    value = args[0]
    for other in args[1:]:
        value = e.intrinsic(f"llvm.{sign}{name}.{width}", pair, [(pair, value), (pair, other)])
    if "relu" in op.modifiers:
        value = e.intrinsic(f"llvm.smax.{width}", pair, [(pair, value), (pair, "zeroinitializer")])
    return value


def abs_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return the absolute value."""
    if op.type.kind in "fh":
        return reals.clear_sign(e, op, w, a)
    kind = w.of(op.llvm)
    return e.intrinsic(f"llvm.abs.{w.name(op.llvm)}", kind, [(kind, a), ("i1", "false")])


def neg_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return -a."""
    if op.type.kind in "fh":
        return reals.flip_sign(e, op, w, a)
    return e.new(f"sub {w.of(op.llvm)} {w.const(op.llvm, 0)}, {a}")


def sad_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return c + |a - b| for integers."""
    kind = w.of(op.llvm)
    high, low = call_by_sign(e, op, w, "max", a, b), call_by_sign(e, op, w, "min", a, b)
    return e.new(f"add {kind} {c}, {e.new(f'sub {kind} {high}, {low}')}")
