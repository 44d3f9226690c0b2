"""A model of ONNX as a PyTorch module. It imports PyTorch alone: a cold start of PyTorch should not import KaaS."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

OPERATORS: dict[str, Any] = {
    "Add": lambda inputs, _: inputs[0] + inputs[1],
    "Conv": lambda inputs, given: functional.conv2d(*inputs, stride=given["strides"], padding=given["pads"][:2]),
    "Flatten": lambda inputs, _: torch.flatten(inputs[0], 1),
    "Gemm": lambda inputs, _: functional.linear(*inputs),
    "GlobalAveragePool": lambda inputs, _: functional.adaptive_avg_pool2d(inputs[0], 1),
    "MaxPool": lambda inputs, given: functional.max_pool2d(
        inputs[0], given["kernel_shape"], stride=given["strides"], padding=given["pads"][:2]
    ),
    "Relu": lambda inputs, _: functional.relu(inputs[0]),
}
"""By ONNX's name, as `kaas.bench.networks` uses them: pads are symmetric, Gemm's second matrix is transposed."""


class TorchGraph(torch.nn.Module):  # type: ignore[misc]  # mypy runs without torch
    """Runs the nodes of a graph in turn, eagerly.

    Args:
        nodes: operator, names of inputs, name of the result, attributes. The input of the graph is "x".
        weights: by name.
    """

    def __init__(self, nodes: Sequence[tuple[str, list[str], str, dict[str, Any]]], weights: dict[str, Any]) -> None:
        super().__init__()
        self.nodes = nodes
        self.weights = torch.nn.ParameterDict(weights)

    def forward(self, x: Any) -> Any:
        """Return the result of the last node for one input."""
        values = {"x": x, **self.weights}
        for kind, names, result, given in self.nodes:
            values[result] = OPERATORS[kind]([values[name] for name in names], given)
        return values[self.nodes[-1][2]]


def save(graph: Any, path: Path) -> None:
    """Write an ONNX model as a file that `load` reads."""
    from onnx import numpy_helper

    nodes = [
        (node.op_type, [*node.input], node.output[0], _attributes(node))  # plain values: `load` trusts no pickles
        for node in graph.graph.node
    ]
    weights = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.graph.initializer}
    torch.save({"nodes": nodes, "weights": weights}, path)


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def load(path: str) -> TorchGraph:
    """Return the model of a file, its weights mapped."""
    model = TorchGraph(**torch.load(path, mmap=True, weights_only=True))
    model.eval().requires_grad_(False)
    return model


def compile_ahead(model: TorchGraph, x: Any, path: Path) -> None:
    """Compile a model to machine code for this CPU (AOTInductor), and write it with its weights as one package."""
    from torch._inductor import aoti_compile_and_package

    aoti_compile_and_package(torch.export.export(model, (x,)), package_path=str(path))
