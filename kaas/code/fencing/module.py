"""Confines the memory accesses of a PTX module to a window of addresses."""

from __future__ import annotations

import re

import msgspec

from kaas.code.fencing.functions import rewritten
from kaas.code.fencing.program import PtxFunction, PtxModule, header
from kaas.code.fencing.scopes import local_variables
from kaas.code.fencing.statements import (
    NAME,
    OWN,
    PtxInstruction,
    PtxReader,
    address,
    cleaned,
    instruction,
    is_address,
    refuse,
)
from kaas.code.fencing.variables import BITS, BlockLayout, Declared, VariableBlock, variables

_LINKING = re.compile(r"(?:\s*\.(?:visible|extern|weak|common)\b)*\s*")
_HEADERS = re.compile(r"\.version\s+\d+\.\d+|\.target\s+[\w]+(?:\s*,\s*[\w]+)*|\.address_size\s+\d+")
_FUNCTION = re.compile(r"\.(?:entry|func)\b")
_ALIAS = re.compile(rf"\.alias\s+({NAME})\s*,\s*({NAME})\s*;")
_NAMES = re.compile(NAME)
_STATEMENTS = 1 << 20
LEAST_WINDOW_BYTES = 4 << 30
"""The lower halves of addresses are not confined."""


class Fenced(msgspec.Struct, frozen=True):
    """PTX that reads and writes global memory within a window alone.

    Fields:
        ptx: the text. window: the name of its constant of three u64, which the host sets to `values` after loading,
            before the first launch. variables: the block of the module's variables.
        stacks: the functions whose stores may reach any place of their thread's stack, where addresses are saved,
            confined ones and those of callers. Other functions store to their variables there alone.
    """

    ptx: str
    window: str
    variables: VariableBlock
    stacks: tuple[str, ...]

    def values(self, base: int, size_bytes: int, block: int) -> bytes:
        """Return the values of the constant. base, size_bytes: of the window; block: the address of the variables.

        Raises:
            ValueError: the size is no power of two, or less than 4 GiB, or the window is not aligned to it, or the
                block does not lie in the window.
        """
        inside = base <= block and block + self.variables.size_bytes <= base + size_bytes
        if size_bytes < LEAST_WINDOW_BYTES or size_bytes & (size_bytes - 1) or base % size_bytes or not inside:
            raise ValueError(f"no window of {size_bytes} bytes at {base:#x}, with variables at {block:#x}")
        return b"".join(value.to_bytes(8, "little") for value in (size_bytes - 1, base, block))


class _Module:
    def __init__(self, ptx: str) -> None:
        self.reader = PtxReader(cleaned(ptx))
        self.program = PtxModule()
        self.heads: list[str] = []
        self.parts: list[str | PtxFunction | list[Declared]] = []
        self.declared: list[list[Declared]] = []
        self.count = 0

    def read(self) -> None:
        """Read the whole text."""
        reader = self.reader
        while reader.more():
            head = reader.take(_HEADERS)
            if head is not None:
                self.heads.append(_head(head[0], reader))
            elif (kept := reader.debug_directive()) is not None:
                self.parts.append(kept)
            elif alias := reader.take(_ALIAS):
                self.alias(alias)
            else:
                self.declaration()

    def alias(self, found: re.Match[str]) -> None:
        """Note another name of a function."""
        function = self.program.functions.get(found[2])
        if function is None or function.is_entry or found[1] in self.program.functions:
            self.reader.refuse(f"{found[1]} is to stand for {found[2]}")
        self.program.functions[found[1]] = function
        self.parts.append(found[0] + "\n")

    def declaration(self) -> None:
        """Read a function, or variables."""
        reader = self.reader
        line = reader.line
        linking = reader.take(_LINKING)
        assert linking is not None
        directives = " ".join(linking[0].split())
        if _FUNCTION.match(reader.text, reader.place):
            self.function(directives, reader.head(), line)
            return
        text = reader.to_semicolon()
        found = variables(text[:-1], line)
        if ".extern" in directives and found[0].space != "shared":
            refuse(line, text, "a variable of another module")
        for one in found:
            if one.name in self.program.variables or one.name in self.program.functions:
                refuse(line, text, f"{one.name} is there twice")
            self.program.variables[one.name] = one
        if found[0].space in ("global", "const"):
            self.declared.append(found)
            self.parts.append(found)
            found[0].text = f"{directives} {text}".strip()
        else:
            self.parts.append(f"{directives} {text}\n")

    def function(self, directives: str, head: str, line: int) -> None:
        """Read a function with or without a body."""
        function = header(head, line)
        function.header = f"{directives} {head}".strip()
        name, reader = function.name, self.reader
        if reader.text.startswith(";", reader.place):
            reader.place += 1
            self.program.without[name] = function
            self.parts.append(f"{function.header};\n")
            return
        if not reader.text.startswith("{", reader.place) or ".extern" in directives:
            reader.refuse(f"the body of {name} was expected")
        reader.place += 1
        if name in self.program.functions or name in self.program.variables:
            refuse(line, head, f"{name} is there twice")
        label = ""
        for statement in reader.body():
            self.count += 1
            if self.count > _STATEMENTS:
                refuse(statement.line, statement.text, f"more than {_STATEMENTS} statements")
            if statement.kind == "table":
                function.note_table(label, statement)
            if statement.kind == "label":
                label = statement.text
                function.labels.add(label)
            one = instruction(statement) if statement.kind == "instruction" else None
            function.body.append((statement, one))
            if statement.kind == "declaration" and re.match(r"\.(?:global|const)\b", statement.text):
                made = local_variables(statement)
                self.program.locals[id(statement)] = made
        self.program.functions[name] = function
        self.parts.append(function)

    def decide(self) -> BlockLayout:
        """Decide which variables move to the block, and which functions have numbers."""
        program = self.program
        functions = list(dict.fromkeys(program.functions.values()))
        instructions = [one for function in functions for _, one in function.body if one is not None]
        groups = [*self.declared, *program.locals.values()]
        pointed = {name for group in groups for variable in group for _, name, _ in variable.pointers}
        stays = self._constants(instructions, pointed)
        moves = (one for one in instructions if one.words[0] == "mov" and one.operands)
        taken = pointed.union(*(_NAMES.findall(one.operands[-1]) for one in moves))
        by_address = {program.functions[name] for name in taken if name in program.functions}
        program.number_functions([one for one in functions if one in by_address and not one.is_entry])
        numbers = {name: number for name in program.functions if (number := program.number(name)) is not None}
        layout = BlockLayout(numbers)
        for group in groups:
            if not all(stays.get(variable.name) is variable for variable in group):
                for variable in group:
                    layout.add(variable)
        layout.place()
        program.names = {one.name for one in layout.moved} | program.functions.keys() | program.without.keys()
        program.spaces = _spaces(self.heads, self.reader.text)
        return layout

    def _constants(self, instructions: list[PtxInstruction], pointed: set[str]) -> dict[str, Declared]:
        """Return the .const variables that the instructions read at constant places only, within their bounds.

        These stay constants. The others, whose addresses may be any, become global memory.
        """
        constants = [one for group in self.declared for one in group if one.space == "const"]
        stays = {one.name: one for one in constants if not one.pointers and one.name not in pointed}
        for one in instructions if stays else ():
            names = _NAMES.findall(one.text)
            for name in stays.keys() & {*names}:
                if names.count(name) > 1 or not _within(one, stays[name]):
                    del stays[name]
        return stays

    def write(self) -> str:
        """Return the confined text."""
        body = []
        for part in self.parts:
            match part:
                case str():
                    body.append(part)
                case PtxFunction():
                    body.append(f"{part.header}\n{rewritten(self.program, part)}\n")
                case list() if not part[0].moved:
                    body.append(f"{part[0].text}\n")
        texts = (_declared(name, text) for text, name in self.program.texts.items())
        window = f".visible .const .align 8 .u64 {OWN}[3];"
        return "\n".join([*self.heads, "", window, *texts, "", *body])


