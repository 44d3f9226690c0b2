"""ONNX graphs stored without their weights, which are restored from names and shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

from benchmarks.models.weights import weight

_DATA = ("raw_data", "float_data")
_WORDS = ("doc_string", "metadata_props")


def without_weights(model: onnx.ModelProto, parameters: set[str]) -> onnx.ModelProto:
    """Return a copy without the parameters' values, and without the exporter's notes about the exported program."""
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
    """Return a stored graph with its weights."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and not any(getattr(tensor, field) for field in _DATA):
            tensor.CopyFrom(numpy_helper.from_array(weight(tensor.name, tuple(tensor.dims)), tensor.name))
    return model


def silence(message: Any) -> None:
    """Remove every comment and note, at any depth."""
    for field, value in message.ListFields():
        if field.name in _WORDS:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for inner in [value] if hasattr(value, "ListFields") else value:
                silence(inner)
