"""What goes in: models of every kind, as one Relax module with a function for each batch size."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm_backend.errors import InvalidModel

if TYPE_CHECKING:
    import numpy as np
    import tvm

    from tvm_backend.frontends.content import Digest


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """One Relax function of the module: the model for inputs of one shape.

    Args:
        function: its global name.
        batch_size: the model's first dimension there.
        inputs: the model's names of the function's parameters, in their order.
        outputs: the model's names of what it returns: of a tuple's fields, in their order.
    """

    function: str
    batch_size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Imported:
    """A model in Relax.

    Args:
        name: of the model.
        module: one function for each batch size. Parameters are bound as constants, no shape is open.
        functions: the smallest batch size first.
        constants: the model's parameters by their own names, as far as it names them.
        origins: by name of a Relax variable the operator and place in the model that it comes from.
    """

    name: str
    module: tvm.IRModule = field(repr=False)
    functions: tuple[EntryPoint, ...]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(repr=False)
    origins: Mapping[str, tuple[str, str]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that is known as far as the recompile cache needs it: reading it whole, or TVM, may wait.

    Args:
        content: feeds a hash with all that the model consists of.
        imported: the model in Relax.
    """

    content: Callable[[Digest], None]
    imported: Callable[[], Imported]


def prepared(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Prepared:
    """
    Args:
        model: a path of an ONNX file or of a .pt2 file, an onnx.ModelProto, a torch.export.ExportedProgram, a
            torch.nn.Module, a tvm.IRModule in Relax, or a tvm.relax.frontend.nn.Module.
        examples: arrays, tensors or anything else with a shape and a dtype; by the inputs' names, in their order, or
            one. Needed by models that do not say their inputs' shapes.
        batch_sizes: sizes of the first dimension. None: what the model or the examples say, else 1.

    Raises:
        InvalidModel: no such kind of model, or one that does not go with the other arguments.
        UnsupportedOperators: parts of it cannot become kernels.
        CompileError: the frontend failed. Each of these here or when it is imported.
    """
    match kind(model):
        case "path":
            from tvm_backend.frontends import files as frontend
        case "onnx":
            from tvm_backend.frontends import from_onnx as frontend  # type: ignore[no-redef]
        case "torch":
            from tvm_backend.frontends import from_torch as frontend  # type: ignore[no-redef]
        case _:
            from tvm_backend.frontends import from_relax as frontend  # type: ignore[no-redef]
    return frontend.prepared(model, examples, batch_sizes, name)


def imported(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Imported:
    """The model in Relax; arguments and errors as of `prepared`."""
    return prepared(model, examples, batch_sizes, name).imported()


_KINDS = {
    ("onnx", "ModelProto"): "onnx",
    ("torch", "ExportedProgram"): "torch",
    ("torch", "Module"): "torch",
    ("tvm", "IRModule"): "relax",
    ("tvm", "Module"): "relax",
}
"""Of a class in a model's ancestry: its package and its name."""


def kind(model: Any) -> str:
    """What a model is, told by its classes' names: no package is imported that is not its own.

    Raises:
        InvalidModel: no kind of model.
    """
    if isinstance(model, str | os.PathLike):
        return "path"
    for ancestor in type(model).__mro__:
        found = _KINDS.get((ancestor.__module__.partition(".")[0], ancestor.__name__))
        if found is not None:
            return found
    message = (
        f"no model: {type(model)}; a model is a path, an onnx.ModelProto, a torch.export.ExportedProgram, a "
        f"torch.nn.Module, a Relax tvm.IRModule or a tvm.relax.frontend.nn.Module"
    )
    raise InvalidModel(message)
