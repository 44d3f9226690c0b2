"""Arithmetic, logic, comparison and selection: instructions that treat each lane alike."""

from __future__ import annotations

from collections.abc import Callable

from kaas.softgpu import reals
from kaas.softgpu.emitter import SCALAR, SIZES, VECTOR, Emitter, Value, Width
from kaas.softgpu.family import Operation
from kaas.softgpu.flow import Step
from kaas.softgpu.ptx import Pair
from kaas.softgpu.shapes import Affine, Shape, Varying, Wide, add, flat, join, multiply, widen
from kaas.softgpu import shapes

Body = Callable[..., str]  # (emitter, operation, width, *arguments) -> value
Kinds = Callable[[Operation, int], list[str]]
ShapeRule = Callable[[Operation, list[Shape]], Shape]


def flat_shape(op: Operation, sources: list[Shape]) -> Shape:
    return flat(sources)


def same_types(op: Operation, count: int) -> list[str]:
    return [op.llvm] * count


def elementwise(
    body: Body,
    shape: ShapeRule = flat_shape,
    kinds: Kinds = same_types,
    result: Callable[[Operation], str] = lambda op: op.llvm,
) -> Callable[[Emitter, Step], None]:
    """The emitter of an instruction d, a, b, ... that computes body(a, b, ...) in each lane."""

    def emit(e: Emitter, step: Step) -> None:
        op = step.op
        operands = step.inst.operands[1:]
        wanted = kinds(op, len(operands))
        signed = op.type.signed
        values = [e.read(operand, kind, signed) for operand, kind in zip(operands, wanted)]
        form = shape(op, [value.shape for value in values])
        if isinstance(form, Wide):
            value = wide(e, op, form, values)
        else:
            value = e.apply(form, result(op), lambda width, *args: body(e, op, width, *args), values)
        target = step.inst.operands[0]
        e.write(target.name, value, step, signed)  # type: ignore[union-attr]

    return emit


def wide(e: Emitter, op: Operation, form: Wide, values: list[Value]) -> Value:
    """Operations whose result is a 32-bit ramp made 64 bits wide: bases stay, offsets are added or scaled."""
    first, others = values[0], values[1:]
    if not isinstance(first.shape, Wide) and others and isinstance(others[0].shape, Wide):
        first, others = others[0], [first]
    if isinstance(first.shape, Wide):
        source = e.reshape(first, Wide(form.segment, first.shape.step, form.signed, first.shape.scale))
        bases, offsets = source.parts[: form.groups], source.parts[form.groups :]
    else:
        narrow = first if isinstance(first.shape, Affine) and first.shape.step else others[0]
        bases, offsets = e.groups(narrow, form.segment), ["0"] * form.groups
    match op.base:
        case "add" | "sub":
            addends = e.groups(others[0], form.segment)
            offsets = [e.new(f"{op.base} i64 {a}, {b}") for a, b in zip(offsets, addends)]
        case "mad" if "wide" in op.modifiers:
            offsets = e.groups(others[1], form.segment)
        case "mul" | "mad" | "shl" if isinstance(first.shape, Wide):
            factor = form.scale // first.shape.scale
            offsets = [e.new(f"mul i64 {a}, {factor}") for a in offsets]
            if op.base == "mad":
                addends = e.groups(others[1], form.segment)
                offsets = [e.new(f"add i64 {a}, {b}") for a, b in zip(offsets, addends)]
    return Value(form, "i64", [*bases, *offsets])


# --- shapes


def _integer(rule: ShapeRule) -> ShapeRule:
    """The rule, for integers; floating-point results are flat or varying."""

    def shape(op: Operation, sources: list[Shape]) -> Shape:
        return rule(op, sources) if op.type.kind in "bsu" and op.type.bits >= 16 else flat(sources)

    return shape


add_shape = _integer(lambda op, s: flat(s) if op.modifiers and op.modifiers[0] in ("cc", "sat") else add(s[0], s[1]))
sub_shape = _integer(lambda op, s: flat(s) if op.modifiers and op.modifiers[0] in ("cc", "sat") else add(s[0], s[1], -1))
and_shape = _integer(lambda op, s: shapes.bit_and(s[0], s[1]))
or_shape = _integer(lambda op, s: shapes.bit_or(s[0], s[1]))
shr_shape = _integer(lambda op, s: shapes.shift_right(s[0], s[1]))
neg_shape = _integer(lambda op, s: add(shapes.constant(0), s[0], -1))


