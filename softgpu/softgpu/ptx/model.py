"""What PTX text consists of, once read: modules, functions, variables, instructions, operands."""

from __future__ import annotations

from dataclasses import dataclass, field


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
    managed: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    offset: int
    size: int
    in_register: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """What an indirect call may call: any function with these results and parameters, or one of `targets`."""

    results: tuple[Parameter, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    targets: tuple[str, ...] | None = None


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
    signatures: dict[str, Signature] = field(default_factory=dict)  # by label
    max_threads: int = 1024
    refusals: list[Unsupported] = field(default_factory=list)  # of its declarations


@dataclass(slots=True, eq=False)
class Module:
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)  # of the source, by number
    places: list[tuple[int, int, int]] = field(default_factory=list)
    """From a PTX line on the number of the file and the line there; 0 and 0: it is not known."""

    @property
    def sources(self) -> tuple[tuple[int, str, int], ...]:
        """From a PTX line on the name of the file, without its folders, and the line there; "": it is not known."""
        names = {number: name.replace("\\", "/").rsplit("/", 1)[-1] for number, name in self.files.items()}
        if not names:
            return ()
        return tuple((at, names.get(file, ""), line) for at, file, line in self.places)

    @property
    def entries(self) -> list[Function]:
        return [f for f in self.functions.values() if f.is_entry]