def _head(text: str, reader: PtxReader) -> str:
    """Return a directive of the module's version or target, without the words that are about debugging."""
    words = text.replace(",", " ").split()
    if words[0] == ".address_size" and words[1] != "64":
        reader.refuse("addresses that do not have 64 bits")
    if words[0] == ".target":
        return f".target {', '.join(word for word in words[1:] if word != 'debug')}"
    return " ".join(words)


def _spaces(heads: list[str], text: str) -> tuple[str, ...]:
    """Return the state spaces that generic addresses of the module's kernels may have, other than global memory.

    There are no valid addresses in spaces that the text does not name. Memory of other blocks is of sm_90 and later.
    """
    numbers = [int(number[:3]) for head in heads for number in re.findall(r"\bsm_(\d+)", head)]
    of_clusters = min(numbers, default=0) >= 90 and ("shared::cluster" in text or "mapa" in text)
    shared = "shared::cluster" if of_clusters else "shared"
    is_named = ".shared" in text or of_clusters, re.search(r"\.local\b|\balloca\b|cvta\.param", text)
    return tuple(space for space, named in zip((shared, "local"), is_named, strict=True) if named)


def _within(one: PtxInstruction, variable: Declared) -> bool:
    """Return True if the instruction loads from the constant variable, and from no other place."""
    if one.words[0] != "ld" or "const" not in one.words or len(one.operands) < 2 or not is_address(one.operands[1]):
        return False
    base, offset = address(one, one.operands[1])
    lanes = next((int(word[1]) for word in one.words if word in ("v2", "v4", "v8")), 1)
    size = BITS.get(one.words[-1], 1 << 40) // 8 * lanes
    return base == variable.name and 0 <= offset <= variable.size - size


def _declared(name: str, text: bytes) -> str:
    """Return the declaration of a constant string."""
    content = ", ".join(str(byte) for byte in (*text, 0))
    return f".global .align 1 .b8 {name}[{len(text) + 1}] = {{{content}}};"


def fence(ptx: str) -> Fenced:
    """Return PTX that reads and writes global memory within a window of addresses alone.

    The window is an aligned range of 2^k bytes, k >= 32, with more than 2 GiB of unmapped addresses on each side.
    Buffers, constants and the block of variables lie in the window. Shared memory, local memory and parameters stay as
    they are.

    Raises:
        CannotFence: the text is no PTX, or has an instruction that the table does not know, or refuses.
    """
    module = _Module(ptx)
    module.read()
    if not {".version", ".target", ".address_size"} <= {head.split()[0] for head in module.heads}:
        refuse(1, "", "no .version, .target or .address_size: this is not PTX")
    layout = module.decide()
    text = module.write()
    block = layout.block(module.program.variables | _locals(module.program))
    return Fenced(text, OWN, block, tuple(sorted(module.program.stacks)))


def _locals(program: PtxModule) -> dict[str, Declared]:
    """Return the global variables that functions declare."""
    return {one.name: one for made in program.locals.values() for one in made}
