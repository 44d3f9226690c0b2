"""Networks as ONNX, with weights from a seed: an MLP, ResNet-50 and BERT. Nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

CLASSES = 1000
WORDS, VOCABULARY, FORBIDDEN = 384, 30522, -10000.0
"""BERT's: the longest text of SQuAD, as MLPerf has it, the number of tokens, and what padding adds to a score."""
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
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        deviation = (2 / fan_in) ** 0.5 if scale is None else scale
        return self.constant(self._random.standard_normal(shape, np.float32) * np.float32(deviation))

    def constant(self, values: Any) -> str:
        """Add an array, float32 unless it says otherwise."""
        from onnx import numpy_helper

        name = f"w{len(self._weights)}"
        made = values if isinstance(values, np.ndarray) else np.asarray(values, np.float32)
        self._weights.append(numpy_helper.from_array(made, name))
        return name

    def linear(self, x: str, given: int, result: int) -> str:
        """Add x @ W + b over the last dimension, with weights as small as BERT's."""
        product = self.node("MatMul", x, self.weight(given, result, scale=0.02))
        return self.node("Add", product, self.weight(result, scale=0.01))

    def convolution(self, x: str, channels: tuple[int, int], size: int, stride: int = 1) -> str:
        """Add a convolution with a bias: what it becomes when the batch normalisation is folded in."""
        pads, strides = [size // 2] * 4, [stride] * 2
        weights, bias = self.weight(channels[1], channels[0], size, size), self.weight(channels[1], scale=0.01)
        return self.node("Conv", x, weights, bias, kernel_shape=[size, size], pads=pads, strides=strides)

    def model(self, given: Mapping[str, tuple[int, ...]], result: str, answer: tuple[int, ...]) -> Any:
        """Return the model. given: shapes of inputs by name, of float32 for "x", of int64 for others."""
        from onnx import TensorProto, helper

        kinds = {name: TensorProto.FLOAT if name == "x" else TensorProto.INT64 for name in given}
        inputs = [helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in given.items()]
        output = helper.make_tensor_value_info(result, TensorProto.FLOAT, answer)
        graph = helper.make_graph(self._nodes, "model", inputs, [output], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mlp() -> Any:
    """Return three layers of 784, 512, 512 and 10."""
    build, x = OnnxBuilder(1), "x"
    for rows, columns in ((784, 512), (512, 512), (512, 10)):
        x = build.node("Gemm", x, build.weight(columns, rows), build.weight(columns, scale=0.01), transB=1)
        if columns > 10:
            x = build.node("Relu", x)
    return build.model({"x": (1, 784)}, x, (1, 10))


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
    return build.model({"x": (1, 3, 224, 224)}, x, (1, CLASSES))


def bert(words: int = WORDS, hidden: int = 1024, heads: int = 16, layers: int = 24) -> Any:
    """Return BERT with a head for question answering, by default BERT-large for a text of 384 words.

    Inputs are int64 of (1, words): tokens, segments (0 the question, 1 the text), and mask (1 a word, 0 padding); the
    output is (1, words, 2), the scores of the answer's beginning and end. Source: J. Devlin et al., "BERT", 2018.
    """
    build = OnnxBuilder(3)
    given = dict.fromkeys(("tokens", "segments", "mask"), (1, words))
    table, places = build.weight(VOCABULARY, hidden, scale=0.02), build.weight(words, hidden, scale=0.02)
    segments = build.node("Gather", build.weight(2, hidden, scale=0.02), "segments")
    x = build.node("Add", build.node("Add", build.node("Gather", table, "tokens"), places), segments)
    x = _normalised(build, x, hidden)
    padding = build.node("Sub", build.constant(1.0), build.node("Cast", "mask", to=1))  # to FLOAT
    padding = build.node("Mul", padding, build.constant(FORBIDDEN))  # (1, words), added to scores of each word
    for _ in range(layers):
        mixed = _attention(build, x, padding, words, hidden, heads)
        x = _normalised(build, build.node("Add", x, mixed), hidden)
        wide = build.linear(x, hidden, 4 * hidden)
        error = build.node("Erf", build.node("Mul", wide, build.constant(0.5**0.5)))
        half, above = build.node("Mul", wide, build.constant(0.5)), build.node("Add", error, build.constant(1.0))
        gelu = build.node("Mul", half, above)
        x = _normalised(build, build.node("Add", x, build.linear(gelu, 4 * hidden, hidden)), hidden)
    return build.model(given, build.linear(x, hidden, 2), (1, words, 2))


def _attention(build: OnnxBuilder, x: str, padding: str, words: int, hidden: int, heads: int) -> str:
    split = build.constant(np.array([1, words, heads, hidden // heads], np.int64))
    joined = build.constant(np.array([1, words, hidden], np.int64))
    query, key, value = (
        build.node("Transpose", build.node("Reshape", build.linear(x, hidden, hidden), split), perm=perm)
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    scores = build.node("Mul", build.node("MatMul", query, key), build.constant((hidden // heads) ** -0.5))
    weights = build.node("Softmax", build.node("Add", scores, padding), axis=-1)
    mixed = build.node("Transpose", build.node("MatMul", weights, value), perm=(0, 2, 1, 3))
    return build.linear(build.node("Reshape", mixed, joined), hidden, hidden)


def _normalised(build: OnnxBuilder, x: str, hidden: int) -> str:
    scale, bias = build.constant(np.ones(hidden, np.float32)), build.weight(hidden, scale=0.01)
    return build.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)


MODELS = {"mlp": (mlp, (1, 784)), "resnet50": (resnet50, (1, 3, 224, 224))}
"""By name: what builds the model, and the shape of its input."""
