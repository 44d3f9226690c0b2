"""Reads PTX text into functions, variables and instructions, each with its line; knows nothing of what they do."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field, replace

from kaas.softgpu.ptx_types import SCALARS


class PtxError(Exception):
    """PTX that cannot be read (`line` counts from 1; 0: no line to blame)."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(line, message)
        self.line, self.message = line, message

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class Unsupported(PtxError):
    """Well-formed PTX that this compiler has no code for."""


@dataclass(frozen=True, slots=True)
class Register:
    name: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """An integer, or the bits of a floating-point number `float_bits` wide."""

    value: int
    float_bits: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, function or label by name, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """{a, b, ...}; also the parenthesised lists of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """a|b, the two destinations of setp and shfl."""

    first: Register
    second: Register


@dataclass(frozen=True, slots=True)
class Not:
    """!%p as a source."""

    register: Register


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Not
SINK = Register("_")


@dataclass(frozen=True, slots=True)
class Instruction:
    line: int
    opcode: str
    operands: tuple[Operand, ...]
    text: str
    guard: Register | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    line: int
    name: str
    targets: tuple[str, ...] = ()  # of a .branchtargets table


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable in one of the state spaces; `data` is shorter than `size` where the rest is zero."""

    name: str
    space: str
    size: int
    align: int
    line: int
    data: bytes = b""
    pointers: tuple[tuple[int, str, int], ...] = ()  # (byte offset in data, symbol, addend)
    external: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    offset: int
    size: int
    in_register: bool = False


@dataclass(slots=True)
class Function:
    name: str
    line: int
    is_entry: bool
    parameters: tuple[Parameter, ...] = ()
    results: tuple[Parameter, ...] = ()
    has_body: bool = False
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)
    max_threads: int = 1024


@dataclass(slots=True)
class Module:
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)

    @property
    def entries(self) -> list[Function]:
        return [f for f in self.functions.values() if f.is_entry]


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
_BLANK = re.compile(r"\s+")
_LABEL = re.compile(r"([A-Za-z_$%][\w$]*)\s*:(?!:)")
_STATEMENT = re.compile(r"[^;]*;")
_LINE_DIRECTIVE = re.compile(r"\.(?:loc|file|version|target|address_size|pragma)\b[^\n]*")
_SECTION = re.compile(r"\.section\b[^{]*\{[^}]*\}")
_HEAD = re.compile(r"[^;{=]*")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,\s{\[(][^,]*")
_ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\s*\w+)|(-\s*\w+))?\s*\]$")
_SYMBOL = re.compile(r"([A-Za-z_$%][\w$]*)(?:\s*\+\s*(-?\w+))?$")
_INSTRUCTION = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
_NUMBER = re.compile(r"(-?)\s*(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$")
_VARIABLE = re.compile(r"\.(global|const|shared|local|param)\b((?:\s*\.\w+(?:\s+\d+(?=\s))?)*)\s+(.*)$", re.S)
_DECLARATOR = re.compile(r"([\w$%]+)\s*((?:\[\s*\w*\s*\]\s*)*)(?:=\s*(.*))?$", re.S)
_FUNCTION = re.compile(r"\.(entry|func)\s*(?:\(([^)]*)\)\s*)?([\w$]+)\s*(?:\(([^)]*)\))?(.*)$", re.S)


def parse(text: str) -> Module:
    """The module in `text`. Raises PtxError for text that is no PTX, Unsupported for directives without code here."""
    if "\0" in text:
        text = text[: text.index("\0")]
    if not re.search(r"^\s*\.version\s+\d+\.\d+", text, re.M):
        raise PtxError(1, "no .version directive: this is not PTX")
    return _Parser(_COMMENT.sub(_keep_lines, text)).module()


