"""The table of instructions: for each family its types, modifiers, shape rule and the function that emits its code."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from softgpu import refused
from softgpu.analysis.blocks import Step
from softgpu.analysis.shapes import Shape
from softgpu.codegen import arithmetic as a
from softgpu.codegen import (
    atomics,
    copies,
    loads,
    matrices,
    predicates,
    spaces,
    stores,
    system_calls,
    tensor,
    video,
    warp,
)
from softgpu.codegen import bit_fields as b
from softgpu.codegen import conversions as c
from softgpu.codegen import elementwise as each
from softgpu.codegen import reals as r
from softgpu.codegen.emitter import Emitter
from softgpu.codegen.family import Family, Objection, Operation
from softgpu.codegen.forms import FORMS
from softgpu.codegen.legality import objection
from softgpu.ptx.model import Instruction, Unsupported
from softgpu.ptx.types import SCALARS

_INT = "u16 u32 u64 s16 s32 s64"

_REAL = "f32 f64 f16 f16x2 bf16 bf16x2"

_PAIRS = "u16x2 s16x2"

_NOT_DOUBLE = _REAL.replace("f64 ", "")

_BITS = "b16 b32 b64"

_EVERY = " ".join(name for name, scalar in SCALARS.items() if scalar.kind not in "pv")

_ATOMIC = "b16 b32 b64 u32 u64 s32 s64 f32 f64 f16 f16x2 bf16 bf16x2"

_ROUND = "rn rz rm rp ftz sat"

_SYNC = "relaxed acquire release acq_rel sc cta gpu sys cluster"

_ORDER = f"volatile weak mmio {_SYNC}"

_SPACES = "global shared const local param shared::cta param::entry param::func"

_BOOLEAN = "and or xor"

_COMPARE = " ".join(predicates.COMPARISONS)

Emit = Callable[[Emitter, Step], None]

Rule = Callable[[Operation, list[Shape]], Shape]


def _family(
    summary: str,
    emit: Emit,
    types: str,
    modifiers: str = "",
    operands: int | tuple[int, int] = 3,
    *,
    shape: Rule = each.flat_shape,
    required: str = "",
    has_result: bool = True,
    guard_branches: bool = False,
    kinds: each.Kinds | None = None,
    result: Callable[[Operation], str] | None = None,
    objection: Objection | None = None,
) -> Family:
    count = (operands, operands) if isinstance(operands, int) else operands
    words = frozenset(modifiers.split()) | frozenset(required.split())
    return Family(
        summary,
        emit,
        shape,
        frozenset(types.split()),
        words,
        count,
        frozenset(required.split()),
        has_result,
        guard_branches,
        kinds,
        result,
        objection,
    )


def _wait(summary: str, word: str, operands: int = 0) -> Family:
    """Return the family of an instruction that waits for copies: it does nothing, since copies are done at once."""
    return _family(
        summary,
        warp.nothing,
        "",
        "async",
        operands,
        required=word,
        has_result=False,
        objection=copies.objection_to_waiting,
    )


def _lanes(
    summary: str,
    body: each.Body,
    types: str,
    modifiers: str = "",
    operands: int | tuple[int, int] = 3,
    *,
    shape: Rule = each.flat_shape,
    kinds: each.Kinds = each.same_types,
    result: Callable[[Operation], str] = lambda op: op.llvm,
    required: str = "",
) -> Family:
    """Return a family whose result in each lane is body(operands in that lane)."""
    emit = each.elementwise(body, shape, kinds, result)
    return _family(
        summary, emit, types, modifiers, operands, shape=shape, required=required, kinds=kinds, result=result
    )


def _i32(_op: Operation) -> str:
    return "i32"


_VIDEO = {
    "vadd": "a + b",
    "vsub": "a - b",
    "vabsdiff": "|a - b|",
    "vmin": "the lesser",
    "vmax": "the greater",
    "vavrg": "the average",
}


def _video(parts: str, of: str) -> dict[str, Family]:
    families = {
        name + parts: _lanes(f"{summary}, of {of}", video.body, "u32 s32", "sat add", 4, result=_i32)
        for name, summary in _VIDEO.items()
    }
    comparisons = " ".join(video.COMPARISONS)
    families["vset" + parts] = _lanes(
        f"compares, of {of}", video.body, "u32 s32", "add", 4, required=comparisons, result=_i32
    )
    return families


FAMILIES: dict[str, Family] = {
    "add": _lanes("a + b", a.add_body, f"{_INT} {_REAL} {_PAIRS}", _ROUND, shape=each.add_shape),
    "sub": _lanes("a - b", a.sub_body, f"{_INT} {_REAL}", _ROUND, shape=each.sub_shape),
    "mul": _lanes(
        "a * b: low half, high half or whole product",
        a.mul_body,
        f"{_INT} {_REAL}",
        f"{_ROUND} lo hi wide",
        shape=each.mul_shape,
        kinds=a.product_kinds,
        result=a.product_type,
    ),
    "mad": _lanes(
        "a * b + c",
        a.mad_body,
        f"{_INT} f32 f64",
        f"{_ROUND} lo hi wide",
        4,
        shape=each.mul_shape,
        kinds=a.product_kinds,
        result=a.product_type,
    ),
    "mul24": _lanes("a * b of 24-bit integers", a.bits24_body, "u32 s32", required="lo hi"),
    "mad24": _lanes("a * b + c of 24-bit integers", a.bits24_body, "u32 s32", "sat", 4, required="lo hi"),
    "fma": _lanes("a * b + c, rounded once", a.mad_body, _REAL, f"{_ROUND} relu", 4),
    "div": _lanes("a / b", a.divide_body, f"{_INT} f32 f64", f"{_ROUND} approx full"),
    "rem": _lanes("the remainder of a / b", a.remainder_body, _INT),
    "abs": _lanes("|a|", a.abs_body, f"s16 s32 s64 {_REAL}", "ftz", 2),
    "neg": _lanes("-a", a.neg_body, f"s16 s32 s64 {_REAL}", "ftz", 2, shape=each.neg_shape),
    "min": _lanes("the lesser", a.extreme("min"), f"{_INT} {_REAL} {_PAIRS}", "ftz NaN relu", (3, 4)),
    "max": _lanes("the greater", a.extreme("max"), f"{_INT} {_REAL} {_PAIRS}", "ftz NaN relu", (3, 4)),
    "sad": _lanes("c + |a - b|", a.sad_body, _INT, "", 4),
    "and": _lanes("bitwise and", a.binary("and"), f"{_BITS} pred", shape=each.and_shape),
    "or": _lanes("bitwise or", a.binary("or"), f"{_BITS} pred", shape=each.or_shape),
    "xor": _lanes("bitwise exclusive or", a.binary("xor"), f"{_BITS} pred"),
    "not": _lanes("bitwise not", b.not_body, f"{_BITS} pred", "", 2),
    "cnot": _lanes("1 where a is 0, else 0", b.cnot_body, _BITS, "", 2),
    "lop3": _lanes("any function of three bits", b.lop3_body, "b32", "", 5),
    "shl": _lanes("shift left", b.shift("shl"), _BITS, shape=each.shl_shape, kinds=b.shift_kinds),
    "shr": _lanes("shift right", b.shift("shr"), f"{_BITS} {_INT}", shape=each.shr_shape, kinds=b.shift_kinds),
    "shf": _lanes("shift of two registers", b.funnel_body, "b32", "l r", 4, required="clamp wrap"),
    "popc": _lanes("number of set bits", b.count_body, "b32 b64", "", 2, result=b.count_type),
    "clz": _lanes("number of leading zeros", b.count_body, "b32 b64", "", 2, result=b.count_type),
    "brev": _lanes("bits in reverse", b.count_body, "b32 b64", "", 2, result=b.count_type),
    "bfind": _lanes("place of the highest bit", b.bfind_body, "u32 u64 s32 s64", "shiftamt", 2, result=_i32),
    "fns": _lanes("place of the n-th set bit", b.outline_by_type("fns"), "b32", "", 4),
    "bfe": _lanes("extracts a bit field", b.bfe_body, "u32 u64 s32 s64", "", 4, kinds=b.bit_field_kinds),
    "bfi": _lanes("inserts a bit field", b.bfi_body, "b32 b64", "", 5, kinds=b.bit_field_kinds),
    "bmsk": _lanes("makes a bit mask", b.mask_body, "b32", required="clamp wrap"),
    "szext": _lanes("extends the sign of a field", b.extend_body, "u32 s32", required="clamp wrap"),
    "prmt": _lanes("picks bytes of two registers", b.prmt_body, "b32", "f4e b4e rc8 ecl ecr rc16", 4),
    "dp4a": _lanes(
        "c + the products of four bytes",
        lambda e, op, w, *x: e.outline(
            f"sg_rt_dp4a_{op.types[0].name}_{op.types[1].name}", "i32", [("i32", v) for v in x], w
        ),
        "u32 s32",
        "",
        4,
    ),
    "dp2a": _lanes(
        "c + the products of two halves and two bytes",
        lambda e, op, w, *x: e.outline(
            f"sg_rt_dp2a_{op.modifiers[0]}_{op.types[0].name}_{op.types[1].name}", "i32", [("i32", v) for v in x], w
        ),
        "u32 s32",
        required="lo hi",
        operands=4,
    ),
    **_video("2", "two halves"),
    **_video("4", "four bytes"),
    "rcp": _lanes("1 / a", r.function, "f32 f64", f"{_ROUND} approx", 2),
    "sqrt": _lanes("the square root", r.function, "f32 f64", f"{_ROUND} approx", 2),
    "rsqrt": _lanes("1 / the square root", r.function, "f32 f64", "approx ftz", 2),
    "ex2": _lanes("2 to the power a", r.function, _NOT_DOUBLE, "approx ftz", 2),
    "lg2": _lanes("the logarithm to base 2", r.function, "f32", "approx ftz", 2),
    "sin": _lanes("the sine", r.function, "f32", "approx ftz", 2),
    "cos": _lanes("the cosine", r.function, "f32", "approx ftz", 2),
    "tanh": _lanes("the hyperbolic tangent", r.function, _NOT_DOUBLE, "approx", 2),
    "copysign": _lanes("b with the sign of a", r.copysign, "f32 f64"),
    "testp": _lanes(
        "tests the kind of a number",
        r.testp_body,
        "f32 f64",
        operands=2,
        required="finite infinite number notanumber normal subnormal",
        result=lambda _: "i1",
    ),
    "setp": _family(
        "compares", predicates.setp, f"{_BITS} {_INT} {_REAL}", f"ftz {_BOOLEAN}", (3, 4), required=_COMPARE
    ),
    "set": _lanes(
        "compares; the result is a number",
        predicates.set_body,
        f"{_BITS} {_INT} {_REAL}",
        f"ftz {_BOOLEAN}",
        (3, 4),
        required=_COMPARE,
        kinds=predicates.set_kinds,
        result=predicates.first_type,
    ),
    "selp": _lanes(
        "p ? a : b",
        predicates.selp_body,
        f"{_BITS} {_INT} f32 f64",
        "",
        4,
        shape=each.selp_shape,
        kinds=predicates.selp_kinds,
    ),
    "slct": _lanes(
        "c >= 0 ? a : b",
        predicates.slct_body,
        f"{_BITS} {_INT} f32 f64",
        "ftz",
        4,
        kinds=predicates.slct_kinds,
        result=predicates.first_type,
    ),
    "mov": _family("copies, packs and unpacks", c.mov, f"{_EVERY} pred", "", 2, shape=each.mov_shape),
    "cvt": _family("converts", c.cvt, _EVERY, f"{_ROUND} rni rzi rmi rpi rna relu", (2, 3), shape=c.cvt_shape),
    "cvt.pack": _lanes(
        "saturates and packs two integers",
        c.pack_body,
        "u16 s16 u8 s8 s32 b32",
        "pack sat",
        (3, 4),
        kinds=lambda _op, count: ["i32"] * count,
        result=_i32,
    ),
    "cvt.tf32": _lanes(
        "rounds to the bits that tensor cores read", r.to_tf32, "f32", "tf32", 2, required="rna", result=_i32
    ),
    "cvta": _family(
        "between generic and other addresses",
        c.cvta,
        "u64",
        "to global shared local const param shared::cta param::entry",
        2,
        shape=c.cvta_shape,
    ),
    "ld": _family("loads", loads.load, _EVERY, f"{_SPACES} {_ORDER} nc v2 v4 unified", (2, 3), shape=loads.load_shape),
    "ldmatrix": _family(
        "loads tiles of 8 x 8, spread over a warp",
        matrices.load_matrices,
        "b16",
        "sync aligned m8n8 trans shared shared::cta",
        2,
        required="x1 x2 x4",
        shape=atomics.varying_shape,
        guard_branches=True,
    ),
    "mma": _family(
        "multiplies small matrices spread over a warp, and adds",
        tensor.multiply,
        "f16 bf16 f32 f64",
        "sync aligned row col m16n8k16 m16n8k8 m16n8k4 m8n8k4 tf32",
        4,
        shape=atomics.varying_shape,
        guard_branches=True,
        objection=tensor.objection,
    ),
    "ldu": _family("loads", loads.load, _EVERY, "global v2 v4", 2, shape=loads.load_shape),
    "st": _family("stores", stores.store, _EVERY, f"{_SPACES} {_ORDER} v2 v4", (2, 3), has_result=False),
    "cp.async": _family(
        "copies from global to shared memory",
        copies.copy,
        "",
        "async shared shared::cta",
        (3, 4),
        required="global",
        has_result=False,
        objection=copies.objection,
    ),
    "cp.async.commit_group": _wait("ends a group of copies", "commit_group"),
    "cp.async.wait_group": _wait("waits for all but the last groups of copies", "wait_group", 1),
    "cp.async.wait_all": _wait("waits for all copies", "wait_all"),
    "atom": _family(
        "atomic, with the old value",
        atomics.atomic,
        _ATOMIC,
        f"global shared shared::cta noftz {_SYNC}",
        (3, 5),
        required=" ".join(atomics.ATOMIC_OPERATIONS),
        shape=atomics.varying_shape,
    ),
    "red": _family(
        "atomic, without a result",
        atomics.atomic,
        _ATOMIC,
        f"global shared shared::cta noftz {_SYNC}",
        (2, 3),
        required="add min max and or xor inc dec",
        has_result=False,
    ),
    "membar": _family("orders memory accesses", warp.fence, "", "cta gl sys", 0, has_result=False),
    "fence": _family("orders memory accesses", warp.fence, "", f"proxy alias {_SYNC}", 0, has_result=False),
    "isspacep": _lanes(
        "tests if an address is in a space",
        spaces.is_in_space,
        "u64",
        operands=2,
        required=" ".join(spaces.SPACES),
        kinds=lambda _op, _count: ["i64"],
        result=lambda _: "i1",
    ),
    "prefetch": _family("a hint", warp.nothing, "", "global local const param tensormap L1 L2", 1, has_result=False),
    "prefetchu": _family("a hint", warp.nothing, "", "L1", 1, has_result=False),
    "discard": _family("a hint", warp.nothing, "", "global L2", 2, has_result=False),
    "applypriority": _family("a hint", warp.nothing, "", "global", 2, has_result=False),
    "createpolicy": _family(
        "makes a hint", warp.policy, "b64", "fractional range cvt L2 global", (2, 4), shape=warp.uniform_shape
    ),
    "nanosleep": _family("a hint", warp.nothing, "u32", "", 1, has_result=False),
    "pmevent": _family("a hint", warp.nothing, "", "", 1, has_result=False),
    "bar": _family(
        "waits for the other warps of the block, or of the warp",
        warp.barrier,
        "",
        "aligned cta",
        (1, 2),
        required="sync arrive warp",
        has_result=False,
        guard_branches=True,
    ),
    "barrier": _family(
        "waits for the other warps of the block",
        warp.barrier,
        "",
        "aligned cta",
        (1, 2),
        required="sync arrive",
        has_result=False,
        guard_branches=True,
    ),
    "bar.red": _family(
        "a barrier that counts or combines a predicate",
        warp.barrier_reduce,
        "u32 pred",
        "red aligned cta",
        (3, 4),
        required="popc and or",
        shape=warp.uniform_shape,
        guard_branches=True,
    ),
    "shfl": _family(
        "moves values between lanes",
        warp.shuffle,
        "b32",
        "sync",
        (4, 5),
        required="up down bfly idx",
        shape=warp.shuffle_shape,
        guard_branches=True,
    ),
    "vote": _family(
        "combines a predicate of all lanes",
        warp.vote,
        "pred b32",
        "sync",
        (2, 3),
        required="all any uni ballot",
        shape=warp.members_shape,
        guard_branches=True,
    ),
    "match": _family(
        "finds lanes with the same value",
        warp.match,
        "b32 b64",
        "sync",
        3,
        required="any all",
        shape=atomics.varying_shape,
        guard_branches=True,
    ),
    "redux": _family(
        "combines a number of all lanes",
        warp.reduce,
        "u32 s32 b32",
        "sync",
        3,
        required="add min max and or xor",
        shape=warp.members_shape,
        guard_branches=True,
    ),
    "activemask": _family(
        "the running lanes", warp.activemask, "b32", "", 1, shape=warp.uniform_shape, guard_branches=True
    ),
    "elect": _family("picks one lane", warp.elect, "", "sync", 2, shape=atomics.varying_shape, guard_branches=True),
    "trap": _family("ends the launch with an error", warp.trap, "", "", 0, has_result=False, guard_branches=True),
    "call nowhere": _family(
        "a call of an address that is no function",
        system_calls.nowhere,
        "",
        operands=1,
        has_result=False,
        guard_branches=True,
    ),
    "call overflow": _family(
        "a stack that is full", system_calls.overflow, "", operands=0, has_result=False, guard_branches=True
    ),
    "call vprintf": _family(
        "printf", system_calls.vprintf, "", operands=3, shape=atomics.varying_shape, guard_branches=True
    ),
    "call __assertfail": _family(
        "reports a failed assertion", system_calls.assert_fail, "", operands=5, has_result=False, guard_branches=True
    ),
    "call cudaGraphSetConditional": _family(
        "sets the value that a conditional node reads",
        system_calls.set_conditional,
        "",
        operands=2,
        has_result=False,
        guard_branches=True,
    ),
    "brkpt": _family("a hint", warp.nothing, "", "", 0, has_result=False),
}

CONTROL = frozenset({"bra", "brx", "ret", "exit"})

_HINTS = frozenset(["ca", "cg", "cs", "lu", "cv", "wb", "wt"])

_LONG_HINTS = ("L1::", "L2::", "level::")


@lru_cache(maxsize=4096)  # hostile text has any number of opcodes
def decode(opcode: str) -> Operation | str:
    """Return the operation of an opcode, or the reason why it has none."""
    unknown = refused.reason(opcode)
    if unknown:
        return f"no code for {unknown}"
    base, *parts = opcode.split(".")
    name = family_of(base, parts)
    family = FAMILIES.get(name)
    if family is None:
        return f"no code for {base}"
    if base == "mma" and opcode not in FORMS:
        return "no code for this form of mma"
    types = tuple(SCALARS[part] for part in parts if part in SCALARS)
    words = [part for part in parts if part not in SCALARS and not part.startswith(_LONG_HINTS)]
    modifiers = tuple(word for word in words if word not in _HINTS)
    if name == "vote" and "ballot" not in modifiers:
        types = (SCALARS["pred"],)
    elif name == "isspacep":
        types = (*types, SCALARS["u64"])
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
    found = objection(name, modifiers, tuple(scalar.name for scalar in types))
    return found or Operation(opcode, base, modifiers, types, family)


def family_of(base: str, parts: list[str]) -> str:
    """Return the name in the table of the opcode with these parts."""
    if base in ("bar", "barrier") and "red" in parts:
        return "bar.red"
    if base == "cvt" and ("pack" in parts or "tf32" in parts):
        return "cvt.pack" if "pack" in parts else "cvt.tf32"
    if base == "cp":
        long = ".".join((base, *parts[:2]))
        return long if long in FAMILIES else ".".join((base, *parts[:1]))
    return base


def operation(inst: Instruction) -> Operation:
    """Return the decoded opcode of an instruction.

    Raises:
        Unsupported: the opcode has no code.
    """
    found = decode(inst.opcode)
    if isinstance(found, str):
        raise Unsupported(inst.line, f"{found}: {' '.join(inst.text.split())}")
    return found


EXPANDED = {
    "addc": ("s32 s64 u32 u64", "a + b + the carry"),
    "subc": ("s32 s64 u32 u64", "a - b - the borrow"),
    "madc": ("s32 s64 u32 u64", "a * b + c + the carry"),
    "alloca": ("u64", "takes memory from the stack"),
    "stacksave": ("u64", "the end of the stack"),
    "stackrestore": ("u64", "sets the end of the stack"),
    "call": ("", "calls a function, by name or by address"),
    "bra": ("", "goes to a label"),
    "brx": ("", "goes to one of several labels"),
    "ret": ("", "returns"),
    "exit": ("", "ends the thread"),
}
"""Families that other code turns into those above, or into control flow: their types and a summary."""


def supported() -> list[tuple[str, str, str]]:
    """Return (name, types, summary) of every family of PTX that has code, for the documentation."""
    rows = [(name, " ".join(sorted(f.types)), f.summary) for name, f in FAMILIES.items() if " " not in name]
    return sorted([*rows, *((name, types, summary) for name, (types, summary) in EXPANDED.items())])
