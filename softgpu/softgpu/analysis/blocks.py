"""The parts of a control flow graph: steps, blocks, and how blocks end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from softgpu.codegen.family import Operation
from softgpu.ptx.model import Instruction

EXIT = -1


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction with the registers it writes and reads (the guard included)."""

    inst: Instruction
    op: Operation
    writes: tuple[str, ...]
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Jump:
    """The end of a block whose lanes all go to `target`, a block's number or EXIT."""

    target: int


@dataclass(frozen=True, slots=True)
class Branch:
    """The end of a block whose lanes go to `taken` where the predicate holds (negated: does not hold)."""

    register: str
    negated: bool
    taken: int
    otherwise: int


@dataclass(frozen=True, slots=True)
class Switch:
    """The end of a block whose lanes go to targets[value of the register]."""

    register: str
    targets: tuple[int, ...]


Terminator = Jump | Branch | Switch


@dataclass(slots=True)
class Block:
    """Steps without a branch between them, and their end."""

    steps: list[Step] = field(default_factory=list)
    end: Terminator = Jump(EXIT)
    loops: tuple[tuple[int, int], ...] = ()  # (head, last block) of the loops around it, innermost first

    @property
    def successors(self) -> tuple[int, ...]:
        """Return the blocks that may follow, EXIT included, each once."""
        match self.end:
            case Jump(target):
                return (target,)
            case Branch(_, _, taken, otherwise):
                return (taken, otherwise)
            case Switch(_, targets):
                return tuple(dict.fromkeys(targets))


def bits(value: int) -> Iterator[int]:
    """Yield the places of the set bits, the lowest first."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