def _keep_lines(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n") or " "


def number(text: str, line: int) -> Immediate:
    """An integer or floating-point constant of PTX."""
    found = _NUMBER.match(text)
    if found:
        digits = found[2]
        octal = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
        value = int(digits, 8 if octal else 0)
        return Immediate(-value if found[1] else value)
    try:
        if text[:2] in ("0f", "0F") and len(text) == 10:
            return Immediate(int(text[2:], 16), 32)
        if text[:2] in ("0d", "0D") and len(text) == 18:
            return Immediate(int(text[2:], 16), 64)
        return Immediate(int.from_bytes(struct.pack("<d", float(text)), "little"), 64)
    except ValueError:
        raise PtxError(line, f"not an operand: {text!r}") from None


class _Parser:
    def __init__(self, text: str) -> None:
        self.text, self.position, self.line = text, 0, 1
        self.counted = 0  # text before this position is in `line`

    def at(self, position: int) -> int:
        self.line += self.text.count("\n", self.counted, position)
        self.counted = position
        return self.line

    def skip_blank(self) -> bool:
        found = _BLANK.match(self.text, self.position)
        if found:
            self.position = found.end()
        return self.position < len(self.text)

    def take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.position)
        if not found:
            return None
        self.position = found.end()
        return found[0]

    def module(self) -> Module:
        module = Module()
        while self.skip_blank():
            line = self.at(self.position)
            if self.take(_LINE_DIRECTIVE) is not None or self.take(_SECTION) is not None:
                continue
            if self.text[self.position] != ".":
                raise PtxError(line, f"a directive was expected, not {self.text[self.position:].split(chr(10))[0][:60]!r}")
            head = self.take(_HEAD) or ""
            if re.search(r"\.(entry|func)\b", head):
                self.function(module, head, line)
            else:
                self.module_variable(module, head, line)
        return module

    def module_variable(self, module: Module, head: str, line: int) -> None:
        rest = self.take(_STATEMENT)
        if rest is None:
            raise PtxError(line, "the text ends inside a directive")
        text = (head + rest[:-1]).strip()
        external = text.startswith(".extern")
        plain = re.sub(r"^(?:\.(?:visible|extern|weak|common)\s+)*", "", text)
        for variable in variables(plain, line, external):
            module.variables[variable.name] = variable

    def function(self, module: Module, head: str, line: int) -> None:
        found = _FUNCTION.search(head)
        if not found:
            raise PtxError(line, f"not a function header: {' '.join(head.split())[:80]!r}")
        function = Function(found[3], line, found[1] == "entry")
        function.parameters = parameters(found[4] or "", line)
        function.results = parameters(found[2] or "", line)
        for directive in re.finditer(r"\.(maxntid|reqntid)\s+([\d,\s]+)", found[5]):
            threads = 1
            for extent in directive[2].split(","):
                threads *= int(extent) if extent.strip() else 1
            function.max_threads = min(1024, threads)
        if self.text.startswith(";", self.position):
            self.position += 1
            module.functions.setdefault(function.name, function)
            return
        if not self.text.startswith("{", self.position):
            raise PtxError(self.at(self.position), f"the body of {function.name} was expected")
        self.position += 1
        function.has_body = True
        self.body(function)
        module.functions[function.name] = function

    def body(self, function: Function) -> None:
        scopes: list[dict[str, Operand]] = [{}]
        for parameter in (*function.parameters, *function.results):
            if parameter.in_register:
                scopes[0][parameter.name] = Register(parameter.name)
                function.registers[parameter.name] = parameter.type
        cache: dict[str, Operand] = {}
        opened = 0
        while scopes:
            if not self.skip_blank():
                raise PtxError(self.at(len(self.text)), f"the text ends inside {function.name}")
            line = self.at(self.position)
            character = self.text[self.position]
            if character in "{}":
                self.position += 1
                cache = {}
                if character == "{":
                    opened += 1
                    scopes.append({})
                else:
                    scopes.pop()
            elif self.take(_LINE_DIRECTIVE) is None:
                self.statement(function, scopes, opened, cache, line)

    def statement(
        self, function: Function, scopes: list[dict[str, Operand]], opened: int, cache: dict[str, Operand], line: int
    ) -> None:
        label = _LABEL.match(self.text, self.position)
        if label:
            self.position = label.end()
            table = re.compile(r"\s*\.branchtargets\s+([^;]*);").match(self.text, self.position)
            if table:
                self.position = table.end()
            names = tuple(name.strip() for name in table[1].split(",")) if table else ()
            function.body.append(Label(line, label[1], names))
            return
        text = self.take(_STATEMENT)
        if text is None:
            raise PtxError(line, f"the text ends inside {function.name}")
        text = text[:-1].strip()
        if not text:
            return
        if text[0] == ".":
            self.declaration(function, scopes, opened, text, line)
            cache.clear()
        else:
            function.body.append(instruction(text, line, scopes, cache))

    def declaration(
        self, function: Function, scopes: list[dict[str, Operand]], opened: int, text: str, line: int
    ) -> None:
        if not text.startswith(".reg"):
            for variable in variables(text, line, False):
                if len(scopes) > 1 and variable.space == "param":
                    # The same names come again in the scope of the next call.
                    unique = replace(variable, name=f"{variable.name}@{opened}")
                    scopes[-1][variable.name] = Symbol(unique.name)
                    variable = unique
                function.variables[variable.name] = variable
            return
        found = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)$", text, re.S)
        if not found or found[1] not in SCALARS:
            raise Unsupported(line, f"no code for {' '.join(text.split())!r}")
        for name in found[2].split(","):
            counted = re.match(r"\s*([\w$%]+)\s*(?:<\s*(\d+)\s*>)?\s*$", name)
            if not counted:
                raise PtxError(line, f"not a register declaration: {text!r}")
            names = [counted[1]] if counted[2] is None else [f"{counted[1]}{i}" for i in range(int(counted[2]))]
            for plain in names:
                unique = plain if len(scopes) == 1 else f"{plain}@{opened}"
                scopes[-1][plain] = Register(unique)
                function.registers[unique] = found[1]