@_integer
def shl_shape(op: Operation, sources: list[Shape]) -> Shape:
    by = sources[1]
    if isinstance(by, Affine) and by.value is not None and 0 <= by.value < min(op.type.bits, 31):
        return multiply(sources[0], shapes.constant(1 << by.value))
    return flat(sources)


@_integer
def mul_shape(op: Operation, sources: list[Shape]) -> Shape:
    if "hi" in op.modifiers:
        return flat(sources)
    a, b = sources[0], sources[1]
    if "wide" in op.modifiers:
        if op.type.bits != 32:
            return flat(sources)
        a, b = widen(a, op.type.signed), widen(b, op.type.signed)
    product = multiply(a, b)
    return add(product, sources[2]) if len(sources) > 2 else product


def mov_shape(op: Operation, sources: list[Shape]) -> Shape:
    if len(sources) == 1 and (op.type.kind in "bsu" or shapes.is_flat(sources[0])):
        return sources[0]
    return flat(sources)


def selp_shape(op: Operation, sources: list[Shape]) -> Shape:
    if not shapes.is_uniform(sources[2]):
        return flat(sources)
    both = join(sources[0], sources[1])
    if isinstance(both, Affine):
        return Affine(both.segment, both.step)
    return flat(sources)


# --- bodies: integers


def binary(integer: str, real: str = "") -> Body:
    def body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
        if op.type.kind in "fh":
            return reals.arithmetic(e, op, w, real, a, b)
        return e.new(f"{integer} {w.of(op.llvm)} {a}, {b}")

    return body


def call_by_sign(e: Emitter, op: Operation, w: Width, name: str, *args: str) -> str:
    """llvm.smax or llvm.umax, and the like."""
    kind = w.of(op.llvm)
    sign = "s" if op.type.signed else "u"
    return e.intrinsic(f"llvm.{sign}{name}.{w.name(op.llvm)}", kind, [(kind, arg) for arg in args])


def add_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    if op.type.kind in "fh":
        return reals.arithmetic(e, op, w, "fadd", a, b)
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "add.sat", a, b)
    return e.new(f"add {w.of(op.llvm)} {a}, {b}")


def sub_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    if op.type.kind in "fh":
        return reals.arithmetic(e, op, w, "fsub", a, b)
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "sub.sat", a, b)
    return e.new(f"sub {w.of(op.llvm)} {a}, {b}")


def mul_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    if op.type.kind in "fh":
        return reals.arithmetic(e, op, w, "fmul", a, b)
    if "wide" in op.modifiers:
        return _wide_product(e, op, w, a, b)
    if "hi" in op.modifiers:
        if op.type.bits == 64 and w.lanes > 1:
            name = f"kaas_rt_mulhi_{'s' if op.type.signed else 'u'}64"
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
    wide_type = f"i{2 * op.type.bits}" if "wide" in op.modifiers else op.llvm
    return [op.llvm, op.llvm, wide_type][:count]


def product_type(op: Operation) -> str:
    return f"i{2 * op.type.bits}" if "wide" in op.modifiers else op.llvm


def mad_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    if op.type.kind in "fh":
        return reals.fma(e, op, w, a, b, c)
    product = mul_body(e, op, w, a, b)
    if "sat" in op.modifiers:
        return call_by_sign(e, op, w, "add.sat", product, c)
    return e.new(f"add {w.of(product_type(op))} {product}, {c}")


def bits24_body(e: Emitter, op: Operation, w: Width, *args: str) -> str:
    """mul24 and mad24: the low 24 bits of the factors."""
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
    return e.new(f"add {kind} {product}, {args[2]}") if len(args) > 2 else product


def divide_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    if op.type.kind in "fh":
        return reals.divide(e, op, w, a, b)
    return _quotient(e, op, w, a, b)


