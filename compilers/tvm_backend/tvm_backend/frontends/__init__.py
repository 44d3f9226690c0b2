"""Importing models of every kind as one Relax module with a function for each batch size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tvm_backend.errors import InvalidModel
from tvm_backend.frontends.imported import EntryPoint, Imported, Prepared

__all__ = ["EntryPoint", "Imported", "Prepared", "imported", "kind", "prepared"]


def prepared(model: Any, examples: Any, batch_sizes: Sequence[int] | None, name: str) -> Prepared:
    """Return the model, ready to be hashed and imported.

    Args:
        model: a path of an ONNX file or of a .pt2 file, an onnx.ModelProto, a torch.export.ExportedProgram, a
            torch.nn.Module, a tvm.IRModule in Relax, or a tvm.relax.frontend.nn.Module.
        examples: arrays, tensors or other objects with a shape and a dtype; by the inputs' names, in the inputs' order,
            or a single one. Needed by models that do not state their inputs' shapes.
        batch_sizes: sizes of the first dimension. None: those of the model or the examples, else 1.
        name: of the model, for errors and kTasks.

    Raises:
        InvalidModel: no such kind of model, or the other arguments do not fit it.
        UnsupportedOperators: parts of the model cannot become kernels.
        CompileError: the frontend failed. Each error is raised here or by the import.
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
    """Return the model in Relax. Arguments and errors are those of `prepared`."""
    return prepared(model, examples, batch_sizes, name).imported()


_KINDS = {
    ("onnx", "ModelProto"): "onnx",
    ("torch", "ExportedProgram"): "torch",
    ("torch", "Module"): "torch",
    ("tvm", "IRModule"): "relax",
    ("tvm", "Module"): "relax",
}
"""Kinds of models by the package and the name of a class among the model's base classes."""


def kind(model: Any) -> str:
    """Return the kind of a model: "path", "onnx", "torch" or "relax".

    Its classes' names decide, so that no other framework is imported.

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
