"""Random small networks against NumPy: the results do not depend on TVM's fusion, planning and schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.compilers.lowering_cases import Compiled, function, noise
from tvm_backend.constants import Array

op = relax.op


@dataclass(frozen=True)
class Layer:
    """An operator in Relax and in NumPy: both map a matrix to a matrix, and a stack of matrices to a stack."""

    name: str
    relax: Callable[[Any], Any]
    numpy: Callable[[Array], Array]

    def __repr__(self) -> str:
        return self.name


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def normal(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


def weights(rows: int) -> Array:
    return noise(rows, 24) / np.float32(np.sqrt(rows))


def norm(x: Any) -> Any:
    width = int(x.ty.shape.values[-1])
    ones, zeros = relax.const(np.ones(width, np.float32)), relax.const(np.zeros(width, np.float32))
    return op.nn.layer_norm(x, ones, zeros, axes=[-1])


def halves(x: Array) -> Array:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 : x.shape[-1] // 2 * 2]
    return first * second


def halves_in_relax(x: Any) -> Any:
    width = int(x.ty.shape.values[-1]) // 2
    first, second = (op.strided_slice(x, [2], [n * width], [n * width + width]) for n in (0, 1))
    return op.multiply(first, second)


LAYERS = (
    Layer("relu", op.nn.relu, lambda x: np.maximum(x, 0)),
    Layer("tanh", op.tanh, np.tanh),
    Layer("softmax", lambda x: op.nn.softmax(x, axis=-1), softmax),
    Layer("norm", norm, normal),
    Layer("turned", lambda x: op.permute_dims(x, [0, 2, 1]), lambda x: x.transpose(0, 2, 1)),
    Layer("dense", lambda x: op.matmul(x, relax.const(weights(int(x.ty.shape.values[-1])))),
          lambda x: x @ weights(x.shape[-1])),
    Layer("square", lambda x: op.matmul(x, op.permute_dims(x, [0, 2, 1])), lambda x: x @ x.transpose(0, 2, 1) ),
    Layer("mean", lambda x: op.subtract(x, op.mean(x, axis=[1], keepdims=True)),
          lambda x: x - x.mean(1, keepdims=True)),
    Layer("largest", lambda x: op.max(x, axis=[-1], keepdims=True), lambda x: x.max(-1, keepdims=True)),
    Layer("twice", lambda x: op.concat([x, op.negative(x)], axis=1), lambda x: np.concatenate([x, -x], 1)),
    Layer("halves", halves_in_relax, halves),
    Layer("stacked", lambda x: op.reshape(x, (1, -1, int(x.ty.shape.values[-1]))),
          lambda x: x.reshape(1, -1, x.shape[-1])),
)  # fmt: skip


def usable(layer: Layer, x: Array) -> bool:
    return x.size <= 4096 and (layer.name != "halves" or x.shape[-1] > 1)


@settings(max_examples=settings().max_examples // 10, phases=[Phase.generate])
@given(
    layers=st.lists(st.sampled_from(LAYERS), min_size=4, max_size=9),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(2, 40)),
    taps=st.sets(st.integers(0, 8), max_size=2),
)
def test_random_networks(layers: list[Layer], shape: tuple[int, int, int], taps: set[int]) -> None:
    """The results of the layers in `taps` are results of the network too."""
    x = noise(*shape)
    expected = [x]
    used = []
    for layer in layers:
        if usable(layer, expected[-1]):
            used.append(layer)
            expected.append(np.asarray(layer.numpy(expected[-1]), np.float32))

    def build(builder: relax.BlockBuilder, value: Any) -> relax.Tuple:
        values = [value]
        for layer in used:
            values.append(builder.emit(builder.normalize(layer.relax(values[-1]))))
        return relax.Tuple([values[-1], *(values[n] for n in sorted(taps) if n < len(values))])

    wanted = [expected[-1], *(expected[n] for n in sorted(taps) if n < len(expected))]
    compiled = Compiled(function(build, (shape, "float32")), len(wanted))
    for result, right in zip(compiled.run(x), wanted, strict=True):
        scale = max(1.0, float(np.abs(right).max()))
        np.testing.assert_allclose(result / scale, right / scale, rtol=1e-3, atol=1e-3)
