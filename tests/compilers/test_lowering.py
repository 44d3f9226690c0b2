"""Relax modules as kTasks: correct results on the software GPU, and accesses that fit the kernels."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax.frontend import nn

from kaas import In, InOut, Out
from tests.compilers.lowering_cases import Compiled, bound, close, exact, function, noise
from tvm_backend.errors import UnsupportedOperators
from tvm_backend.indices import WITH_NAN


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
    x = noise(2, 4, 8)
    hidden = np.maximum(x.reshape(2, 32) @ weights["first.weight"].T + weights["first.bias"], 0)
    y = hidden @ weights["second.weight"].T + weights["second.bias"]
    likely, sums, flat, y_again, same = compiled.run(x)
    close(flat, y.ravel())
    exact(y_again, flat.reshape(2, 10))
    exact(same, x.reshape(2, 32))
    close(sums, y.sum(1))
    close(likely, np.exp(y) / np.exp(y).sum(1, keepdims=True))
    assert [output.name for output in compiled.variant.task.outputs] == ["likely", "sums", "flat", "y", "same"]
    assert set(compiled.constants) == {"first.weight.folded", "first.bias", "second.weight.folded", "second.bias"}
    exact(compiled.constants["first.weight.folded"], weights["first.weight"].T)


def test_results_that_no_kernel_would_write() -> None:
    ones = np.arange(6, dtype=np.int64).reshape(2, 3)

    def build(bb: relax.BlockBuilder, x: Any, none: Any) -> relax.Tuple:
        less = bb.emit(relax.op.negative(x))
        return relax.Tuple([
            relax.Tuple([x, less]), relax.const(ones, "int64"), relax.Tuple([less, bb.emit(relax.op.add(none, none))]),
            x, none, bb.emit(relax.op.sum(x)),
        ])  # fmt: skip

    compiled = Compiled(function(build, ((2, 3), "float32"), ((0, 4), "float32")), 8)
    x, none = noise(2, 3), np.zeros((0, 4), np.float32)
    for given, expected in zip(compiled.run(x, none), [x, -x, ones, -x, none, x, none, x.sum()], strict=True):
        close(given, expected)
    assert compiled.variant.task.outputs[-1].shape == ()


@pytest.mark.full
def test_sorts_and_scans() -> None:
    def build(bb: relax.BlockBuilder, x: Any) -> relax.Tuple:
        top = bb.emit(relax.op.topk(x, k=5, axis=1))
        one_by_one = [relax.op.sort(x, axis=1), relax.op.cumsum(x, axis=1), relax.op.cumsum(x, axis=0)]
        return relax.Tuple([relax.TupleGetItem(top, 0), relax.TupleGetItem(top, 1), *map(bb.emit, one_by_one)])

    compiled = Compiled(function(build, ((3, 300), "float32")), 5)
    x = noise(3, 300)
    largest, places, ordered, along, down = compiled.run(x)
    exact(largest, -np.sort(-x, 1)[:, :5])
    exact(places, np.argsort(-x, 1)[:, :5].astype(np.int32))
    exact(ordered, np.sort(x, 1))
    close(along, np.cumsum(x, 1))
    close(down, np.cumsum(x, 0))
    (swap,) = {kernel.accesses[1].buffer for kernel in compiled.kernels if kernel.symbol == "sort_kernel_1"}
    assert [type(a) for k in compiled.kernels for a in k.accesses if a.buffer == swap] == [Out, InOut, InOut]


def test_a_scatter_changes_a_part() -> None:
    def build(_: relax.BlockBuilder, data: Any, at: Any, new: Any) -> Any:
        return relax.op.scatter_elements(data, at, new, axis=0)

    module = function(build, ((8, 4), "float32"), ((3, 4), "int64"), ((3, 4), "float32"))
    compiled = Compiled(module)
    data, at, new = noise(8, 4), np.array([[1] * 4, [5] * 4, [7] * 4]), noise(3, 4)
    expected = data.copy()
    expected[[1, 5, 7]] = new
    exact(compiled.run(data, at, new)[0], expected)
    copied, scattered = compiled.kernels
    result = compiled.variant.task.outputs[0]
    assert {type(access) for access in copied.accesses if access.buffer == result} == {Out}
    assert {type(access) for access in scattered.accesses if access.buffer == result} == {InOut}


def test_writes_in_place(scripts: ModuleType) -> None:
    compiled = Compiled(scripts.Cache)
    cache, new, at = noise(8, 4), noise(4), np.array(5)
    for variant, factor in enumerate((2, 1)):
        expected = cache * factor
        expected[5] = new
        exact(compiled.run(cache, new, at, variant=variant)[0], expected)
    append, _ = compiled.variants[1].task.kernels
    assert {a.buffer.name: type(a) for a in append.accesses} == {"cache": InOut, "new": In, "at": In}


def test_functions_share_constants_and_equal_kernels() -> None:
    weights = noise(16, 16)
    bb = relax.BlockBuilder()
    for name, rows in (("one", 1), ("three", 3)):
        x = relax.Var("x", relax.TensorType((rows, 16), "float32"))
        with bb.function(name, [x]):
            with bb.dataflow():
                y = bb.emit(relax.op.matmul(x, relax.op.permute_dims(relax.const(weights))))
                table = bb.emit(relax.op.exp(relax.op.strided_slice(relax.const(weights), [0], [0], [1])))
                result = bb.emit_output(relax.Tuple([bb.emit(relax.op.nn.relu(y)), table]))
            bb.emit_func_output(result)
    compiled = Compiled(bb.get(), 2, {"weights": weights})
    assert "weights.folded" in compiled.constants
    assert sum(np.array_equal(constant, weights.T) for constant in compiled.constants.values()) == 1
    for variant, rows in enumerate((1, 3)):
        y, table = compiled.run(x := noise(rows, 16), variant=variant)
        close(y, np.maximum(x @ weights.T, 0))
        close(table, np.exp(weights[:1]))
    one, three = ({kernel.symbol for kernel in variant.task.kernels} for variant in compiled.variants)
    assert one & three  # kernels that do not depend on the batch
    assert one - three
    assert three - one


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_small_floating_point_numbers(dtype: Any) -> None:
    name = np.dtype(dtype).name
    weights = noise(32, 16).astype(dtype)

    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        return relax.op.nn.relu(bb.emit(relax.op.matmul(x, relax.const(tvm.runtime.tensor(weights), name))))

    compiled = Compiled(function(build, ((8, 32), name)), 1, {"weights": weights})
    x = noise(8, 32).astype(dtype)
    expected = np.maximum(x.astype(np.float32) @ weights.astype(np.float32), 0)
    (given,) = compiled.run(x)
    assert given.dtype == dtype
    np.testing.assert_allclose(given.astype(np.float32), expected, rtol=0.05, atol=0.05)
    exact(compiled.constants["weights"], weights)


def test_integers_are_multiplied_exactly() -> None:
    weights = np.random.default_rng(2).integers(-128, 128, (32, 16), np.int8)

    def build(_: relax.BlockBuilder, x: Any) -> Any:
        return relax.op.matmul(x, relax.const(weights, "int8"), out_dtype="int32")

    compiled = Compiled(function(build, ((8, 32), "int8")), 1, {"weights": weights})
    x = np.random.default_rng(3).integers(-128, 128, (8, 32), np.int8)
    exact(compiled.run(x)[0], x.astype(np.int32) @ weights.astype(np.int32))


def test_storage_is_planned_by_tvm() -> None:
    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        for _ in range(4):
            x = bb.emit(relax.op.nn.softmax(x, axis=1))
        return x

    compiled = Compiled(function(build, ((4, 64), "float32")))
    temporaries = {b for k in compiled.kernels for b in k.writes} - {*compiled.variant.task.outputs}
    assert {(buffer.dtype, buffer.shape) for buffer in temporaries} == {("uint8", (4 * 64 * 4,))}
    assert len(temporaries) == 2  # three results before the last, never more than two at a time
    assert all(type(k.args[0]) is Out for k in compiled.kernels)


def test_normalisation_is_folded_into_the_convolution() -> None:
    scale, shift, mean, spread = noise(4, 8)
    spread = np.abs(spread) + 0.5
    filters = noise(8, 3, 3, 3)

    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        y = bb.emit(relax.op.nn.conv2d(x, relax.const(filters), padding=1))
        statistics = [relax.const(value) for value in (scale, shift, mean, spread)]
        normal = bb.emit(relax.op.nn.batch_norm(y, *statistics, axis=1, epsilon=1e-5, training=False))
        return relax.op.nn.relu(bb.emit(relax.TupleGetItem(normal, 0)))

    named = {"filters": filters, "scale": scale, "shift": shift, "mean": mean, "spread": spread}
    compiled = Compiled(function(build, ((1, 3, 8, 8), "float32")), 1, named)
    assert len(compiled.kernels) == 1
    assert set(compiled.constants) == {"filters.folded", "shift.folded"}
    x = noise(1, 3, 8, 8)
    padded = np.pad(x[0], ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    y = np.einsum("chwij,ocij->ohw", windows, filters)
    column = (slice(None), None, None)
    expected = np.maximum((y - mean[column]) / np.sqrt(spread + 1e-5)[column] * scale[column] + shift[column], 0)
    close(compiled.run(x)[0], expected[None])


def test_shapes_that_depend_on_values_are_listed() -> None:
    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        found = bb.emit(relax.op.unique(x))
        places = bb.emit(relax.op.nonzero(x))
        return relax.Tuple([bb.emit(relax.op.add(found, found)), places])

    with pytest.raises(UnsupportedOperators) as caught:
        Compiled(function(build, ((30,), "int64")), 2)
    assert [place.operator for place in caught.value.operators] == ["relax.unique", "relax.nonzero"]
    assert all(place.where.startswith("main, ") for place in caught.value.operators)


def test_operators_that_run_on_the_host_are_listed(scripts: ModuleType) -> None:
    with pytest.raises(UnsupportedOperators) as caught:
        Compiled(scripts.Branch, 2)
    assert [place.operator for place in caught.value.operators] == ["a.library.of.its.own", "relax.If"]


def test_a_product_of_flattened_matrices_is_fused_with_the_next_operators() -> None:
    weights, bias, other = noise(32, 48), noise(48), noise(2, 6, 48)

    def build(bb: relax.BlockBuilder, x: Any) -> relax.Tuple:
        y = bb.emit(relax.op.matmul(bb.emit(relax.op.reshape(x, (12, 32))), relax.const(weights)))
        y = bb.emit(relax.op.reshape(bb.emit(relax.op.add(relax.const(bias), y)), (2, 6, 48)))
        y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.broadcast_to(y, (2, 6, 48)))))
        return relax.Tuple([y, bb.emit(relax.op.reshape(bb.emit(relax.op.multiply(y, relax.const(other))), (12, 48)))])

    compiled = Compiled(function(build, ((2, 6, 32), "float32")), 2, {"weights": weights, "bias": bias})
    assert len(compiled.kernels) == 2
    assert compiled.kernels[0].symbol == "fused_matmul_add_relu_kernel"
    x = noise(2, 6, 32)
    y = np.maximum(x @ weights + bias, 0)
    first, second = compiled.run(x)
    np.testing.assert_allclose(first, y, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(second, (y * other).reshape(12, 48), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_nothing_is_read_from_beyond_a_tensor(dtype: str) -> None:
    def build(bb: relax.BlockBuilder, x: Any, at: Any) -> relax.Tuple:
        known = relax.const(np.array([-1, 0], np.int64))
        picked = bb.emit(relax.op.index_tensor(x, [at, at]))
        return relax.Tuple([bb.emit(relax.op.take(x, at, axis=1)), bb.emit(relax.op.take(x, known, axis=1)), picked])

    compiled = Compiled(function(build, ((3, 4), dtype), ((4,), "int64")), 3)
    x = np.arange(12).reshape(3, 4).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    taken, known, picked = compiled.run(x, np.array([-4, -1, 4, -1000]))
    expected = x[:, [0, 3, 3, 0]]
    if dtype in WITH_NAN:
        expected[:, 2:] = np.nan
    exact(taken, expected)
    exact(known, x[:, [3, 0]])
    exact(picked, x[[0, 2, 2, 0], [0, 3, 3, 0]])


def test_known_indices_are_compiled_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    """TVM would warn on stderr about each gather without a check of bounds; a successful compilation writes nothing."""

    def build(bb: relax.BlockBuilder, x: Any) -> relax.Tuple:
        known = relax.const(np.array([-1, 0], np.int64))
        last = relax.const(-1, "int64")
        return relax.Tuple([bb.emit(relax.op.take(x, known, axis=1)), bb.emit(relax.op.take(x, last, axis=1))])

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    several, one = Compiled(function(build, ((3, 4), "float32")), 2).run(x)
    exact(several, x[:, [3, 0]])
    exact(one, x[:, 3])
    assert "Warning" not in capfd.readouterr().err


def test_means_of_one_element() -> None:
    def build(bb: relax.BlockBuilder, x: Any) -> Any:
        for _ in range(2):
            mean = bb.emit(relax.op.mean(x, axis=[1], keepdims=True))
            x = bb.emit(relax.op.tanh(bb.emit(relax.op.subtract(x, mean))))
        return x

    exact(Compiled(function(build, ((3, 1, 1), "float32"))).run(noise(3, 1, 1))[0], np.zeros((3, 1, 1), np.float32))
