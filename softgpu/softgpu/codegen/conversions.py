"""cvt, cvta and the packing forms of mov."""

from __future__ import annotations

from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import VARYING, Affine, Shape, Wide, flat, truncate, widen
from softgpu.codegen import reals
from softgpu.codegen.addresses import in_local
from softgpu.codegen.denormals import flush
from softgpu.codegen.elementwise import wide
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Operation
from softgpu.codegen.values import SIZES, Value, Width
from softgpu.ptx.model import Register, Vector
from softgpu.ptx.types import SCALARS, Scalar

_WHOLE = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil", "rna": "round"}


def cvt_shape(op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of cvt's result."""
    if len(op.types) < 2 or op.types[0].kind not in "bsu" or op.types[1].kind not in "bsu" or "sat" in op.modifiers:
        return flat(sources)
    to, source = op.types[0].bits, op.types[1]
    if (source.bits, to) == (32, 64):
        return widen(sources[0], source.signed)
    if (source.bits, to) == (64, 32):
        return truncate(sources[0])
    return sources[0] if source.bits == to and to >= 32 else flat(sources)


def cvt(e: Emitter, step: Step) -> None:
    """Emit cvt[.rounding][.sat].to.from d, a[, b]."""
    op = step.op
    to, source = op.types[0], op.types[-1]
    operands = step.inst.operands[1:]
    # A register may be wider than the source type: its low bits count.
    values = [e.read(operand, source.llvm) for operand in operands]
    target = step.inst.operands[0]
    assert isinstance(target, Register)
    form = cvt_shape(op, [value.shape for value in values])
    if isinstance(form, Wide):
        value = values[0] if isinstance(values[0].shape, Wide) else wide(e, op, form, values)
    elif isinstance(values[0].shape, Wide) and isinstance(form, Affine):
        value = _cut(e, values[0], form)
    else:
        value = e.apply(form, _result_type(to), lambda w, *args: _convert(e, op, w, *args), values)
    e.write(target.name, value, step, to.signed)


def _cut(e: Emitter, value: Value, form: Affine) -> Value:
    """Return the low 32 bits of a Wide."""
    assert isinstance(value.shape, Wide)
    groups, scale = value.shape.groups, value.shape.scale
    parts = []
    for base, offset in zip(value.parts[:groups], value.parts[groups:], strict=False):
        low = e.new(f"trunc i64 {offset} to i32")
        scaled = e.new(f"mul i32 {base}, {scale & 0xFFFFFFFF}") if scale != 1 else base
        parts.append(e.new(f"add i32 {scaled}, {low}"))
    return Value(form, "i32", parts)


def _result_type(to: Scalar) -> str:
    return to.llvm


def _convert(e: Emitter, op: Operation, w: Width, *args: str) -> str:
    """Return the converted value; .ftz applies to 32-bit floats, as source and as result."""
    to, source = op.types[0], op.types[-1]
    if source.name == "f32":
        args = tuple(flush(e, op, w, source, a) for a in args)
    value = _converted(e, op, w, to, source, *args)
    return flush(e, op, w, to, value) if to.name == "f32" else value


def _converted(e: Emitter, op: Operation, w: Width, to: Scalar, source: Scalar, *args: str) -> str:
    if to.name.endswith("x2"):
        # The first source goes to the upper half.
        small = SCALARS[to.name.removesuffix("x2")]
        halves = [_real_to_real(e, op, w, small, source, _ending(e, op, w, a)) for a in args]
        if small.llvm != "i16":
            halves = [e.new(f"bitcast {w.of(small.llvm)} {half} to {w.of('i16')}") for half in halves]
        return reals.join_halves(e, w, halves[1], halves[0])
    a = args[0]
    if source.kind in "bsu":
        return _from_integer(e, op, w, to, source, a)
    if to.kind in "bsu":
        return _to_integer(e, op, w, to, source, a)
    return _real_to_real(e, op, w, to, source, a)


def _from_integer(e: Emitter, op: Operation, w: Width, to: Scalar, source: Scalar, a: str) -> str:
    kind, signed = w.of(source.llvm), source.signed
    if to.kind in "bsu":
        if "sat" in op.modifiers:
            a = _clamp(e, w, to, source, a)
        if to.bits == source.bits:
            return a
        how = "trunc" if to.bits < source.bits else "sext" if signed else "zext"
        return e.new(f"{how} {kind} {a} to {w.of(to.llvm)}")
    if to.bits == 16:
        number = _exact_double(e, w, source, a)
        return _shrunk(e, w, to, op.rounding, number)
    element = to.llvm
    if op.rounding and source.bits >= 32:
        if source.bits == 32:
            a = e.new(f"{'sext' if signed else 'zext'} {kind} {a} to {w.of('i64')}")
        suffix = "f64" if element == "double" else "f32"
        return e.outline(f"sg_rt_cvt_{op.rounding}_{suffix}_{'s' if signed else 'u'}64", element, [("i64", a)], w)
    return e.new(f"{'s' if signed else 'u'}itofp {kind} {a} to {w.of(element)}")


def _exact_double(e: Emitter, w: Width, source: Scalar, a: str) -> str:
    """Return an integer as a double that rounds to 16 bits in the same way as the integer.

    If the integer has more than 53 bits, its low bits become one bit, which is set if any of them is set.
    """
    kind, sign = w.of(source.llvm), "s" if source.signed else "u"
    if source.bits == 64:
        low = e.new(f"and {kind} {a}, {w.const('i64', 0xFFF)}")
        some = e.new(f"icmp ne {kind} {low}, {w.const('i64', 0)}")
        last = e.new(f"select {w.of('i1')} {some}, {kind} {w.const('i64', 0x1000)}, {kind} {w.const('i64', 0)}")
        high = e.new(f"and {kind} {a}, {w.const('i64', ~0xFFF)}")
        cut = e.new(f"or {kind} {high}, {last}")
        size = e.intrinsic(f"llvm.abs.{w.name('i64')}", kind, [(kind, a), ("i1", "false")]) if source.signed else a
        large = e.new(f"icmp ugt {kind} {size}, {w.const('i64', 1 << 53)}")
        a = e.new(f"select {w.of('i1')} {large}, {kind} {cut}, {kind} {a}")
    return e.new(f"{sign}itofp {kind} {a} to {w.of('double')}")


def _shrunk(e: Emitter, w: Width, to: Scalar, mode: str, a: str) -> str:
    """Return a double in 16 bits, rounded once."""
    name = "bfloat" if to.name == "bf16" else "half"
    bits = e.outline(f"sg_rt_double_to_{name}_{mode or 'rn'}", "i16", [("double", a)], w)
    return bits if to.llvm == "i16" else e.new(f"bitcast {w.of('i16')} {bits} to {w.of(to.llvm)}")


def _clamp(e: Emitter, w: Width, to: Scalar, source: Scalar, a: str) -> str:
    """Clamp an integer to the range of a type; the result keeps the source's width."""
    low = -(1 << (to.bits - 1)) if to.signed else 0
    high = (1 << (to.bits - 1)) - 1 if to.signed else (1 << to.bits) - 1
    least = -(1 << (source.bits - 1)) if source.signed else 0
    most = (1 << (source.bits - 1)) - 1 if source.signed else (1 << source.bits) - 1
    kind, sign = w.of(source.llvm), "s" if source.signed else "u"
    for name, bound, needed in (("max", low, low > least), ("min", high, high < most)):
        if needed:
            args = [(kind, a), (kind, w.const(source.llvm, bound))]
            a = e.intrinsic(f"llvm.{sign}{name}.{w.name(source.llvm)}", kind, args)
    return a


def pack_body(e: Emitter, op: Operation, w: Width, a: str, b: str, *c: str) -> str:
    """Return cvt.pack.sat d, a, b[, c]: b in the low bits, a above it, and the low bits of c above both."""
    to, kind = op.types[0], w.of("i32")
    ones = w.const("i32", (1 << to.bits) - 1)
    low, high = (e.new(f"and {kind} {_clamp(e, w, to, SCALARS['s32'], x)}, {ones}") for x in (b, a))
    parts = [low, e.new(f"shl {kind} {high}, {w.const('i32', to.bits)}")]
    parts += [e.new(f"shl {kind} {x}, {w.const('i32', 2 * to.bits)}") for x in c]
    result = parts[0]
    for part in parts[1:]:
        result = e.new(f"or {kind} {result}, {part}")
    return result


def _to_integer(e: Emitter, op: Operation, w: Width, to: Scalar, source: Scalar, a: str) -> str:
    """Return a float as an integer: a number out of range becomes the nearest end of the range.

    NaN becomes 0 if both types have less than 64 bits, else the integer with only its highest bit set (PTX ISA, cvt).
    """
    element = source.llvm
    if source.bits == 16:
        a, element = reals.to_float(e, source, w, a), "float"
    kind = w.of(element)
    rounding = next((m for m in op.modifiers if m in _WHOLE), "rzi")
    if rounding != "rzi":
        a = e.intrinsic(f"llvm.{_WHOLE[rounding]}.{w.name(element)}", kind, [(kind, a)])
    sign = "s" if to.signed else "u"
    name = f"llvm.fpto{sign}i.sat.{w.name(to.llvm)}.{w.name(element)}"
    number = e.intrinsic(name, w.of(to.llvm), [(kind, a)])
    if max(to.bits, source.bits) < 64:
        return number
    ordered = e.new(f"fcmp ord {kind} {a}, {a}")
    highest = w.const(to.llvm, 1 << (to.bits - 1))
    return e.new(f"select {w.of('i1')} {ordered}, {w.of(to.llvm)} {number}, {w.of(to.llvm)} {highest}")


def _ending(e: Emitter, op: Operation, w: Width, a: str) -> str:
    return reals.finish(e, op, w, "float", a)


def _real_to_real(e: Emitter, op: Operation, w: Width, to: Scalar, source: Scalar, a: str) -> str:
    element = source.llvm
    if source.bits == 16:
        a, element = reals.to_float(e, source, w, a), "float"
    kind = w.of(element)
    whole = next((m for m in op.modifiers if m in _WHOLE), "")
    if whole:
        a = e.intrinsic(f"llvm.{_WHOLE[whole]}.{w.name(element)}", kind, [(kind, a)])
    if to.bits == 16:
        if element == "double" or op.rounding:
            if element == "float":
                a = e.new(f"fpext {kind} {a} to {w.of('double')}")
            return _shrunk(e, w, to, op.rounding, reals.finish(e, op, w, "double", a))
        return reals.from_float(e, to, w, reals.finish(e, op, w, "float", a))
    if SIZES[element] < to.bits:
        a = e.new(f"fpext {kind} {a} to {w.of(to.llvm)}")
    elif SIZES[element] > to.bits:
        if op.rounding:
            a = e.outline(f"sg_rt_cvt_{op.rounding}_f32_f64", "float", [("double", a)], w)
        else:
            a = e.new(f"fptrunc {kind} {a} to {w.of(to.llvm)}")
    return reals.finish(e, op, w, to.llvm, a)


# --- cvta


def cvta_shape(op: Operation, sources: list[Shape]) -> Shape:
    """Return the shape of cvta's result."""
    if "local" in op.modifiers:
        return sources[0] if isinstance(sources[0], Affine) else VARYING
    return sources[0] if "shared" not in op.modifiers or isinstance(sources[0], Affine) else flat(sources)


def cvta(e: Emitter, step: Step) -> None:
    """Emit cvta. All addresses are host addresses, except those in shared memory."""
    op = step.op
    target = step.inst.operands[0]
    assert isinstance(target, Register)
    value = e.read(step.inst.operands[1], "i64")
    if "shared" in op.modifiers:
        name = "sub" if "to" in op.modifiers else "add"
        base = e.once("shared", lambda: e.new("ptrtoint ptr %shared to i64"))
        form = cvta_shape(op, [value.shape])
        if isinstance(form, Affine):
            parts = [e.new(f"{name} i64 {part}, {base}") for part in value.parts]
            form = Affine(form.offsets)
        else:
            parts = [e.new(f"{name} <32 x i64> {e.vector(value)}, {e.splat('i64', [base])}")]
        value = Value(form, "i64", parts)
    elif "local" in op.modifiers and "to" not in op.modifiers:
        value = in_local(e, e.cast(value, "i32"))
    e.write(target.name, value, step)


# --- mov


def mov(e: Emitter, step: Step) -> None:
    """Emit mov: plain copies, {a, b} -> wide and wide -> {a, b}."""
    op = step.op
    target, source = step.inst.operands
    kind = op.llvm
    if isinstance(target, Vector):
        _unpack(e, step, e.read(source, f"i{op.type.bits}"), target)
    elif isinstance(source, Vector):
        assert isinstance(target, Register)
        bits = op.type.bits // len(source.items)
        parts = [e.read(item, f"i{bits}") for item in source.items]
        form = flat([part.shape for part in parts])
        whole = f"i{op.type.bits}"
        value = e.apply(form, whole, lambda w, *args: _pack(e, w, whole, bits, args), parts)
        e.write(target.name, value, step)
    else:
        assert isinstance(target, Register)
        e.write(target.name, e.read(source, kind), step)


def _pack(e: Emitter, w: Width, whole: str, bits: int, parts: tuple[str, ...]) -> str:
    kind = w.of(whole)
    value = ""
    for index, part in enumerate(parts):
        piece = e.new(f"zext {w.of(f'i{bits}')} {part} to {kind}")
        if index:
            piece = e.new(f"shl {kind} {piece}, {w.const(whole, bits * index)}")
        value = e.new(f"or {kind} {value}, {piece}") if value else piece
    return value


def _unpack(e: Emitter, step: Step, value: Value, target: Vector) -> None:
    bits = SIZES[value.type] // len(target.items)
    form = flat([value.shape])

    def piece(w: Width, index: int, whole: str) -> str:
        kind = w.of(value.type)
        if index:
            whole = e.new(f"lshr {kind} {whole}, {w.const(value.type, bits * index)}")
        return e.new(f"trunc {kind} {whole} to {w.of(f'i{bits}')}")

    pieces = [
        e.apply(form, f"i{bits}", lambda w, whole, index=index: piece(w, index, whole), [value])
        for index in range(len(target.items))
    ]
    for item, part in zip(target.items, pieces, strict=False):
        assert isinstance(item, Register)
        e.write(item.name, part, step)
