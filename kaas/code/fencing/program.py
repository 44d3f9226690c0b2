"""A PTX module as far as its confinement needs it: functions with their statements, variables, and their names."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kaas.code.fencing.statements import INTEGER, NAME, PtxInstruction, Statement, integer, refuse
from kaas.code.fencing.variables import BITS, Declared

_PARAMETER = re.compile(
    rf"\s*\.(param|reg)\s*(?:\.align\s+({INTEGER})\s*)?\.(\w+)\s*(\.ptr\b(?:\s*\.\w+(?:\s+{INTEGER})?)*)?"
    rf"\s+({NAME})\s*(\[\s*({INTEGER})?\s*\])?\s*$"
)
_HEADER = re.compile(rf"\s*\.(entry|func)\s*(?:\(([^()]*)\)\s*)?({NAME})\s*(?:\(([^()]*)\))?([\w.,\s]*)$", re.S)
_PROTOTYPE = re.compile(r"\.callprototype\s*(?:\(([^()]*)\)\s*)?_\s*(?:\(([^()]*)\))?[\s.\w]*;")
_TARGETS = re.compile(rf"\.calltargets\s+({NAME}(?:\s*,\s*{NAME})*)\s*;")
_BRANCHES = re.compile(rf"\.branchtargets\s+({NAME}(?:\s*,\s*{NAME})*)\s*;")


@dataclass(frozen=True, slots=True)
class Passed:
    """A parameter or result of a function. size, align: in bytes."""

    name: str
    kind: str
    size: int
    align: int
    is_register: bool


Shape = tuple[tuple[tuple[int, int, bool], ...], tuple[tuple[int, int, bool], ...]]
"""Sizes and alignments of a function's results and parameters, and which are registers."""


@dataclass(slots=True, eq=False)
class PtxFunction:
    """A function. header: its text up to the body. tables: the number of targets of its branch tables.

    prototypes: label -> the shape of the functions that an indirect call may reach, or their names.
    """

    name: str
    line: int
    header: str
    is_entry: bool
    results: tuple[Passed, ...]
    parameters: tuple[Passed, ...]
    body: list[tuple[Statement, PtxInstruction | None]] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    tables: dict[str, int] = field(default_factory=dict)
    prototypes: dict[str, Shape | frozenset[str]] = field(default_factory=dict)

    @property
    def shape(self) -> Shape:
        """The sizes of results and parameters."""
        return _shape(self.results), _shape(self.parameters)

    def note_table(self, label: str, statement: Statement) -> None:
        """Note a table of labels, functions or types, and its name."""
        if label in self.tables or label in self.prototypes:
            refuse(statement.line, statement.text, f"two tables of the name {label}")
        text, line = " ".join(statement.text.split()), statement.line
        if found := _BRANCHES.match(text):
            self.tables[label] = found[1].count(",") + 1
        elif found := _TARGETS.match(text):
            self.prototypes[label] = frozenset(name.strip() for name in found[1].split(","))
        elif found := _PROTOTYPE.match(text):
            self.prototypes[label] = _shape(passed(found[1] or "", line)), _shape(passed(found[2] or "", line))
        else:
            refuse(line, text, "a table that is not understood")


@dataclass(slots=True)
class PtxModule:
    """A module.

    Fields:
        functions: those with a body, also by their aliases. without: the others that are declared.
        numbers: what stands for the address of a function, by name. by_shape: these names.
        names: variables that move, and functions. locals: the global variables of functions, by statement.
        texts: the constant strings that stay outside of the block, with their names.
        spaces: the state spaces that generic addresses may have, other than global memory.
        stacks: functions that may store anywhere on a thread's stack.
        expanded: functions at indirect calls, each counted at each call that may reach it.
    """

    variables: dict[str, Declared] = field(default_factory=dict)
    functions: dict[str, PtxFunction] = field(default_factory=dict)
    without: dict[str, PtxFunction] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    by_shape: dict[Shape, list[str]] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    locals: dict[int, list[Declared]] = field(default_factory=dict)
    texts: dict[bytes, str] = field(default_factory=dict)
    spaces: tuple[str, ...] = ()
    stacks: set[str] = field(default_factory=set)
    expanded: int = 0

    def is_declared(self, name: str, results: str, parameters: str) -> bool:
        """Return True for a function without a body of these types, separated by blanks: "b32", "b64 b64"."""
        function = self.without.get(name)
        return function is not None and all(
            [(one.kind, one.size, one.is_register) for one in passed]
            == [(kind, BITS[kind] // 8, False) for kind in kinds]
            for passed, kinds in ((function.results, results.split()), (function.parameters, parameters.split()))
        )

    def number_functions(self, functions: list[PtxFunction]) -> None:
        """Give numbers to the functions whose address is taken."""
        for number, function in enumerate(functions, 1):
            self.numbers[function.name] = number
            self.by_shape.setdefault(function.shape, []).append(function.name)

    def number(self, name: str) -> int | None:
        """Return the number that stands for the address of a function; None if it has no body, or is a kernel."""
        function = self.functions.get(name)
        return self.numbers.get(function.name) if function is not None else None


def header(text: str, line: int) -> PtxFunction:
    """Return a function from its text up to the body, linking directives left out."""
    found = _HEADER.match(" ".join(text.split()))
    if found is None:
        refuse(line, text, "a function's header that is not understood")
    kind, results, name, parameters, _ = found.groups()
    return PtxFunction(name, line, text, kind == "entry", passed(results or "", line), passed(parameters or "", line))


def passed(text: str, line: int) -> tuple[Passed, ...]:
    """Return the parameters of a list."""
    out = []
    for part in text.split(",") if text.strip() else []:
        found = _PARAMETER.match(part)
        if found is None or found[3] not in BITS:
            refuse(line, part, "a parameter that is not understood")
        if found[4] and re.search(r"\.(?:shared|local|const)\b", found[4]):
            refuse(line, part, "a parameter that points to another state space than global memory")
        width = BITS[found[3]] // 8
        align = max(1, integer(found[2], line, part) if found[2] else width)
        size = width * integer(found[7], line, part) if found[7] else width
        if align & (align - 1) or align > 128 or size > 1 << 16:
            refuse(line, part, "a parameter of an unknown form")
        out.append(Passed(found[5], found[3], size, align, found[1] == "reg"))
    return tuple(out)


def _shape(parameters: tuple[Passed, ...]) -> tuple[tuple[int, int, bool], ...]:
    return tuple((one.size, one.align, one.is_register) for one in parameters)
