"""Types: those that TVM makes of a node are compared with those that ONNX infers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from tvm import relax

import tvm_backend
from tests.compilers.onnx_cases import model, value
from tvm_backend.errors import UnsupportedOperators
from tvm_backend.frontends import imported, onnx_nodes

node = helper.make_node


def test_another_type_than_onnx_infers_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def widened(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> Any:
        return relax.op.astype(inputs[0], "float64")

    def flat(_builder: Any, inputs: Any, _attrs: Any, _opset: int) -> Any:
        return relax.op.reshape(inputs[0], (8,))

    monkeypatch.setattr(onnx_nodes, "OWN", {"Neg": widened, "Abs": flat})
    nodes = [node("Neg", ["x"], ["n"]), node("Abs", ["x"], ["a"]), node("Exp", ["x"], ["e"])]
    with pytest.raises(UnsupportedOperators) as caught:
        imported(model(nodes, [value("x", [2, 4])], ["n", "a", "e"]), None, None, "bad")
    first, second = caught.value.operators
    assert (first.operator, second.operator) == ("ai.onnx.Neg", "ai.onnx.Abs")
    assert first.reason == 'TVM makes R.Tensor((2, 4), dtype="float64") of it, ONNX float32[2, 4]'
    assert second.reason == 'TVM makes R.Tensor((8,), dtype="float32") of it, ONNX float32[2, 4]'


def test_results_that_nothing_reads_may_have_any_type() -> None:
    nodes = [node("Dropout", ["x"], ["kept", "mask"]), node("Exp", ["kept"], ["y"])]
    assert imported(model(nodes, [value("x", [2])], ["y"]), None, None, "kept").functions[0].outputs == ("y",)
    with pytest.raises(UnsupportedOperators, match=r"ONNX bool\[2\]"):
        imported(model(nodes, [value("x", [2])], ["y", "mask"]), None, None, "kept")


def test_operators_that_fail_only_when_lowered_have_a_place_too() -> None:
    nodes = [node("Exp", ["x"], ["e"]), node("LayerNormalization", ["e", "s"], ["y"], name="norm")]
    made = model(nodes, [value("x", [2, 4], "float64")], ["y"], {"s": np.ones(4)})
    with pytest.raises(UnsupportedOperators, match="float16") as caught:
        tvm_backend.compile(made)
    (place,) = caught.value.operators
    assert (place.operator, place.where) == ("ai.onnx.LayerNormalization", "node 'norm', 2 of 2")
