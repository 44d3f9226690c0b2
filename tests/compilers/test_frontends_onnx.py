"""ONNX models: operators of old and new opsets against ONNX's reference, names, sizes, errors with places."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm  # noqa: F401 - before the software GPU's driver is loaded: TVM would take it for NVIDIA's
from onnx import helper
from onnx.reference import ReferenceEvaluator

import tvm_backend
from kaas import errors as kaas_errors
from tests.compilers.onnx_cases import Array, model, perceptron, perceptron_result, value
from tvm_backend.errors import InvalidModel, UnsupportedOperators
from tvm_backend.frontends import imported
from tvm_backend.frontends.imported import Imported

node = helper.make_node


def random(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


IMAGE = {"x": random(2, 4, 8, 8)}
ROWS = {"x": random(3, 8)}
SCALE = {"s": random(4), "b": random(4)}

NEW: list[tuple[str, Sequence[onnx.NodeProto], dict[str, Array]]] = [
    ("conv", [node("Conv", ["image", "conv_w", "conv_b"], ["a"], pads=[1] * 4, strides=[2, 2]),
              node("BatchNormalization", ["a", "s", "b", "m", "v"], ["conv"])],
     {"conv_w": random(4, 4, 3, 3), "conv_b": random(4), "m": random(4), "v": np.abs(random(4)) + 1, **SCALE}),
    ("depthwise", [node("Conv", ["image", "depthwise_w"], ["depthwise"], auto_pad="SAME_UPPER", group=4)],
     {"depthwise_w": random(4, 1, 3, 3)}),
    ("pooled", [node("MaxPool", ["image"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
                node("GlobalAveragePool", ["p"], ["g"]), node("Flatten", ["g"], ["pooled"])], {}),
    ("gemm", [node("Gemm", ["rows", "gemm_w"], ["gemm"], transB=1, alpha=0.5)], {"gemm_w": random(5, 8)}),
    ("norm", [node("LayerNormalization", ["rows", "norm_s"], ["n"]), node("Gelu", ["n"], ["norm"])],
     {"norm_s": random(8)}),
    ("groups", [node("GroupNormalization", ["image", "s", "b"], ["groups"], num_groups=2)], SCALE),
    ("softmax", [node("Softmax", ["rows"], ["softmax"], axis=0)], {}),
    ("looked_up", [node("Gather", ["table", "tokens"], ["looked_up"])], {"table": random(5, 6)}),
    ("parts", [node("Split", ["rows", "three_five"], ["l", "r"], axis=1), node("ReduceMax", ["l", "one"], ["lm"]),
               node("Concat", ["lm", "r"], ["parts"], axis=1)],
     {"three_five": np.array([3, 5]), "one": np.array([1])}),
    ("backwards", [node("Slice", ["rows", "last", "first", "one", "minus_two"], ["backwards"])],
     {"last": np.array([-1]), "first": np.array([-6]), "one": np.array([1]), "minus_two": np.array([-2])}),
    ("sized", [node("Shape", ["image"], ["shape"]), node("Gather", ["shape", "zero"], ["batch"]),
               node("Mul", ["batch", "two"], ["double"]), node("Concat", ["double", "minus_one"], ["to"], axis=0),
               node("Reshape", ["image", "to"], ["sized"])],
     {"zero": np.array([0]), "two": np.array([2]), "minus_one": np.array([-1])}),
    ("chosen", [node("Greater", ["rows", "half"], ["more"]), node("Where", ["more", "rows", "half"], ["chosen"])],
     {"half": np.array(0.5, np.float32)}),
    ("short", [node("Cast", ["rows"], ["h"], to=onnx.TensorProto.FLOAT16), node("Mul", ["h", "h"], ["hh"]),
               node("Cast", ["hh"], ["short"], to=onnx.TensorProto.FLOAT)], {}),
    ("attended", [node("Attention", ["q", "q", "q"], ["attended"])], {"q": random(1, 2, 4, 8)}),
    ("celu", [node("Celu", ["rows"], ["celu"], alpha=2.0)], {}),
    ("counted", [node("ArgMax", ["rows"], ["counted"], axis=1)], {}),
    ("negated", [node("Not", ["flags"], ["negated"])], {}),
    ("above", [node("IsInf", ["extremes"], ["above"], detect_negative=0)], {}),
    ("below", [node("IsInf", ["extremes"], ["below"], detect_positive=0)], {}),
    ("one_hot", [node("OneHot", ["tokens", "depth", "off_on"], ["one_hot"], axis=1)],
     {"depth": np.array(5), "off_on": np.array([-1, 0.5], np.float32)}),
    ("one_of_given", [node("OneHot", ["tokens", "depth", "numbers"], ["one_of_given"])], {}),
    ("whole_power", [node("Pow", ["numbers", "numbers"], ["whole_power"])], {}),
    ("root", [node("Pow", ["numbers", "half"], ["root"])], {}),
    ("real_power", [node("Pow", ["extremes", "powers"], ["real_power"])], {"powers": np.array([3, 1, 2, 0])}),
    ("nearest", [node("Resize", ["rows", "", "scales"], ["nearest"], nearest_mode="ceil")],
     {"scales": np.array([1.5, 0.6], np.float32)}),
    ("linear", [node("Resize", ["image", "", "", "sizes"], ["linear"], mode="linear", axes=[3, 2])],
     {"sizes": np.array([3, 9])}),
    ("smooth", [node("Resize", ["rows", "", "scales"], ["smooth"], mode="cubic", antialias=1)], {}),
    ("cropped", [node("Resize", ["rows", "window", "scales"], ["cropped"], mode="linear", extrapolation_value=9.0,
                      coordinate_transformation_mode="tf_crop_and_resize")],
     {"window": np.array([-0.5, 0.1, 0.8, 1.2], np.float32)}),
    ("numbers_resized", [node("Resize", ["numbers", "", "twice"], ["numbers_resized"], mode="linear")],
     {"twice": np.array([2.0], np.float32)}),
]  # fmt: skip
"""Outputs by name, with the nodes that make them from the test's inputs and constants."""


