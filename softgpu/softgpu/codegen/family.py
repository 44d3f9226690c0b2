"""What the compiler knows about a family of instructions; `instructions.FAMILIES` is the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from softgpu.analysis.shapes import Shape
from softgpu.ptx.model import Operand
from softgpu.ptx.types import Scalar


@dataclass(frozen=True, slots=True)
class Family:
    """emit writes the code; shape gives the result's shape from those of the operands after the first.

    types: the types an opcode may name; modifiers: what else it may contain, `required`: one of these it must.
    operands: least and largest number of operands. guard_branches: a guard becomes a branch around the instruction.
    kinds, result: the element types of the sources and of the result where registers must have just their widths.
    objection: what is wrong with the operands, given the types of registers; "" if nothing. None: the usual rules.
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
        return self.types[-1]

    @property
    def llvm(self) -> str:
        return self.types[-1].llvm

    @property
    def rounding(self) -> str:
        """rz, rm or rp; "" for the default, to nearest even."""
        return next((m for m in self.modifiers if m in ("rz", "rm", "rp")), "")


Objection = Callable[[Operation, tuple[Operand, ...], Mapping[str, str]], str]
