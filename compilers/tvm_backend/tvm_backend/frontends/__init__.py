"""What goes in: models of every kind, as one Relax module with a function for each batch size."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tvm_backend.errors import InvalidModel

if TYPE_CHECKING:
    import numpy as np
    import tvm


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
    """

    name: str
    module: tvm.IRModule = field(repr=False)
    functions: tuple[EntryPoint, ...]
    constants: Mapping[str, np.ndarray[Any, Any]] = field(repr=False)


def imported(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Imported:
    """
    Args:
        model: a path of an ONNX file or of a .pt2 file, an onnx.ModelProto, a torch.export.ExportedProgram, a
            torch.nn.Module, a tvm.IRModule in Relax, or a tvm.relax.frontend.nn.Module.
        examples: arrays, tensors or anything else with a shape and a dtype; by the inputs' names, in their order, or one.
            Needed by models that do not say their inputs' shapes.
        batch_sizes: sizes of the first dimension. None: what the model or the examples say, else 1.

    Raises:
        InvalidModel: no such kind of model, or one that does not go with the other arguments.
        UnsupportedOperators: parts of it cannot become kernels.
        CompileError: the frontend failed.
    """
    match kind(model):
        case "path":
            from tvm_backend.frontends import files

            return imported(files.read(model, name), examples, batch_sizes, name)
        case "onnx":
            from tvm_backend.frontends import from_onnx

            return from_onnx.imported(model, examples, batch_sizes, name)
        case "exported program":
            from tvm_backend.frontends import from_torch

            return from_torch.imported(model, examples, batch_sizes, name)
        case "torch module":
            from tvm_backend.frontends import from_torch

            return from_torch.imported_module(model, examples, batch_sizes, name)
        case "relax":
            from tvm_backend.frontends import from_relax

            return from_relax.imported(model, examples, batch_sizes, name)
        case _:
            from tvm_backend.frontends import from_relax

            return from_relax.imported_nn(model, examples, batch_sizes, name)


_KINDS = {
    ("onnx", "ModelProto"): "onnx",
    ("torch", "ExportedProgram"): "exported program",
    ("torch", "Module"): "torch module",
    ("tvm", "IRModule"): "relax",
    ("tvm", "Module"): "nn",
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