@pytest.mark.usefixtures("softgpu")
@pytest.mark.full
def test_new_operators_equal_the_reference() -> None:
    given = {
        "image": random(2, 4, 8, 8),
        "rows": random(3, 8),
        "tokens": np.array([[1, 2], [4, -1]]),
        "flags": np.array([True, False]),
        "numbers": np.array([3, 9]),
        "extremes": np.array([-2, np.inf, -np.inf, np.nan], np.float32),
    }
    inputs = [value(name, array.shape, str(array.dtype)) for name, array in given.items()]
    constants = {name: array for _, _, each in NEW for name, array in each.items()}
    nodes = [each for _, some, _ in NEW for each in some]
    made = model(nodes, inputs, [name for name, _, _ in NEW], constants, opset=23)
    compiled = tvm_backend.compile(made)
    assert_equal(compiled.run_local(**given), ReferenceEvaluator(made).run(None, given))


@pytest.mark.usefixtures("softgpu")
def test_old_operators_keep_their_meaning() -> None:
    x = random(2, 1, 3, 4)
    nodes = [
        node("Squeeze", ["x"], ["squeezed"], axes=[1]),
        node("ReduceMean", ["squeezed"], ["mean"], axes=[2], keepdims=0),
        node("Clip", ["mean"], ["clipped"], min=-0.25, max=0.25),
        node("Dropout", ["squeezed"], ["kept"]),
        node("Softmax", ["kept"], ["softmax"], axis=1),  # over all axes from the second on, before opset 13
    ]
    compiled = tvm_backend.compile(model(nodes, [value("x", x.shape)], ["clipped", "softmax"], opset=9))
    flat = np.exp(x.reshape(2, 12))
    softmax = (flat / flat.sum(1, keepdims=True)).reshape(2, 3, 4)
    assert_equal(compiled.run_local(x), [x[:, 0].mean(2).clip(-0.25, 0.25), softmax])


