"""An independent reader of confined PTX, by softgpu's parser: no address that is not confined reaches memory."""

from __future__ import annotations

import re

from softgpu.ptx.model import Address, Instruction, Operand, Register, Symbol, Vector
from softgpu.ptx.parser import parse

SPACE = re.compile(r"\.(global|const|shared|local|param)\b")


def bounded(opcode: str, place: int) -> bool:
    """Return True if the address at this place, from 0, of an instruction is in memory that hardware bounds."""
    spaces = SPACE.findall(opcode)
    if opcode.startswith("cp."):  # of the target, of the source; a third address is of a barrier in shared memory
        return place >= len(spaces) or spaces[place] == "shared"
    return bool(spaces) and spaces[0] in ("shared", "local", "param")


def addresses(operands: tuple[Operand, ...]) -> list[Address]:
    """Return the operands in brackets."""
    inner = [one for operand in operands if isinstance(operand, Vector) for one in operand.items]
    return [one for one in (*operands, *inner) if isinstance(one, Address)]


def written(one: Instruction, confined: set[str]) -> None:
    """Note which of the rewriter's registers hold confined addresses, after an instruction.

    A half is `high` after the mask, and `inside` after the base.
    """
    match one.opcode, *one.operands:
        case "mov.b64", Vector((Register(low), Register(high))), Register(_):
            confined -= {low, high, f"{high} masked", f"{high} inside"}
        case "and.b32", Register(high), Register(same), Register("%kaas_mask") if high == same:
            confined.add(f"{high} masked")
        case "or.b32", Register(high), Register(same), Register("%kaas_base") if high == same:
            confined.update({f"{high} inside"} if f"{high} masked" in confined else set())
        case "mov.b64", Register(target), Vector((Register(_), Register(high))) if f"{high} inside" in confined:
            confined.add(target)
        case "selp.b64", Register(target), Register(_), Register(inside), Register(_) if inside in confined:
            confined.add(target)
        case _, Register(target), *_:
            confined -= {target, f"{target} masked", f"{target} inside"}


def unconfined(ptx: str) -> list[str]:
    """Return the instructions of confined PTX that reach memory by an address of the tenant's choice."""
    module = parse(ptx)
    found = []
    for function in module.functions.values():
        constants = {name for name, variable in module.variables.items() if variable.space == "const"}
        confined: set[str] = set()
        for one in function.body:
            if not isinstance(one, Instruction):
                confined.clear()
                continue
            written(one, confined)
            for place, address in enumerate(addresses(one.operands)):
                base = address.base
                is_bounded = bounded(one.opcode, place)
                in_constants = isinstance(base, Symbol) and base.name in constants and one.opcode.startswith("ld.const")
                trusted = isinstance(base, Register) and (base.name in confined or base.name == "%kaas_block")
                if not (is_bounded or in_constants or trusted):
                    found.append(one.text)
    return found
