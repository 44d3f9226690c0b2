"""What goes in: models of every kind, as one Relax module with a function for each batch size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_backend.errors import InvalidModel
from tvm_backend.frontends.imported import EntryPoint, Imported, Prepared

__all__ = ["EntryPoint", "Imported", "Prepared", "imported", "kind", "prepared"]


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
            from tvm_backend.frontends import files

            path = Path(model)
            return Prepared(
                lambda digest: files.feed_file(digest, path, name),
                lambda: imported(files.read(path, name), examples, batch_sizes, name),
            )
        case "onnx":
            from tvm_backend.frontends import from_onnx as frontend
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
