"""Gives each value of a register a name of its own where the value begins and ends in one block.

A register has one shape in a whole kernel. Text that people write uses a register again for another value: a pointer,
and then that pointer plus an offset. Under one name both values would have the weaker shape, and each access through
the register would go lane by lane.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from softgpu.analysis.blocks import Block, Step
from softgpu.ptx.model import Address, Not, Operand, Pair, Register, Vector


def split(blocks: list[Block], registers: dict[str, str]) -> set[str]:
    """Rename the values that a later step of their block overwrites. Return the new names, which no other block reads.

    registers: the type of each register; the new ones are added.
    """
    made: set[str] = set()
    for block in blocks:
        last = {name: place for place, step in enumerate(block.steps) if not step.inst.guard for name in step.writes}
        if sum(len(step.writes) for step in block.steps if not step.inst.guard) == len(last):
            continue  # nothing is overwritten, as in the text of a compiler
        names: dict[str, str] = {}
        for place, step in enumerate(block.steps):
            written: dict[str, str] = {}
            for name in step.writes:
                written[name] = names.get(name, name)
                if step.inst.guard is None:  # else the old value stays in some lanes, under the same name
                    written[name] = name
                    if place < last[name]:
                        written[name] = f"{name}'{len(made)}"
                        registers[written[name]] = registers[name]
                        made.add(written[name])
            block.steps[place] = _renamed(step, written, names)
            names |= written
    return made


def _renamed(step: Step, written: Mapping[str, str], names: Mapping[str, str]) -> Step:
    """Return a step with new names. written: those of the registers that it writes; names: of those that it reads."""
    writes = tuple(written[name] for name in step.writes)
    reads = tuple(names.get(name, name) for name in step.reads)
    if writes == step.writes and reads == step.reads:
        return step
    inst, results = step.inst, int(step.op.family.has_result)
    operands = tuple(
        _operand(operand, written if place < results else names) for place, operand in enumerate(inst.operands)
    )
    guard = None if inst.guard is None else _register(inst.guard, names)
    return Step(replace(inst, operands=operands, guard=guard), step.op, writes, reads)


def _register(register: Register, names: Mapping[str, str]) -> Register:
    return Register(names.get(register.name, register.name))


def _operand(operand: Operand, names: Mapping[str, str]) -> Operand:
    match operand:
        case Register():
            return _register(operand, names)
        case Address(Register() as base, offset):
            return Address(_register(base, names), offset)
        case Vector(items):
            return Vector(tuple(_operand(item, names) for item in items))
        case Pair(first, second):
            return Pair(_register(first, names), _register(second, names))
        case Not(register):
            return Not(_register(register, names))
    return operand
