"""Shifts, counts and rearrangements of bits."""

from __future__ import annotations

from collections.abc import Callable

from softgpu.codegen.elementwise import Body, same_types
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import Width


def not_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return the bits of a inverted."""
    return e.new(f"xor {w.of(op.llvm)} {a}, {w.const(op.llvm, -1)}")


def cnot_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return 1 if a is 0, else 0."""
    zero = e.new(f"icmp eq {w.of(op.llvm)} {a}, {w.const(op.llvm, 0)}")
    return e.new(f"zext {w.of('i1')} {zero} to {w.of(op.llvm)}")


def shift_kinds(op: Operation, _count: int) -> list[str]:
    """Return the element types of a shift's operands: the count has 32 bits."""
    return [op.llvm, "i32"]


def shift(name: str) -> Body:
    """Return the body of shl or shr. Shifts by the width or more give 0, or copies of the sign."""

    def body(e: Emitter, op: Operation, w: Width, a: str, by: str) -> str:
        kind, bits = w.of(op.llvm), op.type.bits
        how = "ashr" if name == "shr" and op.type.signed else "lshr" if name == "shr" else "shl"
        limit = bits - 1 if how == "ashr" else bits
        if by.isdigit() or by.startswith("splat"):
            amount = int(by.rsplit(" ", 1)[-1].rstrip(")"))
            if amount >= bits and how != "ashr":
                return w.const(op.llvm, 0)
            return e.new(f"{how} {kind} {a}, {w.const(op.llvm, min(amount, bits - 1))}")
        i32 = w.of("i32")
        large = e.new(f"icmp ugt {i32} {by}, {w.const('i32', bits - 1)}")
        amount_ = by
        if bits != 32:
            amount_ = e.new(f"{'zext' if bits > 32 else 'trunc'} {i32} {by} to {kind}")
        if how == "ashr":
            clamped = e.new(f"select {w.of('i1')} {large}, {kind} {w.const(op.llvm, limit)}, {kind} {amount_}")
            return e.new(f"ashr {kind} {a}, {clamped}")
        safe = e.new(f"and {kind} {amount_}, {w.const(op.llvm, bits - 1)}")
        shifted = e.new(f"{how} {kind} {a}, {safe}")
        return e.new(f"select {w.of('i1')} {large}, {kind} {w.const(op.llvm, 0)}, {kind} {shifted}")

    return body


def funnel_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return shf: 32 bits of b:a."""
    kind = w.of("i32")
    by = e.new(f"and {kind} {c}, {w.const('i32', 31)}")
    name = "fshl" if "l" in op.modifiers else "fshr"
    shifted = e.intrinsic(f"llvm.{name}.{w.name('i32')}", kind, [(kind, b), (kind, a), (kind, by)])
    if "wrap" in op.modifiers:
        return shifted
    whole = e.new(f"icmp ugt {kind} {c}, {w.const('i32', 31)}")
    return e.new(f"select {w.of('i1')} {whole}, {kind} {a if name == 'fshl' else b}, {kind} {shifted}")


def count_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return popc, clz or brev; popc and clz give 32 bits."""
    kind = w.of(op.llvm)
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[op.base]
    extra = [("i1", "false")] if name == "ctlz" else []
    value = e.intrinsic(f"llvm.{name}.{w.name(op.llvm)}", kind, [(kind, a), *extra])
    if op.base == "brev" or op.type.bits == 32:
        return value
    return e.new(f"trunc {kind} {value} to {w.of('i32')}")


def count_type(op: Operation) -> str:
    """Return the element type of the result of popc, clz and brev."""
    return op.llvm if op.base == "brev" else "i32"


def bfind_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """Return the place of the highest set bit (signed: of the highest bit unlike the sign); -1 if there is none."""
    kind, bits = w.of(op.llvm), op.type.bits
    if op.type.signed:
        sign = e.new(f"ashr {kind} {a}, {w.const(op.llvm, bits - 1)}")
        a = e.new(f"xor {kind} {a}, {sign}")
    zeros = e.intrinsic(f"llvm.ctlz.{w.name(op.llvm)}", kind, [(kind, a), ("i1", "false")])
    place = e.new(f"sub {kind} {w.const(op.llvm, bits - 1)}, {zeros}")
    if "shiftamt" in op.modifiers:
        none = e.new(f"icmp eq {kind} {a}, {w.const(op.llvm, 0)}")
        place = e.new(f"select {w.of('i1')} {none}, {kind} {w.const(op.llvm, -1)}, {kind} {zeros}")
    return place if bits == 32 else e.new(f"trunc {kind} {place} to {w.of('i32')}")


def bit_field_kinds(op: Operation, count: int) -> list[str]:
    """Return the element types of the operands of bfe and bfi: start and length have 32 bits."""
    return [op.llvm] * (count - 2) + ["i32", "i32"]


def outline_by_type(stem: str, arguments: Callable[[Operation, int], list[str]] = same_types) -> Body:
    """Return the body of a rare instruction, which calls sg_rt_<stem>_<type>."""

    def body(e: Emitter, op: Operation, w: Width, *args: str) -> str:
        kinds = arguments(op, len(args))
        return e.outline(f"sg_rt_{stem}_{op.type.name}", op.llvm, list(zip(kinds, args, strict=False)), w)

    return body


def mask_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return bmsk: b set bits from place a on."""
    return e.outline(f"sg_rt_bmsk_{op.modifiers[0]}", "i32", [("i32", a), ("i32", b)], w)


def extend_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """Return szext: the low b bits of a, extended with their sign or with zeros."""
    return e.outline(f"sg_rt_szext_{op.modifiers[0]}_{op.type.name}", "i32", [("i32", a), ("i32", b)], w)


def bfe_body(e: Emitter, op: Operation, w: Width, a: str, start: str, length: str) -> str:
    """Return bfe: the `length` bits of a from `start` on, extended with their sign or with zeros."""
    name = f"{'s' if op.type.signed else 'u'}{op.type.bits}"
    return e.outline(f"sg_rt_bfe_{name}", op.llvm, [(op.llvm, a), ("i32", start), ("i32", length)], w)


def bfi_body(e: Emitter, op: Operation, w: Width, a: str, b: str, start: str, length: str) -> str:
    """Return bfi: b with its `length` bits from `start` on replaced by the low bits of a."""
    args = [(op.llvm, a), (op.llvm, b), ("i32", start), ("i32", length)]
    return e.outline(f"sg_rt_bfi_b{op.type.bits}", op.llvm, args, w)


def prmt_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    """Return prmt: four bytes of a and b, which c chooses."""
    mode = next((m for m in op.modifiers), "default")
    return e.outline(f"sg_rt_prmt_{mode}", "i32", [("i32", a), ("i32", b), ("i32", c)], w)


def lop3_body(e: Emitter, _op: Operation, w: Width, a: str, b: str, c: str, table: str) -> str:
    """Return lop3: any function of three bits, as the or of the true rows of its table."""
    kind = w.of("i32")
    rows = int(table.rsplit(" ", 1)[-1].rstrip(")"))
    inverted = [e.new(f"xor {kind} {x}, {w.const('i32', -1)}") for x in (a, b, c)]
    result = w.const("i32", 0)
    for row in range(8):
        if rows >> row & 1:
            picks = [x if row >> (2 - i) & 1 else inverted[i] for i, x in enumerate((a, b, c))]
            term = e.new(f"and {kind} {e.new(f'and {kind} {picks[0]}, {picks[1]}')}, {picks[2]}")
            result = e.new(f"or {kind} {result}, {term}")
    return result
