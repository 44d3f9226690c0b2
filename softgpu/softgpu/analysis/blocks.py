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
    target: int


@dataclass(frozen=True, slots=True)
class Branch:
    register: str
    negated: bool
    taken: int
    otherwise: int


@dataclass(frozen=True, slots=True)
class Switch:
    register: str
    targets: tuple[int, ...]


Terminator = Jump | Branch | Switch


@dataclass(slots=True)
class Block:
    steps: list[Step] = field(default_factory=list)
    end: Terminator = Jump(EXIT)
    loops: tuple[tuple[int, int], ...] = ()  # (head, last block) of the loops around it, innermost first

    @property
    def successors(self) -> tuple[int, ...]:
        match self.end:
            case Jump(target):
                return (target,)
            case Branch(_, _, taken, otherwise):
                return (taken, otherwise)
            case Switch(_, targets):
                return tuple(dict.fromkeys(targets))


def bits(value: int) -> Iterator[int]:
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
