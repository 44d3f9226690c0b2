"""The legal combinations of modifiers and types: the PTX manual's restrictions, as one table."""

from __future__ import annotations

from softgpu.codegen.predicates import COMPARISONS

_SMALL = "f16 f16x2 bf16 bf16x2"
_INT = "u16 u32 u64 s16 s32 s64"
_ATOMIC = {
    "add": f"u32 s32 u64 s64 f32 f64 {_SMALL}",
    "min max": "u32 s32 u64 s64",
    "and or xor exch": "b32 b64",
    "cas": "b16 b32 b64",
    "inc dec": "u32",
    "noftz": _SMALL,
}

# family: modifiers -> the last type must be one of these. "*" holds for every family.
_TYPES: dict[str, dict[str, str]] = {
    "*": {"ftz": "f32 f16 f16x2", "rn": f"f32 f64 {_SMALL}", "rz rm rp": "f32 f64"},
    "add": {"sat": f"s32 f32 {_SMALL}"},
    "sub": {"sat": f"s32 f32 {_SMALL}"},
    "mul": {"lo hi": _INT, "wide": "u16 u32 s16 s32", "sat": f"f32 {_SMALL}"},
    "mad": {"lo": _INT, "hi": _INT, "wide": "u16 u32 s16 s32", "sat": "s32 f32"},
    "fma": {"sat": f"f32 {_SMALL}", "relu": _SMALL},
    "div": {"approx full": "f32", "sat": ""},
    "rcp": {"sat": "", "ftz": "f32 f64"},
    "rsqrt": {"ftz": "f32 f64"},
    "ex2": {"ftz": "f32 bf16 bf16x2"},
    "sqrt": {"approx": "f32", "sat": ""},
    "min": {"NaN": f"f32 {_SMALL}", "relu": f"s32 s16x2 {_SMALL}"},
    "max": {"NaN": f"f32 {_SMALL}", "relu": f"s32 s16x2 {_SMALL}"},
    "mad24": {"sat": "s32"},
    "setp": {
        "lo ls hi hs": "u16 u32 u64 b16 b32 b64",
        "lt le gt ge": f"{_INT} f32 f64 {_SMALL}",
        "equ neu ltu leu gtu geu num nan": f"f32 f64 {_SMALL}",
    },
    "slct": {"ftz": "f32"},
    "cvt": {"rz rm rp rn ftz": f"{_INT} u8 s8 f32 f64 f16 bf16"},
    "atom": _ATOMIC,
    "red": _ATOMIC,
    "bar.red": {"popc": "u32", "and or": "pred"},
    "redux": {"add min max": "u32 s32", "and or xor": "b32"},
    "vote": {"all any uni": "pred", "ballot": "b32"},
}
_TYPES["set"] = _TYPES["setp"]

# An opcode has at most one word of each row.
_ALTERNATIVES = (
    "rn rz rm rp rni rzi rmi rpi rna",
    "lo hi wide",
    "v2 v4",
    "x1 x2 x4",
    "l r",
    "clamp wrap",
    "approx full",
    "up down bfly idx",
    "all any uni ballot",
    "finite infinite number notanumber normal subnormal",
    "f4e b4e rc8 ecl ecr rc16",
    "global shared local const param shared::cta param::entry param::func",
    "sync arrive",
    "popc and or",
    " ".join(COMPARISONS),
)
_OPERATIONS = "add min max and or xor exch cas inc dec"

# The number of types that an opcode names; one if it is not listed.
_COUNTS = {"cvt": 2, "set": 2, "slct": 2, "dp4a": 2, "dp2a": 2}
_COUNTS |= {f"{name}{n}": 3 for name in ("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vavrg") for n in (2, 4)}
_COUNTS |= {"vset2": 2, "vset4": 2}


def _spread(rules: dict[str, str]) -> dict[str, frozenset[str]]:
    return {word: frozenset(types.split()) for words, types in rules.items() for word in words.split()}


