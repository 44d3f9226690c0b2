"""Relax modules as kTasks: right results, on the software GPU, for what models are made of."""

from __future__ import annotations

import numpy as np
from tvm.relax.frontend import nn

from tests.compilers.lowering_cases import Compiled, bound


class Head(nn.Module):  # type: ignore[misc]  # TVM has no types
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: nn.Tensor) -> tuple[nn.Tensor, ...]:
        x = nn.op.reshape(x, (2, 32))
        y = self.second(nn.op.relu(self.first(x)))
        return nn.op.softmax(y, axis=-1), nn.op.sum(y, axis=1), nn.op.reshape(y, (20,)), y, x


def test_a_network_with_views_and_one_tensor_as_several_results() -> None:
    module, weights = bound(Head(), {"x": (2, 4, 8)})
    compiled = Compiled(module, ["likely", "sums", "flat", "y", "same"], weights)
    x = np.random.default_rng(1).standard_normal((2, 4, 8), dtype=np.float32)
    hidden = np.maximum(x.reshape(2, 32) @ weights["first.weight"].T + weights["first.bias"], 0)
    y = hidden @ weights["second.weight"].T + weights["second.bias"]
    likely, sums, flat, y_again, same = compiled.run(x)
    np.testing.assert_allclose(flat, y.ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(y_again, flat.reshape(2, 10))
    np.testing.assert_array_equal(same, x.reshape(2, 32))
    np.testing.assert_allclose(sums, y.sum(1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(likely, np.exp(y) / np.exp(y).sum(1, keepdims=True), rtol=1e-3, atol=1e-6)
    assert [output.name for output in compiled.variant.task.outputs] == ["likely", "sums", "flat", "y", "same"]
    assert {"first.bias", "second.bias"} < compiled.constants.keys()