def remainder_body(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    if op.type.bits == 64:
        return e.outline(f"kaas_rt_rem_{op.type.name}", "i64", [("i64", a), ("i64", b)], w)
    kind = w.of(op.llvm)
    product = e.new(f"mul {kind} {_quotient(e, op, w, a, b)}, {b}")
    return e.new(f"sub {kind} {a}, {product}")


def _quotient(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    """By zero: all bits set, as GPUs give. 32 bits and less divide as double, which is exact for them and a vector."""
    kind = w.of(op.llvm)
    if op.type.bits == 64:
        return e.outline(f"kaas_rt_div_{op.type.name}", "i64", [("i64", a), ("i64", b)], w)
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
    def body(e: Emitter, op: Operation, w: Width, a: str, b: str, *more: str) -> str:
        if op.type.kind in "fh":
            return reals.extreme(e, op, w, name, a, b, *more)
        value = call_by_sign(e, op, w, name, a, b)
        for other in more:
            value = call_by_sign(e, op, w, name, value, other)
        if "relu" in op.modifiers:
            value = call_by_sign(e, op, w, "max", value, w.const(op.llvm, 0))
        return value

    return body


def abs_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    if op.type.kind in "fh":
        return reals.clear_sign(e, op, w, a)
    kind = w.of(op.llvm)
    return e.intrinsic(f"llvm.abs.{w.name(op.llvm)}", kind, [(kind, a), ("i1", "false")])


def neg_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    if op.type.kind in "fh":
        return reals.flip_sign(e, op, w, a)
    return e.new(f"sub {w.of(op.llvm)} {w.const(op.llvm, 0)}, {a}")


def not_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    return e.new(f"xor {w.of(op.llvm)} {a}, {w.const(op.llvm, -1)}")


def cnot_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    zero = e.new(f"icmp eq {w.of(op.llvm)} {a}, {w.const(op.llvm, 0)}")
    return e.new(f"zext {w.of('i1')} {zero} to {w.of(op.llvm)}")


def shift_kinds(op: Operation, count: int) -> list[str]:
    return [op.llvm, "i32"]


def shift(name: str) -> Body:
    """Shifts by the width or more give 0, or copies of the sign."""

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
    """shf: 32 bits out of b:a."""
    kind = w.of("i32")
    by = e.new(f"and {kind} {c}, {w.const('i32', 31)}")
    name = "fshl" if "l" in op.modifiers else "fshr"
    shifted = e.intrinsic(f"llvm.{name}.{w.name('i32')}", kind, [(kind, b), (kind, a), (kind, by)])
    if "wrap" in op.modifiers:
        return shifted
    whole = e.new(f"icmp ugt {kind} {c}, {w.const('i32', 31)}")
    return e.new(f"select {w.of('i1')} {whole}, {kind} {a if name == 'fshl' else b}, {kind} {shifted}")


def count_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """popc, clz, brev; the first two give 32 bits."""
    kind = w.of(op.llvm)
    name = {"popc": "ctpop", "clz": "ctlz", "brev": "bitreverse"}[op.base]
    extra = [("i1", "false")] if name == "ctlz" else []
    value = e.intrinsic(f"llvm.{name}.{w.name(op.llvm)}", kind, [(kind, a), *extra])
    if op.base == "brev" or op.type.bits == 32:
        return value
    return e.new(f"trunc {kind} {value} to {w.of('i32')}")


def count_type(op: Operation) -> str:
    return op.llvm if op.base == "brev" else "i32"


def bfind_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    """The place of the highest set bit (signed: of the highest bit unlike the sign); -1 if there is none."""
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
    return [op.llvm] * (count - 2) + ["i32", "i32"]


def outline_by_type(stem: str, arguments: Callable[[Operation, int], list[str]] = same_types) -> Body:
    """Seldom used instructions run out of line: kaas_rt_<stem>_<type>."""

    def body(e: Emitter, op: Operation, w: Width, *args: str) -> str:
        kinds = arguments(op, len(args))
        return e.outline(f"kaas_rt_{stem}_{op.type.name}", op.llvm, list(zip(kinds, args)), w)

    return body


def bfe_body(e: Emitter, op: Operation, w: Width, a: str, start: str, length: str) -> str:
    name = f"{'s' if op.type.signed else 'u'}{op.type.bits}"
    return e.outline(f"kaas_rt_bfe_{name}", op.llvm, [(op.llvm, a), ("i32", start), ("i32", length)], w)


def bfi_body(e: Emitter, op: Operation, w: Width, a: str, b: str, start: str, length: str) -> str:
    args = [(op.llvm, a), (op.llvm, b), ("i32", start), ("i32", length)]
    return e.outline(f"kaas_rt_bfi_b{op.type.bits}", op.llvm, args, w)


def prmt_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    mode = next((m for m in op.modifiers), "default")
    return e.outline(f"kaas_rt_prmt_{mode}", "i32", [("i32", a), ("i32", b), ("i32", c)], w)


def lop3_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str, table: str) -> str:
    """Any function of three bits, as the or of its true rows."""
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


def sad_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    kind = w.of(op.llvm)
    high, low = call_by_sign(e, op, w, "max", a, b), call_by_sign(e, op, w, "min", a, b)
    return e.new(f"add {kind} {c}, {e.new(f'sub {kind} {high}, {low}')}")


# --- predicates and selection


def mov_body(e: Emitter, op: Operation, w: Width, a: str) -> str:
    return a


def selp_kinds(op: Operation, count: int) -> list[str]:
    return [op.llvm, op.llvm, "i1"]


def selp_body(e: Emitter, op: Operation, w: Width, a: str, b: str, p: str) -> str:
    return e.new(f"select {w.of('i1')} {p}, {w.of(op.llvm)} {a}, {w.of(op.llvm)} {b}")


def slct_kinds(op: Operation, count: int) -> list[str]:
    return [op.types[0].llvm, op.types[0].llvm, op.llvm]


def slct_body(e: Emitter, op: Operation, w: Width, a: str, b: str, c: str) -> str:
    kind = w.of(op.llvm)
    test = "fcmp oge" if op.type.kind == "f" else "icmp sge"
    zero = w.const(op.llvm, 0) if op.type.kind != "f" else "zeroinitializer" if w.lanes > 1 else "0.0"
    first = e.new(f"{test} {kind} {c}, {zero}")
    return e.new(f"select {w.of('i1')} {first}, {w.of(op.types[0].llvm)} {a}, {w.of(op.types[0].llvm)} {b}")


_UNSIGNED = {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_REAL = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord", "nan": "uno"}
_REAL |= {f"{name}u": f"u{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge")}
COMPARISONS = frozenset({*_UNSIGNED, *_REAL})


def compare(e: Emitter, op: Operation, w: Width, a: str, b: str) -> str:
    test = next(m for m in op.modifiers if m in COMPARISONS)
    kind = op.llvm
    if op.type.kind in "fh":
        if op.type.bits == 16:
            kind = "float"
            a, b = (reals.to_float(e, op.type, w, x) for x in (a, b))
        return e.new(f"fcmp {_REAL[test]} {w.of(kind)} {a}, {b}")
    if test in ("eq", "ne"):
        return e.new(f"icmp {test} {w.of(kind)} {a}, {b}")
    name = _UNSIGNED.get(test) or ("s" if op.type.signed else "u") + test
    return e.new(f"icmp {name} {w.of(kind)} {a}, {b}")


def setp(e: Emitter, step: Step) -> None:
    """setp.cmp[.bool].type p[|q], a, b[, c]."""
    op = step.op
    target, a, b = step.inst.operands[:3]
    values = [e.read(a, op.llvm), e.read(b, op.llvm)]
    values += [e.read(c, "i1") for c in step.inst.operands[3:]]
    combine = next((m for m in op.modifiers if m in ("and", "or", "xor")), "")
    form = flat([value.shape for value in values])
    names = [target.first.name, target.second.name] if isinstance(target, Pair) else [target.name]  # type: ignore[union-attr]
    width = VECTOR if isinstance(form, Varying) else SCALAR
    first = e.apply(form, "i1", lambda w, *args: compare(e, op, w, args[0], args[1]), values)
    results = [first]
    if len(names) > 1:
        inverted = [e.new(f"xor {width.of('i1')} {p}, {width.const('i1', 1)}") for p in first.parts]
        results.append(Value(first.shape, "i1", inverted))
    for name, value in zip(names, results):
        if combine:
            value = e.apply(form, "i1", lambda w, p, c: e.new(f"{combine} {w.of('i1')} {p}, {c}"), [value, values[2]])
        e.write(name, value, step)


def set_kinds(op: Operation, count: int) -> list[str]:
    return [op.llvm, op.llvm, "i1"][:count]


def set_body(e: Emitter, op: Operation, w: Width, a: str, b: str, *c: str) -> str:
    truth = compare(e, op, w, a, b)
    combine = next((m for m in op.modifiers if m in ("and", "or", "xor")), "")
    if combine:
        truth = e.new(f"{combine} {w.of('i1')} {truth}, {c[0]}")
    to = op.types[0]
    if to.kind == "f":
        return e.new(f"uitofp {w.of('i1')} {truth} to {w.of(to.llvm)}")
    return e.new(f"sext {w.of('i1')} {truth} to {w.of(to.llvm)}")


def first_type(op: Operation) -> str:
    return op.types[0].llvm


def first_size(op: Operation) -> int:
    return SIZES[op.types[0].llvm]
