"""The table of instructions: for each family its types, modifiers, shape rule and the function that writes its code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from kaas.softgpu import arithmetic as a
from kaas.softgpu import conversions as c
from kaas.softgpu import memory as m
from kaas.softgpu import reals as r
from kaas.softgpu import special, warp
from kaas.softgpu.emitter import Emitter
from kaas.softgpu.family import Family, Operation
from kaas.softgpu.flow import Step
from kaas.softgpu.inline import Kernel
from kaas.softgpu.ptx import SINK, Address, Instruction, Label, Not, Operand, Pair, PtxError, Register, Special, Symbol
from kaas.softgpu.ptx import Unsupported, Vector
from kaas.softgpu.ptx_types import SCALARS
from kaas.softgpu.shapes import Shape

_INT = "u16 u32 u64 s16 s32 s64"
_REAL = "f32 f64 f16 f16x2 bf16 bf16x2"
_BITS = "b16 b32 b64"
_EVERY = " ".join(name for name in SCALARS if name != "pred")
_ROUND = "rn rz rm rp ftz sat"
_SYNC = "relaxed acquire release acq_rel sc cta gpu sys cluster"
_ORDER = f"volatile weak mmio {_SYNC}"
_SPACES = "global shared const local param shared::cta param::entry param::func"
_BOOLEAN = "and or xor"
_COMPARE = " ".join(a.COMPARISONS)

Emit = Callable[[Emitter, Step], None]
Rule = Callable[[Operation, list[Shape]], Shape]


def _family(
    summary: str,
    emit: Emit,
    types: str,
    modifiers: str = "",
    operands: int | tuple[int, int] = 3,
    *,
    shape: Rule = a.flat_shape,
    required: str = "",
    has_result: bool = True,
    guard_branches: bool = False,
) -> Family:
    count = (operands, operands) if isinstance(operands, int) else operands
    words = frozenset(modifiers.split()) | frozenset(required.split())
    return Family(
        summary, emit, shape, frozenset(types.split()), words, count, frozenset(required.split()), has_result, guard_branches
    )


def _lanes(body: a.Body, types: str, modifiers: str = "", operands: int | tuple[int, int] = 3, **more: object) -> Family:
    """A family that treats each lane alike; the summary is the body's first sentence or its name."""
    shape = more.pop("shape", a.flat_shape)
    kinds, result = more.pop("kinds", a.same_types), more.pop("result", lambda op: op.llvm)
    summary, required = str(more.pop("summary", "")), str(more.pop("required", ""))
    assert not more
    emit = a.elementwise(body, shape, kinds, result)  # type: ignore[arg-type]
    return _family(summary, emit, types, modifiers, operands, shape=shape, required=required)  # type: ignore[arg-type]


def _i32(op: Operation) -> str:
    return "i32"


