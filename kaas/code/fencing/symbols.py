"""Confines the addresses of variables, functions and parameters where they become values of registers."""

from __future__ import annotations

import re

from kaas.code.fencing import table
from kaas.code.fencing.body import Body, KnownValue, no_moved
from kaas.code.fencing.scopes import Declaration
from kaas.code.fencing.statements import INTEGER, NAME, OWN, PtxInstruction, address
from kaas.code.fencing.variables import Declared

_SOURCE = re.compile(rf"({NAME})\s*(?:([+-])\s*({INTEGER}))?$")
_COPY = "copy"
"""In place of a state space: the copy of a parameter in local memory."""
_WIDE = ("u64", "s64", "b64")


def move(body: Body, one: PtxInstruction) -> KnownValue | None:
    """Put the address of a variable or function in a register, or move another value."""
    if len(one.operands) != 2:
        one.refuse("no move of one operand")
    target, source = one.operands
    symbol = _SOURCE.match(source)
    found = body.scopes.find(symbol[1]) if symbol is not None else None
    if symbol is not None and found is None and symbol[1] in body.program.functions:
        number = body.program.number(symbol[1])
        if number is None or symbol[2] or one.words[-1] not in _WIDE:
            one.refuse(f"the address of the function {symbol[1]}")
        body.fences.emit(one.written([target, str(number)]))
    elif isinstance(found, Declared) and found.moved:
        return _address_of(body, one, target, found, symbol)
    else:
        no_moved(body, one, one.operands)
        body.fences.emit(one.written(one.operands))
        return _same_facts(body, found)
    return None


def _address_of(
    body: Body, one: PtxInstruction, target: str, variable: Declared, symbol: re.Match[str] | None
) -> KnownValue:
    """Write the address of a variable in the block to a register."""
    if one.words[-1] not in _WIDE:
        one.refuse(f"the address of {variable.name} in less than 64 bits")
    offset = 0
    if symbol is not None and symbol[2]:
        _, offset = address(one, f"[{symbol[0]}]")
    body.fences.emit(one.written([target, body.fences.block(), str(variable.offset + offset)], "add.s64"))
    return KnownValue(variable, is_global=True)


def _same_facts(body: Body, source: Declaration | Declared | None) -> KnownValue | None:
    """Return the facts of a register that gets the value of another one, or the address of a variable."""
    match source:
        case Declaration():
            return KnownValue(body.fences.symbols.get(source), is_global=source in body.fences.known_global)
        case Declared(space="param"):
            return KnownValue(source, is_global=False)
    return None


def convert(body: Body, one: PtxInstruction) -> KnownValue | None:
    """Put the generic address of a variable in a register, or convert another address."""
    spaces = [word for word in one.words if word in table.SPACES]
    if len(spaces) != 1 or len(one.operands) != 2 or one.words[-1] != "u64":
        one.refuse("no conversion of an address of 64 bits")
    target, source = one.operands
    symbol = _SOURCE.match(source)
    found = body.scopes.find(symbol[1]) if symbol is not None else None
    space = spaces[0]
    if isinstance(found, Declared) and found.moved:
        if "to" in one.words or space not in ("global", "const"):
            one.refuse(f"{source} is not in .{space}")
        return _address_of(body, one, target, found, symbol)
    if space.startswith("param"):
        if symbol is not None and symbol[2]:
            one.refuse("the generic address of a part of a parameter")
        return _copied_parameter(body, one, target, found)
    if space == "const":
        body.fences.emit(one.written(one.operands, "mov.b64"))
        return KnownValue(None, is_global=True)
    no_moved(body, one, one.operands)
    body.fences.emit(one.written(one.operands))
    variable = body.fences.symbols.get(found) if isinstance(found, Declaration) else None
    return KnownValue(variable, is_global=True) if space == "global" else None


def _copied_parameter(
    body: Body, one: PtxInstruction, target: str, source: Declaration | Declared | None
) -> KnownValue:
    """Write the address of a copy of a kernel's parameter in local memory to a register.

    Parameters lie outside of the window, among those of other kernels.
    """
    variable = body.fences.symbols.get(source) if isinstance(source, Declaration) else source
    if isinstance(source, Declaration) and variable is not None and variable.space == _COPY:
        body.fences.emit(one.written([target, source.name], "mov.b64"))  # NVRTC converts addresses twice
        return KnownValue(variable, is_global=False)
    parameters = {parameter.name for parameter in body.function.parameters}
    if not isinstance(variable, Declared) or not body.function.is_entry or variable.name not in parameters:
        one.refuse("the generic address of a parameter that is not known here")
    copy = body.copies.setdefault(variable.name, f"{OWN}_parameter_{len(body.copies)}")
    if isinstance(source, Declaration):
        start, within = body.fences.fresh("f"), body.fences.fresh("f")
        body.fences.emit(f"cvta.local.u64 {start}, {copy};")
        body.fences.emit(f"mov.b64 {within}, {variable.name};")
        body.fences.emit(f"sub.s64 {within}, {source.name}, {within};")
        body.fences.emit(one.written([target, start, within], "add.s64"))
    else:
        body.fences.emit(one.written([target, copy], "cvta.local.u64"))
    return KnownValue(Declared(copy, _COPY, variable.size, variable.align, one.line, ""), is_global=False)


def copied(body: Body) -> str:
    """Return the text that copies parameters to local memory."""
    sizes = {parameter.name: parameter for parameter in body.function.parameters}
    out = ["\t.reg .b64 %kaas_copied;\n"] if body.copies else []
    for name, copy in body.copies.items():
        one = sizes[name]
        out.append(f"\t.local .align {max(8, one.align)} .b8 {copy}[{one.size}];\n")
        step = min(8, one.align)
        for offset in range(0, one.size, step):
            kind = "b8" if one.size - offset < step else f"b{8 * step}"
            places = range(offset, one.size) if kind == "b8" else (offset,)
            for place in places:
                out.append(f"\tld.param.{kind} %kaas_copied, [{name}+{place}];\n")
                out.append(f"\tst.local.{kind} [{copy}+{place}], %kaas_copied;\n")
    return "".join(out)