def instruction(
    text: str, line: int, scopes: list[dict[str, Operand]], cache: dict[str, Operand]
) -> Instruction:
    """One instruction; register names are looked up from the innermost scope out."""
    found = _INSTRUCTION.match(text)
    if not found:
        raise PtxError(line, f"not an instruction: {' '.join(text.split())[:80]!r}")
    operands = []
    for part in _OPERAND.findall(found[4]):
        part = part.strip()
        value = cache.get(part)
        if value is None:
            value = cache[part] = _operand(part, line, scopes)
        operands.append(value)
    guard = _operand(found[2], line, scopes) if found[2] else None
    if guard is not None and not isinstance(guard, Register):
        raise PtxError(line, f"the guard {found[2]} is no register")
    return Instruction(line, found[3], tuple(operands), text, guard, bool(found[1]))


def _operand(text: str, line: int, scopes: list[dict[str, Operand]]) -> Operand:
    for scope in reversed(scopes):
        if text in scope:
            return scope[text]
    first = text[0]
    if first in "{(":
        inner = text[1:-1].strip()
        return Vector(tuple(_operand(item.strip(), line, scopes) for item in inner.split(",")) if inner else ())
    if first == "[":
        return _address(text, line, scopes)
    if first == "!":
        inverted = _operand(text[1:].strip(), line, scopes)
        if isinstance(inverted, Register):
            return Not(inverted)
    if "|" in text:
        one, _, other = text.partition("|")
        pair = _operand(one.strip(), line, scopes), _operand(other.strip(), line, scopes)
        if isinstance(pair[0], Register) and isinstance(pair[1], Register):
            return Pair(*pair)
    if text == "_":
        return SINK
    if first == "%":
        return Special(text)
    symbol = _SYMBOL.match(text)
    if symbol:
        return Symbol(symbol[1], number(symbol[2], line).value if symbol[2] else 0)
    return number(text, line)