FAMILIES: dict[str, Family] = {
    "add": _lanes(a.add_body, f"{_INT} {_REAL}", _ROUND, shape=a.add_shape, summary="a + b"),
    "sub": _lanes(a.sub_body, f"{_INT} {_REAL}", _ROUND, shape=a.sub_shape, summary="a - b"),
    "mul": _lanes(
        a.mul_body,
        f"{_INT} {_REAL}",
        f"{_ROUND} lo hi wide",
        shape=a.mul_shape,
        kinds=a.product_kinds,
        result=a.product_type,
        summary="a * b: low half, high half or whole product",
    ),
    "mad": _lanes(
        a.mad_body,
        f"{_INT} f32 f64",
        f"{_ROUND} lo hi wide",
        4,
        shape=a.mul_shape,
        kinds=a.product_kinds,
        result=a.product_type,
        summary="a * b + c",
    ),
    "mul24": _lanes(a.bits24_body, "u32 s32", required="lo hi", summary="a * b of 24-bit integers"),
    "mad24": _lanes(a.bits24_body, "u32 s32", "sat", 4, required="lo hi", summary="a * b + c of 24-bit integers"),
    "fma": _lanes(a.mad_body, _REAL, f"{_ROUND} relu", 4, summary="a * b + c, rounded once"),
    "div": _lanes(a.divide_body, f"{_INT} f32 f64", f"{_ROUND} approx full", summary="a / b"),
    "rem": _lanes(a.remainder_body, _INT, summary="the remainder of a / b"),
    "abs": _lanes(a.abs_body, f"s16 s32 s64 {_REAL}", "ftz", 2, summary="|a|"),
    "neg": _lanes(a.neg_body, f"s16 s32 s64 {_REAL}", "ftz", 2, shape=a.neg_shape, summary="-a"),
    "min": _lanes(a.extreme("min"), f"{_INT} {_REAL}", "ftz NaN relu", (3, 4), summary="the lesser"),
    "max": _lanes(a.extreme("max"), f"{_INT} {_REAL}", "ftz NaN relu", (3, 4), summary="the greater"),
    "sad": _lanes(a.sad_body, _INT, "", 4, summary="c + |a - b|"),
    "and": _lanes(a.binary("and"), f"{_BITS} pred", shape=a.and_shape, summary="bitwise and"),
    "or": _lanes(a.binary("or"), f"{_BITS} pred", shape=a.or_shape, summary="bitwise or"),
    "xor": _lanes(a.binary("xor"), f"{_BITS} pred", summary="bitwise exclusive or"),
    "not": _lanes(a.not_body, f"{_BITS} pred", "", 2, summary="bitwise not"),
    "cnot": _lanes(a.cnot_body, _BITS, "", 2, summary="1 where a is 0, else 0"),
    "lop3": _lanes(a.lop3_body, "b32", "", 5, summary="any function of three bits"),
    "shl": _lanes(a.shift("shl"), _BITS, shape=a.shl_shape, kinds=a.shift_kinds, summary="shift left"),
    "shr": _lanes(a.shift("shr"), f"{_BITS} {_INT}", shape=a.shr_shape, kinds=a.shift_kinds, summary="shift right"),
    "shf": _lanes(a.funnel_body, "b32", "l r", 4, required="clamp wrap", summary="shift of two registers"),
    "popc": _lanes(a.count_body, "b32 b64", "", 2, result=a.count_type, summary="number of set bits"),
    "clz": _lanes(a.count_body, "b32 b64", "", 2, result=a.count_type, summary="number of leading zeros"),
    "brev": _lanes(a.count_body, "b32 b64", "", 2, result=a.count_type, summary="bits in reverse"),
    "bfind": _lanes(a.bfind_body, "u32 u64 s32 s64", "shiftamt", 2, result=_i32, summary="place of the highest bit"),
    "fns": _lanes(a.outline_by_type("fns"), "b32", "", 4, summary="place of the n-th set bit"),
    "bfe": _lanes(a.bfe_body, "u32 u64 s32 s64", "", 4, kinds=a.bit_field_kinds, summary="extracts a bit field"),
    "bfi": _lanes(a.bfi_body, "b32 b64", "", 5, kinds=a.bit_field_kinds, summary="inserts a bit field"),
    "bmsk": _lanes(a.outline_by_type("bmsk"), "b32", "clamp wrap", summary="makes a bit mask"),
    "szext": _lanes(a.outline_by_type("szext"), "u32 s32", "clamp wrap", summary="extends the sign of a field"),
    "prmt": _lanes(a.prmt_body, "b32", "f4e b4e rc8 ecl ecr rc16", 4, summary="picks bytes of two registers"),
    "dp4a": _lanes(
        lambda e, op, w, *x: e.outline(
            f"kaas_rt_dp4a_{op.types[0].name}_{op.types[1].name}", "i32", [("i32", v) for v in x], w
        ),
        "u32 s32",
        "",
        4,
        summary="c + the products of four bytes",
    ),
    "dp2a": _lanes(
        lambda e, op, w, *x: e.outline(
            f"kaas_rt_dp2a_{op.modifiers[0]}_{op.types[0].name}_{op.types[1].name}", "i32", [("i32", v) for v in x], w
        ),
        "u32 s32",
        required="lo hi",
        operands=4,
        summary="c + the products of two halves and two bytes",
    ),
    "rcp": _lanes(r.function, "f32 f64", f"{_ROUND} approx", 2, summary="1 / a"),
    "sqrt": _lanes(r.function, "f32 f64", f"{_ROUND} approx", 2, summary="the square root"),
    "rsqrt": _lanes(r.function, "f32 f64", "approx ftz", 2, summary="1 / the square root"),
    "ex2": _lanes(r.function, _REAL, "approx ftz", 2, summary="2 to the power a"),
    "lg2": _lanes(r.function, "f32", "approx ftz", 2, summary="the logarithm to base 2"),
    "sin": _lanes(r.function, "f32", "approx ftz", 2, summary="the sine"),
    "cos": _lanes(r.function, "f32", "approx ftz", 2, summary="the cosine"),
    "tanh": _lanes(r.function, _REAL, "approx ftz", 2, summary="the hyperbolic tangent"),
    "copysign": _lanes(r.copysign, "f32 f64", summary="b with the sign of a"),
    "testp": _lanes(
        r.testp_body,
        "f32 f64",
        operands=2,
        required="finite infinite number notanumber normal subnormal",
        result=lambda op: "i1",
        summary="tests the kind of a number",
    ),
    "setp": _family("compares", a.setp, f"{_BITS} {_INT} {_REAL}", f"ftz {_BOOLEAN}", (3, 4), required=_COMPARE),
    "set": _lanes(
        a.set_body,
        f"{_BITS} {_INT} f32 f64",
        f"ftz {_BOOLEAN}",
        (3, 4),
        required=_COMPARE,
        kinds=a.set_kinds,
        result=a.first_type,
        summary="compares, with a number for the answer",
    ),
    "selp": _lanes(
        a.selp_body, f"{_BITS} {_INT} f32 f64", "", 4, shape=a.selp_shape, kinds=a.selp_kinds, summary="p ? a : b"
    ),
    "slct": _lanes(
        a.slct_body,
        f"{_BITS} {_INT} f32 f64",
        "ftz",
        4,
        kinds=a.slct_kinds,
        result=a.first_type,
        summary="c >= 0 ? a : b",
    ),
    "mov": _family("copies, packs and unpacks", c.mov, f"{_EVERY} pred", "", 2, shape=a.mov_shape),
    "cvt": _family(
        "converts", c.cvt, _EVERY, f"{_ROUND} rni rzi rmi rpi rna relu", (2, 3), shape=c.cvt_shape
    ),
    "cvta": _family(
        "between generic and other addresses", c.cvta, "u64", "to global shared local const param shared::cta param::entry",
        2, shape=c.cvta_shape,
    ),
    "ld": _family("loads", m.load, _EVERY, f"{_SPACES} {_ORDER} nc v2 v4 unified", (2, 3), shape=m.load_shape),
    "ldu": _family("loads", m.load, _EVERY, "global v2 v4", 2, shape=m.load_shape),
    "st": _family("stores", m.store, _EVERY, f"{_SPACES} {_ORDER} v2 v4", (2, 3), has_result=False),
    "atom": _family(
        "atomic, with the old value",
        m.atomic,
        "b32 b64 u32 u64 s32 s64 f32 f64 b16",
        f"global shared shared::cta noftz {_SYNC}",
        (3, 5),
        required=" ".join(m.ATOMIC_OPERATIONS),
        shape=m.varying_shape,
    ),
    "red": _family(
        "atomic, without a result",
        m.atomic,
        "b32 b64 u32 u64 s32 s64 f32 f64",
        f"global shared shared::cta noftz {_SYNC}",
        (2, 3),
        required="add min max and or xor inc dec",
        has_result=False,
    ),
    "membar": _family("orders memory accesses", warp.fence, "", "cta gl sys", 0, has_result=False),
    "fence": _family("orders memory accesses", warp.fence, "", f"proxy alias {_SYNC}", 0, has_result=False),
    "prefetch": _family("a hint", warp.nothing, "", "global local", 1, has_result=False),
    "prefetchu": _family("a hint", warp.nothing, "", "", 1, has_result=False),
    "nanosleep": _family("a hint", warp.nothing, "u32", "", 1, has_result=False),
    "pmevent": _family("a hint", warp.nothing, "", "", 1, has_result=False),
    "bar": _family(
        "waits for the other warps of the block, or of the warp", warp.barrier, "", "aligned cta", (1, 2),
        required="sync arrive warp", has_result=False, guard_branches=True,
    ),
    "barrier": _family(
        "waits for the other warps of the block", warp.barrier, "", "aligned cta", (1, 2),
        required="sync arrive", has_result=False, guard_branches=True,
    ),
    "bar.red": _family(
        "a barrier that counts or combines a predicate", warp.barrier_reduce, "u32 pred", "red aligned cta", (3, 4),
        required="popc and or", shape=warp.uniform_shape, guard_branches=True,
    ),
    "shfl": _family(
        "moves values between lanes", warp.shuffle, "b32", "sync", (4, 5), required="up down bfly idx",
        shape=warp.shuffle_shape, guard_branches=True,
    ),
    "vote": _family(
        "combines a predicate of all lanes", warp.vote, "pred b32", "sync", (2, 3), required="all any uni ballot",
        shape=warp.uniform_shape, guard_branches=True,
    ),
    "match": _family(
        "finds lanes with the same value", warp.match, "b32 b64", "sync", 3, required="any all",
        shape=m.varying_shape, guard_branches=True,
    ),
    "redux": _family(
        "combines a number of all lanes", warp.reduce, "u32 s32 b32", "sync", 3, required="add min max and or xor",
        shape=warp.uniform_shape, guard_branches=True,
    ),
    "activemask": _family("the running lanes", warp.activemask, "b32", "", 1, shape=warp.uniform_shape, guard_branches=True),
    "elect": _family("picks one lane", warp.elect, "", "sync", 2, shape=m.varying_shape, guard_branches=True),
    "trap": _family("ends the launch with an error", warp.trap, "", "", 0, has_result=False, guard_branches=True),
    "brkpt": _family("a hint", warp.nothing, "", "", 0, has_result=False),
}

