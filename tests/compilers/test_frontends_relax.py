"""Relax and nn modules: parameters, open sizes, several batch sizes in one module, errors with places."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, topi
from tvm.relax.frontend import nn

import tvm_backend
from tvm_backend.errors import CompileError, InvalidModel, UnsupportedOperators
from tvm_backend.frontends import imported, prepared

Array = np.ndarray[Any, Any]


class Perceptron(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 2, bias=False)])

    def forward(self, x: nn.Tensor) -> tuple[nn.Tensor, nn.Tensor]:
        hidden = nn.op.relu(self.layers[0](x))
        return self.layers[1](hidden), hidden


def perceptron(seed: int = 0) -> Perceptron:
    model, random = Perceptron(), np.random.default_rng(seed)
    for _, parameter in model.named_parameters():
        parameter.data = random.standard_normal(parameter.shape, np.float32)
    return model


def answer(model: Perceptron, x: Array) -> list[Array]:
    weights = {name: parameter.data.numpy() for name, parameter in model.named_parameters()}
    hidden = np.maximum(x @ weights["layers.0.weight"].T + weights["layers.0.bias"], 0)
    return [hidden @ weights["layers.1.weight"].T, hidden]


def open_module(*, keep: bool = False, padded: bool = False) -> tvm.IRModule:
    """Return a module of relu(x + parameter) for any batch.

    If `keep`, the parameter's value is an attribute, as TVM's frontends leave it. If `padded`, a PrimFunc adds a
    2.0 at both ends of each row.
    """
    builder = relax.BlockBuilder()
    batch = tvm.tirx.Var("batch", "int64")
    x = relax.Var("x", relax.TensorType([batch, 4], "float32"))
    parameter = relax.Var("parameter", relax.TensorType([4], "float32"))
    with builder.function("main", [x, parameter], attrs={"num_input": 1}):
        with builder.dataflow():
            made = builder.emit(relax.op.nn.relu(relax.op.add(x, parameter)))
            if padded:
                made = builder.emit_te(topi.nn.pad, made, (0, 1), (0, 1), 2.0)
            result = builder.emit_output(made)
        builder.emit_func_output(result)
    module = builder.get()
    if keep:
        module["main"] = module["main"].with_attr("params", [tvm.runtime.tensor(np.arange(4, dtype=np.float32))])
    return module


@pytest.mark.usefixtures("softgpu")
def test_nn_module_for_two_batch_sizes() -> None:
    model = perceptron()
    compiled = tvm_backend.compile(model, nn.spec.Tensor(["n", 4], "float32"), batch_sizes=(1, 3), target="compute_80")
    assert compiled.name == "Perceptron"
    assert (compiled.inputs, compiled.outputs) == (("x",), ("output_0", "output_1"))
    for rows in (1, 3):
        x = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        for got, expected in zip(compiled.run_local(x), answer(model, x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("softgpu")
def test_relax_module_with_an_open_batch_and_its_own_functions() -> None:
    module = open_module(keep=True, padded=True)
    before = module.script()
    compiled = tvm_backend.compile(module, batch_sizes=[2, 5], target="compute_80", name="padded")
    assert module.script() == before
    for rows in (2, 5):
        x = np.random.default_rng(rows).standard_normal((rows, 4), np.float32)
        expected = np.pad(np.maximum(x + np.arange(4, dtype=np.float32), 0), ((0, 0), (1, 1)), constant_values=2.0)
        np.testing.assert_allclose(compiled.run_local(x), expected, rtol=1e-6)


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("private", [True, False])
def test_relax_functions_that_call_others(private: bool) -> None:
    x, y, unused = (relax.Var(name, relax.TensorType([4], "float32")) for name in ("x", "y", "unused"))
    builder = relax.BlockBuilder()
    with builder.function("inner", [x], private=private):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    inner = builder.get().get_global_var("inner")
    with builder.function("other", [unused]):
        builder.emit_func_output(builder.emit(relax.op.nonzero(unused)))
    with builder.function("main", [y]):
        once = builder.emit(relax.Call(inner, [y]))
        builder.emit_func_output(builder.emit(relax.op.add(once, builder.emit(relax.Call(inner, [once])))))
    module = builder.get()
    before = module.script()
    compiled = tvm_backend.compile(module, target="ptx")
    assert module.script() == before
    given = np.array([-1, 0, 0.5, 1], np.float32)
    np.testing.assert_allclose(compiled.run_local(given), np.exp(given) + np.exp(np.exp(given)), rtol=1e-5)


def test_a_relax_function_that_calls_itself() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.exp(x)))
    module = builder.get()
    itself = module.get_global_var("main")
    result = relax.Var("result", x.ty)
    again = relax.Call(itself, [x])
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(result, again)])], result)
    module["main"] = relax.Function([x], body, x.ty, True, module["main"].attrs)
    with pytest.raises(UnsupportedOperators) as caught:
        imported(module, None, None, "m")
    (place,) = caught.value.operators
    assert (place.operator, place.where, place.reason) == (
        "main", "binding 'result'", "a call of a function that calls itself",
    )  # fmt: skip


def test_examples_of_nn_modules() -> None:
    model = perceptron()
    for example, sizes, expected in (
        (np.zeros((2, 4), np.float32), None, [2]),
        (np.zeros((2, 4), np.float32), (1, 8), [1, 8]),
        (nn.spec.Tensor(["n", 4], "float32"), None, [1]),
    ):
        assert [entry.batch_size for entry in imported(model, [example], sizes, "p").functions] == expected
    with pytest.raises(InvalidModel, match="example_inputs needs x"):
        imported(model, None, None, "p")
    with pytest.raises(CompileError, match="forward cannot be exported"):
        imported(model, np.zeros((2, 5), np.float32), None, "p")


def test_parameters_without_values() -> None:
    model = perceptron()
    model.layers[1].weight.data = None
    with pytest.raises(InvalidModel, match="without values") as caught:
        imported(model, np.zeros((2, 4), np.float32), None, "p")
    assert caught.value.names == ("layers.1.weight",)
    with pytest.raises(InvalidModel, match="no values") as caught:
        imported(open_module(), None, None, "m")
    assert caught.value.names == ("parameter",)


def test_operators_without_a_kernel_are_reported_by_their_bindings() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4], "float32"))
    with builder.function("main", [x]):
        found = builder.emit(relax.op.nonzero(x), "found")
        builder.emit(relax.op.astype(found, "float32"), "later")
        asked = builder.emit(relax.op.call_pure_packed("ask", x, ty_args=[relax.TensorType([4], "float32")]), "asked")
        builder.emit_func_output(asked)
    with pytest.raises(UnsupportedOperators) as caught:
        imported(builder.get(), None, None, "m")
    places = [(place.operator, place.where) for place in caught.value.operators]
    assert places == [("relax.nonzero", "binding 'found'"), ("relax.call_pure_packed", "binding 'asked'")]


def test_modules_without_a_function_to_take() -> None:
    module = open_module(keep=True)
    two = tvm.IRModule({name: module["main"].with_attr("global_symbol", name) for name in ("one", "two")})
    with pytest.raises(InvalidModel, match="one, two"):
        imported(two, None, None, "m")
    with pytest.raises(InvalidModel, match="none"):
        imported(tvm.IRModule({}), None, None, "m")
    builder = relax.BlockBuilder()
    pair = relax.Var("pair", tvm.ir.TupleType([relax.TensorType([4], "float32")]))
    with builder.function("main", [pair]):
        builder.emit_func_output(builder.emit(relax.TupleGetItem(pair, 0)))
    with pytest.raises(InvalidModel, match="inputs are tensors"):
        imported(builder.get(), None, None, "m")


def content(model: Any, sizes: tuple[int, ...] | None = None) -> str:
    digest = hashlib.sha256()
    prepared(model, np.zeros((2, 4), np.float32), sizes, "m").content(digest)
    return digest.hexdigest()


def test_content_is_structure_and_weights() -> None:
    assert content(perceptron()) == content(perceptron())
    assert len({content(perceptron()), content(perceptron(1)), content(perceptron(), (4,))}) == 3
    closed, padded = open_module(keep=True), open_module(keep=True, padded=True)
    assert content(closed) == content(open_module(keep=True))
    assert content(closed) != content(padded)
