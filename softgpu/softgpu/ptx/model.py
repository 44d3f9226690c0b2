"""The data that PTX text becomes: modules, functions, variables, instructions, operands."""

from __future__ import annotations

from dataclasses import dataclass, field


class PtxError(Exception):
    """PTX that cannot be read. `line` counts from 1; 0: the error has no line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(line, message)
        self.line, self.message = line, message

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}" if self.line else self.message


class Unsupported(PtxError):
    """Well-formed PTX that this compiler has no code for."""


@dataclass(frozen=True, slots=True)
class Register:
    """A register of a function."""

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
    """A memory operand [base + offset]; the offset is in bytes."""

    base: Register | Symbol | Immediate
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """A list {a, b, ...}, or a parenthesised list of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """An operand a|b: the two destinations of setp and shfl."""

    first: Register
    second: Register


@dataclass(frozen=True, slots=True)
class Not:
    """A source operand !%p."""

    register: Register


Operand = Register | Special | Immediate | Symbol | Address | Vector | Pair | Not

SINK = Register("_")


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction with its PTX line and text. It runs where the guard holds (negated: does not hold)."""

    line: int
    opcode: str
    operands: tuple[Operand, ...]
    text: str
    guard: Register | None = None
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """A label, or a named table of labels."""

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
    managed: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function. offset, size: in bytes, in the parameter buffer."""

    name: str
    type: str
    offset: int
    size: int
    in_register: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The functions that an indirect call may call: all with these results and parameters, or those in `targets`."""

    results: tuple[Parameter, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    targets: tuple[str, ...] | None = None


@dataclass(slots=True)
class Function:
    """A function or an entry of a module. registers: their types by name."""

    name: str
    line: int
    is_entry: bool
    parameters: tuple[Parameter, ...] = ()
    results: tuple[Parameter, ...] = ()
    has_body: bool = False
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    body: list[Instruction | Label] = field(default_factory=list)
    signatures: dict[str, Signature] = field(default_factory=dict)  # by label
    max_threads: int = 1024
    refusals: list[Unsupported] = field(default_factory=list)  # of its declarations


@dataclass(slots=True, eq=False)
class Module:
    """The functions and variables of a PTX text, and the source files that it names."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)  # of the source, by number
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """(first PTX line, number of the source file, line in it); 0 and 0: the source is not known."""

    @property
    def sources(self) -> tuple[tuple[int, str, int], ...]:
        """Return (first PTX line, name of the source file without its folders, line in it); "": it is not known."""
        names = {number: name.replace("\\", "/").rsplit("/", 1)[-1] for number, name in self.files.items()}
        if not names:
            return ()
        return tuple((at, names.get(file, ""), line) for at, file, line in self.places)

    @property
    def entries(self) -> list[Function]:
        """Return the functions that a program can launch."""
        return [f for f in self.functions.values() if f.is_entry]
