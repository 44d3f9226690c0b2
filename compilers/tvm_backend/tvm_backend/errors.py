"""The errors of compiling a model into kTasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kaas import KaasError, errors

LISTED = 20
"""The most places that an error's message lists; its field has all of them."""


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a model that cannot become a kernel.

    Args:
        operator: its name in the model's framework: `ai.onnx.NonZero`, `aten.nonzero.default`, `relax.unique`.
        where: the node, module or binding, as far as the model names it.
        reason: why it cannot become a kernel.
    """

    operator: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operator} at {self.where}: {self.reason}"


class CompileError(KaasError):
    """A model that cannot be compiled.

    Fields:
        model: its name. stage: the step that failed.
    """

    model: str
    stage: str


class InvalidModel(CompileError, errors.InvalidModel):
    """The argument is no model, cannot be read as a model, or does not fit its example inputs or batch sizes.

    Fields:
        path: of its file. input: the input that is wrong. names: the missing or superfluous names.
    """

    path: str
    input: str
    names: tuple[str, ...]


class InvalidOption(CompileError, ValueError):
    """An option of `compile` whose value has no meaning; `option` is its name."""

    option: str


class UnsupportedOperators(CompileError):
    """Parts of a model that cannot become kernels: all that were found, in the model's order."""

    operators: tuple[Place, ...]


def unsupported(model: str, places: Sequence[Place]) -> UnsupportedOperators:
    """Return the error that lists these places."""
    lines = [f"  {place}" for place in places[:LISTED]]
    if len(places) > LISTED:
        lines.append(f"  and {len(places) - LISTED} more")
    count = "1 operator" if len(places) == 1 else f"{len(places)} operators"
    message = "\n".join([f"{model}: {count} cannot become kernels:", *lines])
    return UnsupportedOperators(message, model=model, operators=tuple(places))