def _address(text: str, line: int, scopes: list[dict[str, Operand]]) -> Address:
    found = _ADDRESS.match(text)
    if not found:
        raise PtxError(line, f"not an address: {text!r}")
    base = _operand(found[1], line, scopes)
    offset = number((found[2] or found[3] or "0").replace(" ", ""), line).value
    if not isinstance(base, Register | Symbol | Immediate):
        raise PtxError(line, f"not an address: {text!r}")
    return Address(base, offset)


def parameters(text: str, line: int) -> tuple[Parameter, ...]:
    """A parameter list with the byte offset of each, laid out as CUDA lays out a parameter buffer."""
    out: list[Parameter] = []
    offset = 0
    for item in text.split(","):
        if not item.strip():
            continue
        item = re.sub(r"\.ptr(\s*\.(?!align)\w+)*(\s*\.align\s+\d+)?", " ", item)
        found = re.match(r"\s*\.(param|reg)\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$%]+)\s*(?:\[\s*(\d*)\s*\])?\s*$", item)
        if not found or found[3] not in SCALARS:
            raise PtxError(line, f"not a parameter: {' '.join(item.split())!r}")
        width = max(1, SCALARS[found[3]].bits // 8)
        align = int(found[2] or width)
        if align < 1 or align & (align - 1):
            raise PtxError(line, f"alignment {align} is no power of two")
        size = width * int(found[5]) if found[5] else width
        offset = (offset + align - 1) // align * align
        out.append(Parameter(found[4], found[3], offset, size, found[1] == "reg"))
        offset += size
    return tuple(out)


def variables(text: str, line: int, external: bool) -> list[Variable]:
    """The variables of one declaration, with their initial bytes."""
    found = _VARIABLE.match(text)
    if not found:
        raise Unsupported(line, f"no code for {' '.join(text.split())[:80]!r}")
    words = re.findall(r"\.(\w+)(?:\s+(\d+))?", found[2])
    types = [name for name, _ in words if name in SCALARS]
    strange = [name for name, _ in words if name not in SCALARS and name not in ("align", "v2", "v4")]
    if strange or len(types) != 1:
        raise Unsupported(line, f"no code for {' '.join(text.split())[:80]!r}")
    lanes = next((int(name[1]) for name, _ in words if name in ("v2", "v4")), 1)
    width = SCALARS[types[0]].bits // 8 * lanes
    align = next((int(value) for name, value in words if name == "align" and value), width)
    out = []
    for item in _split_top(found[3]):
        declared = _DECLARATOR.match(item.strip())
        if not declared:
            raise PtxError(line, f"not a variable: {' '.join(item.split())[:80]!r}")
        size, unsized = width, False
        for extent in re.findall(r"\[\s*(\w*)\s*\]", declared[2]):
            unsized |= not extent
            size *= number(extent, line).value if extent else 0
        data, pointers = _initial(declared[3] or "", types[0], line)
        if unsized and data:
            size = len(data)
        if len(data) > size:
            raise PtxError(line, f"the initialiser of {declared[1]} is longer than the variable")
        out.append(Variable(declared[1], found[1], size, align, line, data, pointers, external))
    return out


def _split_top(text: str) -> list[str]:
    """Splits at commas outside braces."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in "{(") - (character in "})")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [*parts, text[start:]]


def _initial(text: str, type_name: str, line: int) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
    scalar = SCALARS[type_name]
    width = scalar.bits // 8
    data, pointers = bytearray(), []
    for item in text.replace("{", " ").replace("}", " ").split(","):
        item = item.strip()
        if not item:
            continue
        symbol = re.match(r"(?:generic\s*\(\s*([\w$]+)\s*\)|([A-Za-z_$][\w$]*))\s*(?:\+\s*(\d+))?$", item)
        if symbol:
            pointers.append((len(data), symbol[1] or symbol[2], int(symbol[3] or 0)))
            data += bytes(width)
            continue
        value = number(item, line)
        bits = value.value
        if scalar.kind == "f" and value.float_bits == 64 and scalar.bits == 32:
            bits = int.from_bytes(struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0]), "little")
        data += (bits & ((1 << scalar.bits) - 1)).to_bytes(width, "little")
    return bytes(data), tuple(pointers)