CONTROL = frozenset({"bra", "brx", "ret", "exit"})
_HINTS = frozenset("ca cg cs lu cv wb wt".split())
_LONG_HINTS = ("L1::", "L2::", "level::")


@cache
def decode(opcode: str) -> Operation | str:
    """The operation of an opcode, or why there is none."""
    base, *parts = opcode.split(".")
    name = "bar.red" if base in ("bar", "barrier") and "red" in parts else base
    family = FAMILIES.get(name)
    if family is None:
        return f"no code for {base}"
    types = tuple(SCALARS[part] for part in parts if part in SCALARS)
    words = [part for part in parts if part not in SCALARS and not part.startswith(_LONG_HINTS)]
    modifiers = tuple(word for word in words if word not in _HINTS)
    if name == "vote" and "ballot" not in modifiers:
        types = (SCALARS["pred"],)
    for part in modifiers:
        if part not in family.modifiers:
            return f"no code for .{part} of {base}"
    for scalar in types:
        if scalar.name not in family.types:
            return f"no code for .{scalar.name} of {base}"
    if family.types and not types:
        return f"{base} without a type"
    if family.required and not family.required & set(modifiers):
        return f"no code for this form of {base}"
    return Operation(opcode, base, modifiers, types, family)


def operation(inst: Instruction) -> Operation:
    found = decode(inst.opcode)
    if isinstance(found, str):
        raise Unsupported(inst.line, f"{found}: {' '.join(inst.text.split())}")
    return found


