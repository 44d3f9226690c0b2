"""ONNX graphs for the tests: many nodes in one model, since each compilation costs seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
FLOAT = onnx.TensorProto.FLOAT


def value(name: str, shape: Sequence[int | str | None] | None, dtype: str = "float32") -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    opset: int = 17,
    **more: Any,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), results, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1), helper.make_opsetid("mine", 1)]
    made = helper.make_model(graph, opset_imports=opsets, **more)
    made.ir_version = 8
    return made


def classifier() -> onnx.ModelProto:
    """Return a classifier of pictures: it takes the means of their channels and gives ten scores."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["input"], ["means"]),
        helper.make_node("Flatten", ["means"], ["channels"]),
        helper.make_node("MatMul", ["channels", "weight"], ["scores"]),
    ]
    weights = {"weight": np.random.default_rng(0).standard_normal((3, 10), np.float32)}
    return model(nodes, [value("input", ["batch", 3, 224, 224])], ["scores"], weights)


def perceptron(batch: int | str | None = "batch", name: str = "x", seed: int = 0) -> onnx.ModelProto:
    """Return a model of relu(x @ fc.weight + fc.bias), from 4 values to 3."""
    random = np.random.default_rng(seed)
    weights = {
        "fc.weight": random.standard_normal((4, 3), np.float32),
        "fc.bias": random.standard_normal(3, np.float32),
    }
    nodes = [
        helper.make_node("MatMul", [name, "fc.weight"], ["product"]),
        helper.make_node("Add", ["product", "fc.bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y/0"]),
    ]
    return model(nodes, [value(name, [batch, 4])], ["y/0"], weights)


def perceptron_result(made: onnx.ModelProto, x: Array) -> Array:
    weight, bias = (numpy_helper.to_array(tensor) for tensor in made.graph.initializer)
    answer: Array = np.maximum(x @ weight + bias, 0)
    return answer
