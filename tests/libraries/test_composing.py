"""Kernels of the BLAS library in kTasks: inputs, sums over iterations, and several results in one buffer."""

from __future__ import annotations

import numpy as np
import pytest

import cutlass_blas
import kaas
from cutlass_blas import Epilogue, Matrix
from tests.libraries.harness import Array, random_values

RNG = np.random.default_rng(0)
A, B, C = (random_values(RNG, shape, "float32") for shape in ((9, 7), (7, 5), (9, 5)))
a, b, c = (kaas.Buffer(name, values.shape, "float32") for name, values in (("a", A), ("b", B), ("c", C)))


def run(task: kaas.KTask, **inputs: Array) -> Array:
    """Return a kTask's only output; the given arrays must be exactly its inputs."""
    assert {buffer.name for buffer in task.inputs} == inputs.keys()
    (result,) = kaas.run_local(task, inputs).values()
    return np.asarray(result)


def near(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_each_iteration_adds_a_product() -> None:
    near(run(kaas.KTask(cutlass_blas.gemm(a, b, c, beta=1), [c], iterations=3), a=A, b=B, c=C), C + 3 * (A @ B))


def test_a_sum_that_begins_with_zeros() -> None:
    zeros = kaas.Buffer("c", (9, 5), "float32", init="zero")
    near(run(kaas.KTask(cutlass_blas.gemm(a, b, zeros, beta=1), [zeros]), a=A, b=B), A @ B)


def test_a_second_product_on_top_of_the_first() -> None:
    kernels = [*cutlass_blas.gemm(a, b, c), *cutlass_blas.gemm(a, b, c, alpha=2, beta=1)]
    near(run(kaas.KTask(kernels, [c]), a=A, b=B), 3 * (A @ B))


def test_a_matrix_times_its_own_transpose() -> None:
    square = kaas.Buffer("square", (9, 9), "float32")
    near(run(kaas.KTask(cutlass_blas.gemm(a, a, square, trans_b="t"), [square]), a=A), A @ A.T)


SIDE_BY_SIDE = {
    "a batch": Matrix(kaas.Buffer("both", (9, 10), "float32"), 9, 5, ld=10, count=2, stride=5),
    "a list": [Matrix(kaas.Buffer("both", (9, 10), "float32"), 9, 5, ld=10, offset=at) for at in (0, 5)],
}


@pytest.mark.parametrize("targets", SIDE_BY_SIDE)
def test_results_side_by_side(targets: str) -> None:
    """The results together cover the buffer, so that it is no input, although each result is only a part of it."""
    twice = kaas.Buffer("b", (2, 7, 5), "float32")
    factor = twice if targets == "a batch" else [Matrix(twice, 7, 5, offset=at) for at in (0, 35)]
    task = kaas.KTask(cutlass_blas.gemm(a, factor, SIDE_BY_SIDE[targets]), ["both"])  # type: ignore[arg-type]
    near(run(task, a=A, b=np.stack([B, -B])), np.hstack([A @ B, A @ -B]))


def test_a_part_of_a_buffer_leaves_the_rest() -> None:
    """The other half keeps the given contents, so the buffer is an input."""
    both = kaas.Buffer("both", (9, 10), "float32")
    before = random_values(RNG, (9, 10), "float32")
    found = run(kaas.KTask(cutlass_blas.gemm(a, b, Matrix(both, 9, 5, ld=10, offset=5)), [both]), a=A, b=B, both=before)
    near(found[:, 5:], A @ B)
    assert (found[:, :5] == before[:, :5]).all()


def test_one_matrix_for_every_entry_by_a_stride_of_zero() -> None:
    many, out = kaas.Buffer("b", (3, 7, 5), "float32"), kaas.Buffer("c", (3, 9, 5), "float32")
    values = random_values(RNG, (3, 7, 5), "float32")
    kernels = cutlass_blas.gemm(Matrix(a, 9, 7, count=3, stride=0), many, out)
    near(run(kaas.KTask(kernels, [out]), a=A, b=values), A @ values)


def test_one_scalar_in_two_places() -> None:
    factor = kaas.Scalar("s", "f32")
    task = kaas.KTask(cutlass_blas.gemm(a, b, c, alpha=factor, beta=factor), [c])
    found = kaas.run_local(task, {"a": A, "b": B, "c": C}, scalars={"s": 2})["c"]
    near(found, 2 * (A @ B) + 2 * C)


@pytest.mark.parametrize("beta", [0, 1])
def test_bias_of_pointer_arrays(beta: float) -> None:
    """The bias of column-major matrices has an element for each row."""
    names = ("c", "d")
    outs = [kaas.Buffer(name, (9, 5), "float32") for name in names]
    bias = random_values(RNG, (9,), "float32")
    epilogue = Epilogue(bias=kaas.Buffer("bias", 9, "float32"), activation="relu")
    kernels = cutlass_blas.gemm([a, a], [b, b], outs, beta=beta, layout="column", epilogue=epilogue)
    task = kaas.KTask(kernels, outs)
    given = {"a": A.T.copy().reshape(9, 7), "b": B.T.copy().reshape(7, 5), "bias": bias}
    before = {name: factor * C for name, factor in zip(names, (1, -1), strict=True)}
    given |= {name: before[name].T.copy().reshape(9, 5) for name in names if beta}
    assert {buffer.name for buffer in task.inputs} == given.keys()
    found = kaas.run_local(task, given)
    for name in names:
        expected = np.maximum(A @ B + beta * before[name] + bias[:, None], 0)
        near(found[name].reshape(5, 9).T, expected)


def test_encodings_keep_a_product() -> None:
    """A kTask of such kernels is small, and the same after JSON and messages."""
    task = kaas.KTask(cutlass_blas.gemm(a, b, c, alpha=kaas.Scalar("s", "f32"), beta=2), [c])
    assert len(task.to_msgpack()) < 2000
    assert kaas.KTask.from_json(task.to_json()).key == kaas.KTask.from_msgpack(task.to_msgpack()).key == task.key
