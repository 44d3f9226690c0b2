"""The names of a function: registers and variables, by scope."""

from __future__ import annotations

import re
from typing import NamedTuple

from kaas.code.fencing.statements import NAME, Statement, refuse
from kaas.code.fencing.variables import BITS, Declared, variables

_REGISTERS = re.compile(r"\.reg\s*(?:\.v[248]\s*)?\.(\w+)\s+([^;]*)$", re.S)
_COUNTED = re.compile(rf"\s*({NAME})\s*(?:<\s*(\d+)\s*>)?\s*$")
_DIGITS = 9
"""Of the number of a register in a range, at most."""


class Declaration(NamedTuple):
    """A register. scope: the number of its scope in the function; bits: of its type, 0 for one that is no integer."""

    name: str
    scope: int
    bits: int


class Scopes:
    """The open scopes of a function, above the variables of its module."""

    def __init__(self, module: dict[str, Declared]) -> None:
        self._stack: list[tuple[int, dict[str, Declaration | Declared], dict[str, tuple[int, int]]]] = [(0, {}, {})]
        self._module = module
        self._opened = 0
        self._found: dict[str, Declaration | Declared | None] = {}

    def open(self) -> None:
        """Open a scope."""
        self._opened += 1
        self._stack.append((self._opened, {}, {}))

    def close(self) -> None:
        """Close the innermost scope."""
        self._stack.pop()
        self._found.clear()

    def declare(self, variable: Declared) -> None:
        """Add a variable to the innermost scope."""
        self._stack[-1][1][variable.name] = variable
        self._found.clear()

    def declare_registers(self, statement: Statement) -> None:
        """Add the registers of a declaration to the innermost scope."""
        found = _REGISTERS.match(" ".join(statement.text[:-1].split()))
        if found is None or found[1] not in BITS:
            refuse(statement.line, statement.text, "a declaration of registers that is not understood")
        bits = BITS[found[1]] if found[1][0] in "bus" and "x" not in found[1] else 0
        scope, names, ranges = self._stack[-1]
        for part in found[2].split(","):
            counted = _COUNTED.match(part)
            if counted is None:
                refuse(statement.line, statement.text, "a declaration of registers that is not understood")
            if counted[2] is None:
                names[counted[1]] = Declaration(counted[1], scope, bits)
            else:
                ranges[counted[1]] = (int(counted[2][:_DIGITS]), bits)
        self._found.clear()

    def declare_register(self, name: str, kind: str) -> None:
        """Add one register, a parameter of a function."""
        self._stack[-1][1][name] = Declaration(name, self._stack[-1][0], BITS.get(kind, 0))

    def find(self, name: str) -> Declaration | Declared | None:
        """Return what a name stands for; None if it is neither a register nor a variable."""
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def _find(self, name: str) -> Declaration | Declared | None:
        digits = len(name) - len(name.rstrip("0123456789"))
        for scope, names, ranges in reversed(self._stack):
            if name in names:
                return names[name]
            for length in range(1, min(digits, _DIGITS) + 1) if ranges else ():
                count, bits = ranges.get(name[:-length], (0, 0))
                if int(name[-length:]) < count and (length == 1 or name[-length] != "0"):
                    return Declaration(name, scope, bits)
        return self._module.get(name)


def local_variables(statement: Statement) -> list[Declared]:
    """Return the variables that a function declares."""
    return variables(statement.text[:-1], statement.line)
