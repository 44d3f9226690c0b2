"""matmul against NumPy's: shapes without a device, then the kernels on the software GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import kaas
from cutlass_blas import Epilogue
from cutlass_blas.errors import (
    BlasError,
    InvalidDtype,
    InvalidOperand,
    InvalidOption,
    OverlappingOperands,
    ShapeMismatch,
)
from cutlass_blas.matmuls import matmul, product_of

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]


@st.composite
def pairs(draw: st.DrawFn, side: int = 4, dimensions: int = 4) -> tuple[Shape, Shape]:
    """Draw shapes that NumPy multiplies."""
    signature = np.matmul.signature
    found = mutually_broadcastable_shapes(signature=signature, max_dims=dimensions, min_side=0, max_side=side)
    a, b = draw(found).input_shapes
    return a, b


def integers(shape: Shape, dtype: str = "float64") -> Array:
    """Return small integers: sums of products are exact."""
    return (np.arange(math.prod(shape)) % 7 - 3).reshape(shape).astype(dtype)


def views(memory: Array, rows: int, columns: int, sizes: Shape, strides: Shape) -> Array:
    """Return a Product's matrices in memory."""
    steps = tuple(8 * step for step in (*strides, columns, 1))
    return np.lib.stride_tricks.as_strided(memory, (*sizes, rows, columns), steps)


@given(pairs())
def test_axes_lead_to_the_matrices_that_numpy_multiplies(shapes: tuple[Shape, Shape]) -> None:
    a, b = (integers(shape) for shape in shapes)
    found = product_of(a.shape, b.shape)
    wanted = a @ b
    assert found.shape == wanted.shape
    assert 0 in wanted.shape or all(axis.size > 1 for axis in found.axes)
    made = np.full(wanted.shape, np.nan)
    sizes = tuple(axis.size for axis in found.axes)
    if wanted.size:
        first = views(a, found.m, found.k, sizes, tuple(axis.a for axis in found.axes))
        second = views(b, found.k, found.n, sizes, tuple(axis.b for axis in found.axes))
        views(made, found.m, found.n, sizes, tuple(axis.c for axis in found.axes))[:] = first @ second
    np.testing.assert_array_equal(made, wanted)


@pytest.mark.parametrize(
    ("a", "b", "m", "axes"),
    [
        ((8, 3, 5), (5, 2), 24, 0),  # one b for all entries: the rows of all entries are one matrix
        ((2, 8, 3, 5), (5, 2), 48, 0),
        ((2, 8, 3, 5), (2, 8, 5, 2), 3, 1),
        ((8, 3, 5), (8, 5, 2), 3, 1),
        ((3, 5), (8, 5, 2), 3, 1),
        ((2, 1, 3, 5), (2, 8, 5, 2), 3, 2),
        ((2, 8, 3, 5), (2, 1, 5, 2), 24, 1),
        ((1, 8, 3, 5), (2, 1, 5, 2), 24, 1),
    ],
)
def test_as_few_axes_as_memory_allows(a: Shape, b: Shape, m: int, axes: int) -> None:
    found = product_of(a, b)
    assert (found.m, len(found.axes)) == (m, axes)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple),
)
def test_shapes_that_numpy_refuses_are_refused(a: Shape, b: Shape) -> None:
    try:
        shape = np.matmul(np.zeros(a), np.zeros(b)).shape
    except ValueError:
        with pytest.raises(ShapeMismatch) as caught:
            product_of(a, b)
        assert caught.value.shapes == {"a": a, "b": b}
    else:
        assert product_of(a, b).shape == shape


def buffers(a: Shape, b: Shape, c: Shape, dtype: str = "float32") -> tuple[kaas.Buffer, kaas.Buffer, kaas.Buffer]:
    return kaas.Buffer("a", a, dtype), kaas.Buffer("b", b, dtype), kaas.Buffer("c", c, dtype)


