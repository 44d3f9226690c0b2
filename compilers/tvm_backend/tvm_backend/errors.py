"""What can go wrong between a model and its kTasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kaas import KaasError, errors

LISTED = 20
"""Of the places in an error's message, how many stand there; the field has them all."""


@dataclass(frozen=True, slots=True)
class Place:
    """Something in a model that cannot become a kernel.

    Args:
        operator: as its maker calls it: `ai.onnx.NonZero`, `aten.nonzero.default`, `relax.unique`.
        where: the node, module or binding, as far as the model tells.
        reason: why not.
    """

    operator: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.where}: {self.reason}"


class CompileError(KaasError):
    """A model that cannot be compiled.

    Fields:
        model: its name. stage: what was being done.
    """

    model: str
    stage: str


class InvalidModel(CompileError, errors.InvalidModel):
    """What was given is no model, cannot be read as one, or does not go with its example inputs or batch sizes.

    Fields:
        path: of its file. input: the input that is wrong. names: what is missing, or is too much.
    """

    path: str
    input: str
    names: tuple[str, ...]


class InvalidOption(CompileError, ValueError):
    """An option of `compile` that cannot mean anything; `option` is its name."""

    option: str


class UnsupportedOperators(CompileError):
    """Parts of a model that cannot become kernels: all that were found, in the model's order."""

    operators: tuple[Place, ...]


def unsupported(model: str, places: Sequence[Place]) -> UnsupportedOperators:
    """The error that lists these places."""
    lines = [f"  {place}" for place in places[:LISTED]]
    if len(places) > LISTED:
        lines.append(f"  and {len(places) - LISTED} more")
    what = "1 operator" if len(places) == 1 else f"{len(places)} operators"
    message = "\n".join([f"{model}: {what} cannot become kernels:", *lines])
    return UnsupportedOperators(message, model=model, operators=tuple(places))
