"""The description of a family of instructions; `instructions.FAMILIES` is the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from softgpu.analysis.shapes import Shape
from softgpu.ptx.model import Operand
from softgpu.ptx.types import Scalar


@dataclass(frozen=True, slots=True)
class Family:
    """A family: emit writes the code; shape gives the result's shape from those of the operands after the first.

    types: the types that an opcode may name. modifiers: the other words that it may contain; required: at least one of
    these must be there. operands: least and largest number of operands. guard_branches: a guard becomes a branch around
    the instruction. kinds, result: the element types of the sources and of the result, if registers must have exactly
    these widths; None: `checks` has a rule for the opcode. objection: returns the error in the operands, given the
    types of registers, or ""; None: the usual rules.
    """

    summary: str
    emit: Callable[[Any, Any], None]  # (Emitter, Step): both know this module
    shape: Callable[[Operation, list[Shape]], Shape]
    types: frozenset[str]
    modifiers: frozenset[str]
    operands: tuple[int, int]
    required: frozenset[str] = frozenset()
    has_result: bool = True
    guard_branches: bool = False
    kinds: Callable[[Operation, int], list[str]] | None = None
    result: Callable[[Operation], str] | None = None
    objection: Objection | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """One opcode taken apart: mul.wide.s32 is base mul, modifiers (wide,), types (s32,)."""

    opcode: str
    base: str
    modifiers: tuple[str, ...]
    types: tuple[Scalar, ...]
    family: Family

    @property
    def type(self) -> Scalar:
        """Return the last type of the opcode."""
        return self.types[-1]

    @property
    def llvm(self) -> str:
        """Return the LLVM element type of the opcode's last type."""
        return self.types[-1].llvm

    @property
    def rounding(self) -> str:
        """Return rz, rm or rp; "" for the default, to nearest even."""
        return next((m for m in self.modifiers if m in ("rz", "rm", "rp")), "")


Objection = Callable[[Operation, tuple[Operand, ...], Mapping[str, str]], str]
