"""ONNX graphs without their weights: what is removed before they are stored comes back from names and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from benchmarks.models.weights import weight

_DATA = ("raw_data", "float_data")
_WORDS = ("doc_string", "metadata_props")


def without_weights(model: onnx.ModelProto, parameters: set[str]) -> onnx.ModelProto:
    """A copy without the parameters' values, and without what the exporter wrote about the program that it exported."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    silence(copy)
    copy.graph.ClearField("value_info")
    for tensor in copy.graph.initializer:
        if tensor.name in parameters:
            for field in _DATA:
                tensor.ClearField(field)
    return copy


def with_weights(path: Path) -> onnx.ModelProto:
    """A stored graph, complete again."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and not any(getattr(tensor, field) for field in _DATA):
            tensor.CopyFrom(numpy_helper.from_array(weight(tensor.name, tuple(tensor.dims)), tensor.name))
    return model


def silence(message: Any) -> None:
    """Removes every comment and note, at any depth."""
    for field, value in message.ListFields():
        if field.name in _WORDS:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                silence(inner)
