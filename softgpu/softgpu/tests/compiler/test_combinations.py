"""Every family with every type and modifier: refused at load, or it compiles to calls of routines that exist."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator

import llvmlite.binding as llvm
import pytest

from softgpu import examination, target
from softgpu.codegen import kernel as codegen
from softgpu.codegen.family import Operation
from softgpu.codegen.values import SIZES
from softgpu.instructions import FAMILIES, decode
from softgpu.ptx.model import PtxError
from softgpu.ptx.types import SCALARS
from softgpu.tests.compiler.harness import HEADER
from tests.lanes import spread

WIDTHS = (16, 32, 64)
DECLARED = (
    "".join(f".reg .b{bits} %x{bits}, %y{bits}, %z{bits};\n" for bits in WIDTHS)
    + """.reg .b64 %a; .reg .pred %p, %q; .reg .b32 %i;
ld.param.u64 %a, [p];
mov.u32 %i, %tid.x;
cvt.u16.u32 %y16, %i;
mov.u32 %y32, %i;
cvt.u64.u32 %y64, %i;
setp.lt.u32 %q, %i, 7;
"""
)
USED = "".join(f"st.global.b{bits} [%a], %x{bits};\n" for bits in WIDTHS) + "@%p bra END;\nEND:\n"


def operands(name: str, words: tuple[str, ...], types: tuple[str, ...], count: int, op: Operation | str) -> str:
    """Registers of the widths that the opcode asks for."""
    bits = max(16, SCALARS[types[-1]].bits) if types and types[-1] != "pred" else 32
    x, y, z = f"%x{bits}", f"%y{bits}", f"%z{bits}"
    lanes = next((int(word[1]) for word in words if word in ("v2", "v4")), 1)
    value = x if lanes == 1 else "{" + ", ".join((x, y, z, x)[:lanes]) + "}"
    match name:
        case "ld" | "ldu":
            return f"{value}, [%a]"
        case "st":
            return f"[%a], {value}"
        case "atom":
            return ", ".join((x, "[%a]", y, z)[:count])
        case "red":
            return ", ".join(("[%a]", y, z)[:count])
        case "setp":
            return ", ".join(("%p", y, z, "%q")[:count])
        case "lop3":
            return f"{x}, {y}, {z}, {y}, 0x96"
        case "vote":
            return ", ".join(("%x32" if "ballot" in words else "%p", "%q", "%i")[:count])
        case "elect":
            return "%x32|%p, %i"
        case "match":
            return f"%x32, {y}, %i"
        case "activemask":
            return "%x32"
        case "bar.red":
            first = "%p" if types[-1:] == ("pred",) else x
            return f"{first}, 0, 64, %q" if count == 4 else f"{first}, 0, %q"
        case "bar" | "barrier":
            return ", ".join(("1", "64")[:count])
        case "nanosleep" | "pmevent":
            return "1"
        case "prefetch" | "prefetchu":
            return "[%a]"
    if isinstance(op, Operation) and op.family.kinds and op.family.result:
        kinds = [op.family.result(op), *op.family.kinds(op, count - 1)]
        pick = ("x", "y", "z", "y", "y")
        return ", ".join(
            ("%p" if not i else "%q") if kind == "i1" else f"%{pick[i]}{max(16, SIZES[kind])}"
            for i, kind in enumerate(kinds)
        )
    if types[-1:] == ("pred",):
        return ", ".join(("%p", "%q", "%p")[:count])
    first = f"%x{max(16, SCALARS[types[0]].bits)}" if types and types[0] != "pred" else x
    return ", ".join((first, y, z, y)[:count])


def combinations(name: str) -> Iterator[str]:
    """Lines of PTX: all types, pairs of types, and up to two modifiers in addition to one that is required."""
    family = FAMILIES[name]
    base = name.split(".", 1)[0]
    types: list[tuple[str, ...]] = [(one,) for one in SCALARS if one in family.types]
    pairs = itertools.product(sorted(family.types), repeat=2) if len(types) <= 12 or name == "cvt" else ()
    types = [*types, *pairs] or [()]
    others = sorted(family.modifiers - family.required)
    for needed in sorted(family.required) or [""]:
        for extra in (*[()], *((one,) for one in others), *itertools.combinations(others[:8], 2)):
            words = tuple(word for word in ("red" if name == "bar.red" else "", needed, *extra) if word)
            for named in types:
                if len(named) > 1 and len(extra) > 1:
                    continue
                for count in range(family.operands[0], family.operands[1] + 1):
                    opcode = ".".join((base, *words, *named))
                    yield f"{opcode} {operands(name, words, named, count, decode(opcode))};"


def refused_or_compiled(runner: ctypes.CDLL, line: str) -> str:
    """Return the error of the line; "" if there is none."""
    text = f"{HEADER}.visible .entry k(.param .u64 p) {{\n{DECLARED}{line}\n{USED}ret;\n}}"
    try:
        kernels = examination.examine(text)[1]
    except PtxError:
        return ""
    try:
        code = codegen.generate(kernels["k"], (64, 1, 1), target.host())
        llvm.parse_assembly(code.text).verify()
        missing = [name for name in code.imports if not hasattr(runner, name)]
    except Exception as error:  # noqa: BLE001 - all of them are findings
        return f"{line} {type(error).__name__}: {str(error).splitlines()[0]}"
    return f"{line} misses {missing}" if missing else ""


@pytest.mark.parametrize("name", spread(FAMILIES, len(FAMILIES) // 2))
def test_all_of_a_family(runner: ctypes.CDLL, name: str) -> None:
    lines = list(dict.fromkeys(combinations(name)))
    problems = [found for line in lines[:: max(1, len(lines) // 250)] if (found := refused_or_compiled(runner, line))]
    assert not problems, "\n".join(problems[:40])
