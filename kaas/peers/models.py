"""Two models as ONNX, with weights from a seed: an MLP and ResNet-50. Nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES = 1000
RESNET_BLOCKS = ((3, 64), (4, 128), (6, 256), (3, 512))
"""ResNet-50's stages: their blocks and widths (K. He et al., "Deep residual learning", 2015, Table 1)."""


class OnnxBuilder:
    """An ONNX graph that grows node by node. Each method returns the name of its result."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one output."""
        from onnx import helper

        result = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, [*inputs], [result], **attributes))
        return result

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Add a weight of normal numbers, scaled so that layers keep their inputs' size."""
        from onnx import numpy_helper

        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        deviation = (2 / fan_in) ** 0.5 if scale is None else scale
        values = self._random.standard_normal(shape, np.float32) * np.float32(deviation)
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(self, x: str, channels: tuple[int, int], size: int, stride: int = 1) -> str:
        """Add a convolution with a bias: what it becomes when the batch normalisation is folded in."""
        pads, strides = [size // 2] * 4, [stride] * 2
        weights, bias = self.weight(channels[1], channels[0], size, size), self.weight(channels[1], scale=0.01)
        return self.node("Conv", x, weights, bias, kernel_shape=[size, size], pads=pads, strides=strides)

    def model(self, given: tuple[int, ...], result: str, answer: tuple[int, ...]) -> Any:
        """Return the model: input "x", output `result`."""
        from onnx import TensorProto, helper

        values = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", given), (result, answer))
        ]
        graph = helper.make_graph(self._nodes, "model", values[:1], values[1:], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mlp() -> Any:
    """Return three layers of 784, 512, 512 and 10."""
    build, x = OnnxBuilder(1), "x"
    for rows, columns in ((784, 512), (512, 512), (512, 10)):
        x = build.node("Gemm", x, build.weight(columns, rows), build.weight(columns, scale=0.01), transB=1)
        if columns > 10:
            x = build.node("Relu", x)
    return build.model((1, 784), x, (1, 10))


def resnet50() -> Any:
    """Return ResNet-50 for one picture of 3 x 224 x 224, batch normalisation folded into the convolutions."""
    build = OnnxBuilder(2)
    x = build.node("Relu", build.convolution("x", (3, 64), 7, 2))
    x, channels = build.node("MaxPool", x, kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]), 64
    for stage, (blocks, width) in enumerate(RESNET_BLOCKS):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            short = x if block else build.convolution(x, (channels, 4 * width), 1, stride)
            x = build.node("Relu", build.convolution(x, (channels, width), 1))
            x = build.node("Relu", build.convolution(x, (width, width), 3, stride))
            x = build.node("Relu", build.node("Add", build.convolution(x, (width, 4 * width), 1), short))
            channels = 4 * width
    x = build.node("Flatten", build.node("GlobalAveragePool", x))
    x = build.node("Gemm", x, build.weight(CLASSES, channels, scale=0.01), build.weight(CLASSES, scale=0.01), transB=1)
    return build.model((1, 3, 224, 224), x, (1, CLASSES))


MODELS = {"mlp": (mlp, (1, 784)), "resnet50": (resnet50, (1, 3, 224, 224))}
"""By name: what builds the model, and the shape of its input."""