def assert_equal(got: Any, expected: Any) -> None:
    for one, other in zip(got, expected, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("softgpu")
def test_a_variant_for_each_batch_size_under_the_models_own_names(tmp_path: Path) -> None:
    made = perceptron("N", "in put.1")
    onnx.save(made, tmp_path / "a model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    made = perceptron("N", "in put.1")  # made again: onnx.save has moved the first one's data to a file
    compiled = tvm_backend.compile(tmp_path / "a model.onnx", batch_sizes=(8, 1))
    assert compiled.name == "a_model"
    assert [variant.inputs[0].shape for variant in compiled.variants] == [(1, 4), (8, 4)]
    assert (compiled.inputs, compiled.outputs) == (("in put.1",), ("y/0",))
    assert set(compiled.constants) == {"fc.weight", "fc.bias"}
    for rows in (1, 8):
        x = random(rows, 4)
        np.testing.assert_allclose(compiled.run_local(x), perceptron_result(made, x), rtol=1e-5, atol=1e-6)


def shapes(made: Imported) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes of each function's inputs."""
    functions = {entry.function: made.module[entry.function] for entry in made.functions}
    return {
        name: [tuple(int(size) for size in parameter.ty.shape) for parameter in function.params]
        for name, function in functions.items()
    }


def test_sizes_are_taken_from_batch_sizes_and_examples() -> None:
    nodes = [node("Add", ["a", "b"], ["y"])]
    made = model(nodes, [value("a", [None, "length"]), value("b", [None, "length"])], ["y"])
    given = imported(made, {"b": np.zeros((3, 7), np.float32)}, None, "sum")
    assert shapes(given) == {"main": [(3, 7), (3, 7)]}
    given = imported(made, [np.zeros((3, 7), np.float32)], (2, 5), "sum")
    assert shapes(given) == {"main_2": [(2, 7), (2, 7)], "main_5": [(5, 7), (5, 7)]}
    with pytest.raises(InvalidModel, match="leaves length open") as caught:
        imported(made, None, (1,), "sum")
    assert caught.value.names == ("length",)


def test_initializers_that_are_inputs_too_are_constants() -> None:
    made = perceptron(2)
    made.graph.input.append(value("fc.bias", [3]))
    given = imported(made, None, None, "perceptron")
    assert given.functions[0].inputs == ("x",)
    assert set(given.constants) == {"fc.weight", "fc.bias"}


def test_a_branch_on_a_known_condition_is_taken() -> None:
    branches = {
        f"{name}_branch": helper.make_graph([node(kind, ["x"], [name])], name, [], [value(name, [2])])
        for name, kind in (("then", "Relu"), ("else", "Neg"))
    }
    nodes = [node("Shape", ["x"], ["shape"]), node("Equal", ["shape", "two"], ["condition"]),
             node("If", ["condition"], ["chosen"], **branches), node("Exp", ["chosen"], ["y"])]  # fmt: skip
    script = imported(model(nodes, [value("x", [2])], ["y"], {"two": np.array([2])}), None, None, "m").module.script()
    assert "relu" in script
    assert "negative" not in script


def test_functions_of_the_model_are_laid_out() -> None:
    made = perceptron(1)
    made.graph.node.append(node("Twice", ["y/0"], ["twice"], domain="mine"))
    opsets = [helper.make_opsetid("", 17)]
    made.functions.append(helper.make_function("mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], opsets))
    made.graph.output[0].name = "twice"
    assert imported(made, None, None, "twice").functions[0].outputs == ("twice",)


def test_one_error_lists_all_that_cannot_become_kernels() -> None:
    nodes = [
        node("NonZero", ["x"], ["found"], name="search"),
        node("Cast", ["found"], ["y"], to=onnx.TensorProto.FLOAT),
        node("Relu", ["x"], ["r"], domain="mine"),
        node("MatMul", ["x", "x"], ["product"], name="product"),
        node("GRU", ["r", "w", "w"], ["z"]),
    ]
    made = model(nodes, [value("x", [2, 4])], ["y", "z", "product"], {"w": random(4)})
    with pytest.raises(UnsupportedOperators) as caught:
        imported(made, None, None, "bad")
    places = caught.value.operators
    assert [(place.operator, place.where) for place in places] == [
        ("ai.onnx.NonZero", "node 'search', 1 of 5"),
        ("mine.Relu", "node making 'r', 3 of 5"),
        ("ai.onnx.MatMul", "node 'product', 4 of 5"),
        ("ai.onnx.GRU", "node making 'z', 5 of 5"),
    ]
    assert "depends on values" in places[0].reason
    assert "reduction" in places[2].reason
    assert all(str(place) in caught.value.message for place in places)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.message, again.operators) == (UnsupportedOperators, caught.value.message, places)


def _broken(change: str) -> Any:
    made = perceptron(2)
    match change:
        case "no graph":
            made.ClearField("graph")
        case "reads nothing":
            made.graph.node[0].input[0] = "nowhere"
        case "no such output":
            made.graph.output[0].name = "nowhere"
        case "old":
            made.ir_version = 2
        case "text":
            made.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
        case "torn":
            made.graph.initializer[0].raw_data = b"abc"
        case "elsewhere":
            made.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    return made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("no graph", "no graph"), ("reads nothing", "reads 'nowhere'"), ("no such output", "nothing makes"),
        ("old", "IR version 2"), ("text", "no tensor of numbers"), ("torn", "cannot be read"),
        ("elsewhere", "give the model's path"),
    ],
)  # fmt: skip
def test_models_that_onnx_would_not_take(change: str, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        imported(_broken(change), None, None, "broken")


@pytest.mark.parametrize(
    ("examples", "sizes", "message"),
    [
        ({"y": random(2, 4)}, None, "no input y"), ([random(2, 4)] * 2, None, "has 1 inputs"),
        ([3.0], None, "is an array"), ([random(2, 5)], None, "does not take"),
        ([random(2, 4).astype(np.float64)], None, "does not take"), (None, (1, 2), "takes a batch of 2 only, not of 1"),
    ],
)  # fmt: skip
def test_examples_and_sizes_that_do_not_fit(examples: Any, sizes: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(InvalidModel, match=message):
        imported(perceptron(2), examples, sizes, "perceptron")


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="cannot be read") as caught:
        imported(tmp_path / "none.onnx", None, None, "none")
    assert caught.value.path == str(tmp_path / "none.onnx")
    for content in (b"", b"this is no model", b"\x08\x07"):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(InvalidModel, match="not an ONNX model"):
            imported(tmp_path / "bad.onnx", None, None, "bad")
    onnx.save(perceptron(), tmp_path / "good.onnx", save_as_external_data=True, location="gone", size_threshold=0)
    (tmp_path / "gone").unlink()
    with pytest.raises(InvalidModel):
        imported(tmp_path / "good.onnx", None, None, "good")
    with pytest.raises(kaas_errors.InvalidModel, match="no model"):
        imported(3, None, None, "three")