def check(kernel: Kernel) -> list[Unsupported]:
    """What in the kernel has no code. Raises PtxError for what is wrong in itself."""
    refusals = []
    for item in kernel.body:
        if isinstance(item, Label) or item.opcode.split(".", 1)[0] in CONTROL:
            continue
        try:
            _check_operands(kernel, item, operation(item))
        except Unsupported as refusal:
            refusals.append(refusal)
    return refusals


def _check_operands(kernel: Kernel, inst: Instruction, op: Operation) -> None:
    text = " ".join(inst.text.split())
    least, most = op.family.operands
    if not least <= len(inst.operands) <= most:
        raise PtxError(inst.line, f"{len(inst.operands)} operands in {text!r}")
    if op.family.has_result and not _is_result(inst.operands[0]):
        raise PtxError(inst.line, f"{text!r} writes to what is no register")
    memory = op.base in ("ld", "ldu", "st", "atom", "red")
    if memory and not isinstance(inst.operands[1 if op.family.has_result else 0], Address):
        raise PtxError(inst.line, f"no address in {text!r}")
    if op.base == "lop3" and not hasattr(inst.operands[4], "value"):
        raise PtxError(inst.line, f"no table in {text!r}")
    for operand in inst.operands:
        _check_operand(kernel, inst, operand)


def _is_result(operand: Operand) -> bool:
    return isinstance(operand, Register | Pair) or (
        isinstance(operand, Vector) and all(isinstance(item, Register) for item in operand.items)
    )


def _check_operand(kernel: Kernel, inst: Instruction, operand: Operand) -> None:
    match operand:
        case Special(name):
            if name not in special.NAMES:
                raise Unsupported(inst.line, f"no code for {name}: {' '.join(inst.text.split())}")
        case Address(base, _):
            _check_operand(kernel, inst, base)
        case Vector(items):
            for item in items:
                _check_operand(kernel, inst, item)
        case Symbol(name, _):
            known = name in kernel.shared or name in kernel.local or name in kernel.globals
            if not known and all(p.name != name for p in kernel.parameters):
                raise PtxError(inst.line, f"no variable or register {name} for {' '.join(inst.text.split())!r}")
        case Register() | Pair() | Not():
            if operand != SINK and any(r.name not in kernel.registers for r in _plain(operand)):
                raise PtxError(inst.line, f"undeclared register in {' '.join(inst.text.split())!r}")


def _plain(operand: Register | Pair | Not) -> Iterable[Register]:
    match operand:
        case Register():
            return (operand,)
        case Pair(first, second):
            return tuple(one for one in (first, second) if one != SINK)
        case Not(register):
            return (register,)


def supported() -> list[tuple[str, str, str]]:
    """(name, types, summary) of every family, for the documentation."""
    return [(name, " ".join(sorted(f.types)), f.summary) for name, f in sorted(FAMILIES.items())]
