"""The state of one function while its instructions are confined."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kaas.code.fencing.fences import Fences, LocalFrame
from kaas.code.fencing.program import PtxFunction, PtxModule
from kaas.code.fencing.scopes import Declaration, Scopes
from kaas.code.fencing.statements import INTEGER, NAME, PtxInstruction, integer
from kaas.code.fencing.variables import Declared

NAMES = re.compile(NAME)
_NUMBER = re.compile(rf"{INTEGER}$")


@dataclass(frozen=True, slots=True)
class KnownValue:
    """A register's new value: the address of a variable if one is given, and a global address if is_global."""

    variable: Declared | None
    is_global: bool


@dataclass(frozen=True, slots=True)
class ParameterStore:
    """An st.param to a call variable of the basic block. place: its line in the function's output.

    source: its operand; variable: the variable whose address the operand is, if that is known.
    """

    place: int
    one: PtxInstruction
    source: str
    variable: Declared | None


@dataclass(slots=True)
class Body:
    """A function while it is rewritten.

    Fields:
        stores: those to parameters of calls, in the basic block. copies: those of parameters in local memory, by the
            name of the parameter. listed: the functions of a list that calls may reach, by its label. local: the
            function's one variable in local memory; "" if it has none, None if it has several, or takes memory
            without a name.
    """

    program: PtxModule
    function: PtxFunction
    scopes: Scopes
    fences: Fences
    stores: dict[Declared, ParameterStore] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)
    listed: dict[str, list[str]] = field(default_factory=dict)
    local: str | None = None

    def frame(self, one: PtxInstruction, width: int) -> LocalFrame | bool:
        """Return the frame in which a store of these bytes must stay; True, with a note, if it may be anywhere.

        False: it has no place in the function's local memory.

        A function that is called may store to the memory of its callers.
        """
        if self.local == "" and self.function.is_entry:
            return False
        found = self.scopes.find(self.local) if self.local else None
        is_generic = "local" not in one.words
        if not isinstance(found, Declared) or found.space != "local" or (is_generic and not self.function.is_entry):
            self.program.stacks.add(self.function.name)
            return True
        return found.size >= width and LocalFrame(found.name, found.size - width)

    def find(self, one: PtxInstruction, base: str) -> Declaration | Declared | str:
        """Return the register, variable or number that is the base of an address."""
        if _NUMBER.match(base):
            return str(number(one, base))
        found = self.scopes.find(base)
        if found is None:
            one.refuse(f"{base} is neither a register nor a variable")
        if isinstance(found, Declaration) and found.bits not in (32, 64):
            one.refuse(f"the address {base} has neither 32 nor 64 bits")
        return found

    def note(self, one: PtxInstruction, facts: KnownValue) -> None:
        """Note the facts of the register that an instruction writes."""
        register = self.scopes.find(one.operands[0])
        if isinstance(register, Declaration):
            if facts.variable is not None and not one.guard:
                self.fences.symbols[register] = facts.variable
            if facts.is_global:
                self.fences.known_global.add(register)


def number(one: PtxInstruction, digits: str) -> int:
    """Return the value of an operand without a sign."""
    return integer(digits, one.line, one.text)


def no_moved(body: Body, one: PtxInstruction, operands: list[str]) -> None:
    """Refuse operands that name variables of the block, or functions."""
    for name in NAMES.findall(" ".join(operands)):
        if name in body.program.names:
            found = body.scopes.find(name)
            if found is None or (isinstance(found, Declared) and found.moved):
                one.refuse(f"{one.opcode} of the address of {name}")


def bounded(body: Body, one: PtxInstruction, operand: str, most: int) -> str:
    """Return a size or stride that is at most so large."""
    if _NUMBER.match(operand):
        if number(one, operand) > most:
            one.refuse(f"{operand} is more than {most}")
        return operand
    found = body.scopes.find(operand)
    if not isinstance(found, Declaration) or found.bits != 32:
        one.refuse(f"{operand} is no register of 32 bits")
    return body.fences.at_most(operand, most)