def test_the_error_names_the_inner_sizes() -> None:
    with pytest.raises(ShapeMismatch, match=r"last dimension of a is 4, and the second to last of b is 5"):
        matmul(*buffers((3, 4), (5, 6), (3, 6)))
    with pytest.raises(ShapeMismatch, match=r"last dimension of a is 4, and the one of b is 5"):
        matmul(*buffers((3, 4), (5,), (3,)))
    with pytest.raises(ShapeMismatch, match=r"\(2,\) and \(3,\) do not broadcast"):
        matmul(*buffers((2, 3, 4), (3, 4, 5), (3, 3, 5)))
    with pytest.raises(ShapeMismatch, match=r"is of shape \(3, 6\), and c of \(6, 3\)"):
        matmul(*buffers((3, 4), (4, 6), (6, 3)))


def test_other_refused_calls() -> None:
    a, b, c = buffers((3, 4), (4, 6), (3, 6))
    refused: list[tuple[type[BlasError], str, tuple[Any, ...], dict[str, Any]]] = [
        (InvalidOperand, "a single element", (kaas.Buffer("a", (), "float32"), b, c), {}),
        (InvalidOperand, "kaas.Buffer", (np.ones((3, 4)), b, c), {}),
        (InvalidDtype, "int64", buffers((3, 4), (4, 6), (3, 6), "int64"), {}),
        (InvalidDtype, "int64", buffers((3, 4), (4,), (3,), "int64"), {}),
        (OverlappingOperands, "'s'", (kaas.Buffer("s", (4, 4), "float32"),) * 3, {}),
        (InvalidOption, "compute", (a, b, c), {"compute": "f16"}),
    ]
    for kind, words, operands, options in refused:
        with pytest.raises(kind, match=words):
            matmul(*operands, **options)


# --- with kernels


def ran(a: Array, b: Array, c: Array | None = None, **options: Any) -> Array:
    shape = np.matmul(a, b).shape
    operands = buffers(a.shape, b.shape, shape, str(a.dtype))
    task = kaas.KTask(matmul(*operands, **options), ["c"])
    given = {"a": a, "b": b} | ({} if c is None else {"c": c})
    wanted = {buffer.name for buffer in task.inputs}
    return kaas.run_local(task, {name: array for name, array in given.items() if name in wanted})["c"]


@settings(max_examples=40, deadline=None)
@given(pairs(side=5, dimensions=3), st.sampled_from([0, 2]))
def test_products_of_any_shapes(shapes: tuple[Shape, Shape], beta: int) -> None:
    a, b = (integers(shape, "float32") for shape in shapes)
    c = integers(np.matmul(a, b).shape, "float32") + np.float32(1)
    np.testing.assert_array_equal(ran(a, b, c, alpha=3, beta=beta), 3 * (a @ b) + beta * c)


@pytest.mark.parametrize(
    ("a", "b"), [((300,), (300,)), ((2, 300), (300,)), ((300,), (300, 2)), ((4, 1, 300), (4, 300, 1))]
)
def test_products_with_vectors_use_gemv(a: Shape, b: Shape) -> None:
    kernels = matmul(*buffers(a, b, np.matmul(np.zeros(a), np.zeros(b)).shape))
    assert all(kernel.symbol.startswith("gemv_") for kernel in kernels)
    np.testing.assert_array_equal(ran(integers(a, "float32"), integers(b, "float32")), integers(a) @ integers(b))


def test_an_epilogue_wants_a_matrix_product() -> None:
    a, b = -integers((3, 4), "float32"), integers((4,), "float32")
    np.testing.assert_array_equal(ran(a, b, epilogue="relu"), np.maximum(a @ b, 0))


@pytest.mark.parametrize(
    ("a", "b"), [((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (4, 3)), ((4,), (2, 4, 3)), ((0, 3, 4), (4,))]
)
def test_a_bias_is_added_along_the_last_dimension_of_the_result(a: Shape, b: Shape) -> None:
    first, second, shift = integers(a, "float32"), integers(b, "float32"), integers((3,), "float32")
    epilogue = Epilogue(kaas.Buffer("bias", 3, "float32"), "relu")
    task = kaas.KTask(matmul(*buffers(a, b, (first @ second).shape), epilogue=epilogue), ["c"])
    made = kaas.run_local(task, {"a": first, "b": second, "bias": shift})["c"]
    np.testing.assert_array_equal(made, np.maximum(first @ second + shift, 0))