_ALLOWED = {family: _spread(rules) for family, rules in _TYPES.items()}
_GROUPS = tuple(frozenset(row.split()) for row in _ALTERNATIVES)
_OPERATION_GROUP = frozenset(_OPERATIONS.split())


def objection(name: str, modifiers: tuple[str, ...], types: tuple[str, ...]) -> str:
    """Return the reason why this is no instruction; "" if it is one."""
    if name in ("cvt.pack", "cp.async", "mma"):
        return _special_objection(name, frozenset(modifiers), types)
    if (len(types) > 1 and len(types) != _COUNTS.get(name, 1)) or (types and len(types) < _COUNTS.get(name, 1)):
        return f"{name} with {len(types)} types"
    allowed = _ALLOWED["*"] | _ALLOWED.get(name, {})
    for word in modifiers:
        if word in allowed and types and types[-1] not in allowed[word]:
            return f".{word} of {name} does not go with .{types[-1]}"
    groups = (*_GROUPS, _OPERATION_GROUP) if name in ("atom", "red", "redux") else _GROUPS
    for group in groups:
        found = [word for word in modifiers if word in group]
        if len(found) > 1:
            return f"{name} with both .{found[0]} and .{found[1]}"
    return _special_objection(name, frozenset(modifiers), types)


def _special_objection(name: str, words: frozenset[str], types: tuple[str, ...]) -> str:
    match name:
        case "mul" | "mad" if types[-1] in _INT.split() and not words & {"lo", "hi", "wide"}:
            return f"{name}.{types[-1]} says neither .lo, .hi nor .wide"
        case "mad" if "sat" in words and types[-1] == "s32" and "hi" not in words:
            return "mad.sat.s32 is only there as .hi"
        case "shf" if not words & {"l", "r"}:
            return "shf says neither .l nor .r"
        case "ld" | "st" | "ldu" if "v4" in words and types[-1].endswith("64"):
            return f"{name}.v4 of 64-bit elements"
        case "set" if types[0] not in ("u16", "s16", "u32", "s32", "f16", "f16x2", "bf16", "bf16x2", "f32"):
            return f"set gives no .{types[0]}"
        case "set" if types[0].endswith("x2") and types[0] != types[1]:
            return f"set.{types[0]} compares no .{types[1]}"
        case "slct" if types[1] not in ("s32", "f32"):
            return f"slct by .{types[1]}"
        case "cvt.pack" if types not in (("u16", "s32"), ("s16", "s32"), ("u8", "s32", "b32"), ("s8", "s32", "b32")):
            return f"no code for cvt.pack.{'.'.join(types)}"
        case "cvt.pack" if "sat" not in words:
            return "cvt.pack without .sat"
        case "cvt":
            return _conversion_objection(words, *types)
    return ""


def _conversion_objection(words: frozenset[str], to: str, source: str) -> str:
    what = f"cvt.{to}.{source}"
    if source.endswith("x2") or (to[0] == "b" and to[1:].isdigit()) or (source[0] == "b" and source[1:].isdigit()):
        return f"no code for {what}"
    if to.endswith("x2") and source != "f32":
        return f"no code for {what}"
    whole = to[0] in "us" or source[0] in "us"
    if words & {"rn", "rz", "rm", "rp"} and (to[0] in "us" or (whole and source[0] not in "us")):
        return f"{what} rounds with .rni, .rzi, .rmi or .rpi"
    if to.endswith("x2") and not words & {"rn", "rz"}:
        return f"{what} rounds with .rn or .rz"
    if "ftz" in words and "f32" not in (to, source):
        return f"{what} has no .ftz"
    if "relu" in words and to not in _SMALL.split():
        return f"{what} has no .relu"
    if words & {"rni", "rzi", "rmi", "rpi", "rna"} and (source[0] in "us" or to.endswith("x2")):
        return f"{what} rounds to no integer"
    return ""
