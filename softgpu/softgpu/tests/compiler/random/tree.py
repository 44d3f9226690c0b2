"""Random programs as trees of statements: what a thread does, without races and without undefined results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

Source = str | int
"""A register such as r2, or a number: an integer, for f, g and x its bits."""

REGISTERS = {"r": 6, "u": 2, "d": 3, "h": 2, "f": 3, "g": 2, "x": 2, "p": 3}
"""The number of registers of each kind; u is an r with the same value in all threads of the block."""

OWN_BYTES, SHARED_BYTES, LOCAL_BYTES, COLUMNS = 64, 32, 64, 2
TABLE_BYTES = 1024
ACCUMULATORS = ("add.u32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32", "add.u64")
TYPES = {
    "u8": "r", "s8": "r", "u16": "r", "s16": "r", "b16": "h", "u32": "r", "b32": "r", "u64": "d", "b64": "d",
    "f32": "f", "f64": "g",
}  # fmt: skip


class Statement:
    """One of those below."""


Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Apply(Statement):
    op: str
    targets: tuple[str, ...]
    sources: tuple[Source, ...]
    guard: str = ""  # p0, or !p0


@dataclass(frozen=True)
class Place:
    """Bytes in memory. space: in (read only) and table: the same bytes for all threads; own, shared, local: bytes of
    this thread, one thread's behind the other's; column, shared_column: words of this thread, beside its neighbours'.
    by: adds a register, cut to what fits. scale: bytes from thread to thread in `in`; 0: the same for all."""

    space: str
    offset: int
    by: str = ""
    scale: int = 0
    how: str = ""  # generic, volatile, nc, or ordered: relaxed, acquire, release


@dataclass(frozen=True)
class Load(Statement):
    type: str
    targets: tuple[str, ...]
    place: Place
    guard: str = ""


@dataclass(frozen=True)
class Store(Statement):
    type: str
    sources: tuple[str, ...]
    place: Place
    guard: str = ""


@dataclass(frozen=True)
class Atomic(Statement):
    """On this thread's own bytes, with the value that was there before."""

    op: str
    type: str
    target: str
    place: Place
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Accumulate(Statement):
    """On a cell that all threads update."""

    cell: int
    source: Source
    with_result: bool


@dataclass(frozen=True)
class If(Statement):
    condition: str  # p0, or u0: whether it is odd
    then: Body
    otherwise: Body


@dataclass(frozen=True)
class Loop(Statement):
    """count & 7 times; at least once if it is tested at the bottom."""

    count: Source
    bottom: bool
    body: Body


@dataclass(frozen=True)
class Leave(Statement):
    """how: break or continue, of the innermost loop; ret or exit."""

    how: str
    condition: str


@dataclass(frozen=True)
class Switch(Statement):
    index: str
    cases: tuple[Body, ...]


@dataclass(frozen=True)
class Tangle(Statement):
    """A loop with two entries: threads with the condition begin in `second`, the others in `first`; each follows the
    other, until a counter that starts at count & 7 and falls by 1 and 2 is used up."""

    condition: str
    count: Source
    first: Body
    second: Body


@dataclass(frozen=True)
class Call(Statement):
    function: int
    target: str
    arguments: tuple[str, str]


@dataclass(frozen=True)
class Shuffle(Statement):
    """A shuffle; a read from a lane that does not take part gives 0."""

    mode: str
    target: str
    fits: str
    source: str
    by: Source
    width: int


@dataclass(frozen=True)
class Vote(Statement):
    """mode: all, any, uni, ballot; match.any, match.all, of the low two bits; redux.add.u32 and so on."""

    mode: str
    targets: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Exchange(Statement):
    """Every thread leaves a word, and takes that of thread (number + shift) or (by) modulo the threads of the block."""

    target: str
    source: str
    shift: int
    by: str = ""


@dataclass(frozen=True)
class BlockVote(Statement):
    """popc, and, or with bar.red; sum, through shared memory."""

    mode: str
    target: str
    source: str


@dataclass(frozen=True)
class Function:
    """Two words in, a word out, in r0; registers start at 0."""

    body: Body
    in_registers: bool


@dataclass(frozen=True)
class Program:
    grid: tuple[int, ...]
    block: tuple[int, ...]
    body: Body
    functions: tuple[Function, ...]
    seed: int


# --- parts of a program


def walk(body: Body) -> Iterator[Statement]:
    for statement in body:
        yield statement
        for inner in _bodies_of(statement):
            yield from walk(inner)


def _bodies_of(statement: Statement) -> tuple[Body, ...]:
    match statement:
        case If(_, then, otherwise):
            return then, otherwise
        case Loop(_, _, body):
            return (body,)
        case Switch(_, cases):
            return cases
        case Tangle(_, _, first, second):
            return first, second
    return ()


_NAMES = frozenset(f"{kind}{number}" for kind, count in REGISTERS.items() for number in range(count))


def used(body: Body) -> list[str]:
    """The registers that it names."""
    found: set[str] = set()

    def note(value: object) -> None:
        if isinstance(value, str) and value.lstrip("!") in _NAMES:
            found.add(value.lstrip("!"))
        elif isinstance(value, Place):
            note(value.by)
        elif isinstance(value, tuple):
            for item in value:
                if not isinstance(item, Statement):
                    note(item)

    for statement in walk(body):
        for each in fields(statement):  # type: ignore[arg-type]
            note(getattr(statement, each.name))
    return sorted(found)


def waits(body: Body) -> bool:
    """Return True if lanes of a warp need the set of running lanes."""
    return any(isinstance(statement, Shuffle | Vote) for statement in walk(body))
