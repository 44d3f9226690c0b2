"""Batches: strided, with a shared operand, by pointer arrays, empty, and larger than a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import cutlass_blas
import kaas
from cutlass_blas import gemms
from tests.libraries.harness import (
    SCALARS,
    Array,
    assert_close,
    bound,
    multiply,
    op,
    place,
    random_values,
    run,
    scipy_gemm,
)

few = settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
SIZES = st.sampled_from([1, 2, 5, 8, 31, 33, 65]) | st.integers(0, 70)


def stored(rows: int, columns: int, trans: str) -> tuple[int, int]:
    return (rows, columns) if trans == "n" else (columns, rows)


def expected_of(a: Array, b: Array, c: Array, alpha: Any, beta: Any, ops: str) -> tuple[Array, Array]:
    """Return SciPy's result and its bound for each matrix of a batch; 2-D operands are shared."""
    count = c.shape[0]
    a, b = (one if one.ndim == 3 else np.broadcast_to(one, (count, *one.shape)) for one in (a, b))
    answers = [scipy_gemm(a[i], b[i], c[i], alpha, beta, *ops) for i in range(count)]
    allowed = [bound(op(a[i], ops[0]), op(b[i], ops[1]), c[i], alpha, beta, c.dtype.name) for i in range(count)]
    return np.reshape(answers, c.shape), np.reshape(allowed, c.shape)


@given(
    count=st.integers(0, 4),
    m=SIZES,
    n=SIZES,
    k=SIZES,
    ops=st.sampled_from(["nn", "nt", "tn"]),
    layout=st.sampled_from(["row", "column"]),
    shared=st.sampled_from(["", "", "a", "b", "ab"]),
    gaps=st.tuples(*[st.sampled_from([0, 0, 5])] * 3),
    pads=st.tuples(*[st.sampled_from([0, 0, 2])] * 3),
    beta=st.sampled_from([0, 1, -0.5]),
)
@few
def test_strided(
    count: int,
    m: int,
    n: int,
    k: int,
    ops: str,
    layout: str,
    shared: str,
    gaps: tuple[int, ...],
    pads: tuple[int, ...],
    beta: float,
) -> None:
    rng = np.random.default_rng(m + n + k)
    a, b = (
        random_values(rng, stored(*shape, trans) if name in shared else (count, *stored(*shape, trans)), "float32")
        for name, shape, trans in (("a", (m, k), ops[0]), ("b", (k, n), ops[1]))
    )
    c = random_values(rng, (count, m, n), "float32")
    placed = [
        place(name, values, layout=layout, pad=pad, gap=gap if values.ndim == 3 else 0)
        for name, values, pad, gap in zip("abc", (a, b, c), pads, gaps, strict=True)
    ]
    found = multiply(*placed, trans_a=ops[0], trans_b=ops[1], layout=layout, beta=beta, alpha=2)
    assert_close(found, *expected_of(a, b, c, 2, beta, ops))


@pytest.mark.parametrize("by_name", [False, True], ids=["values", "scalars"])
@pytest.mark.parametrize(
    ("dtype", "ops"), [("float32", "nn"), ("float32", "nt"), pytest.param("complex64", "cn", marks=pytest.mark.full)]
)
def test_pointer_arrays(dtype: str, ops: str, by_name: bool) -> None:
    rng = np.random.default_rng(3)
    m, n, k, count = 17, 9, 12, 5
    # an operand has one leading dimension, so that the pads do not vary here
    a, b, c = (
        [place(f"{name}{i}", random_values(rng, shape, dtype), offset=4 * i, after=i) for i in range(count)]
        for name, shape in (("a", stored(m, k, ops[0])), ("b", stored(k, n, ops[1])), ("c", (m, n)))
    )
    numbers = {"alpha": 2, "beta": -1}
    options: dict[str, Any] = dict(numbers)
    if by_name:
        options = {name: kaas.Scalar(name, SCALARS[dtype]) for name in numbers} | {"scalars": numbers}
    found = multiply(a, b, c, trans_a=ops[0], trans_b=ops[1], **options)
    before = [np.stack([one.elements(one.memory) for one in group]) for group in (a, b, c)]
    assert_close(np.stack(found), *expected_of(before[0], before[1], before[2], 2, -1, ops))


def test_pointer_arrays_may_name_one_matrix_often() -> None:
    """A shared matrix, in all entries of a list or alone with lists; also views of one buffer, C's among them."""
    rng = np.random.default_rng(4)
    a, b = random_values(rng, (3, 5, 6), "float32"), random_values(rng, (6, 7), "float32")
    whole, shared = kaas.Buffer("a", (3, 5, 6), "float32"), kaas.Buffer("b", (6, 7), "float32")
    out = kaas.Buffer("c", (3, 5, 7), "float32")
    views = [cutlass_blas.Matrix(whole, 5, 6, offset=30 * i) for i in (2, 0, 1)]
    targets = [cutlass_blas.Matrix(out, 5, 7, offset=35 * i) for i in range(3)]
    for second in ([shared] * 3, shared):
        kernels = cutlass_blas.gemm(views, second, targets)
        given = {"a": a, "b": b, "c": np.zeros((3, 5, 7), np.float32)}
        found = run(kernels, given, [out])["c"]
        np.testing.assert_allclose(found, a[[2, 0, 1]] @ b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{"alpha": 0, "beta": 2}, {"split_k": 2}, {"beta": 1, "epilogue": "bias"}])
@pytest.mark.parametrize("listed", [[True, False], [False, True]])
def test_a_list_of_one_is_that_one(listed: list[bool], options: dict[str, Any]) -> None:
    """A list of one and a single matrix share a remembered plan, whichever came first."""
    rng = np.random.default_rng(8)
    a, b, c = (random_values(rng, shape, "float32") for shape in ((3, 1100), (1100, 5), (3, 5)))
    bias = kaas.Buffer("bias", 5, "float32")
    extra = {"bias": np.ones(5, np.float32)} if "epilogue" in options else None
    options = options | {"epilogue": cutlass_blas.Epilogue(bias)} if extra else options
    gemms.forget()
    for as_list in listed:
        placed = [place("a", a), place("b", b), place("c", c)]
        given: Any = [[one] for one in placed] if as_list else placed
        found = multiply(*given, extra=extra, **options)
        alpha, beta = options.get("alpha", 1), options.get("beta", 0)
        wanted = alpha * (a.astype(float) @ b) + beta * c + (1 if extra else 0)
        np.testing.assert_allclose(found[0] if as_list else found, wanted, rtol=1e-3, atol=1e-3)


def test_a_batch_of_none() -> None:
    """Lists cannot be empty, since they would have no dtype; a buffer with no entries is one launch without effect."""
    a, b, c = (np.empty((0, *shape), np.float32) for shape in ((3, 4), (4, 5), (3, 5)))
    placed = [place(name, values) for name, values in zip("abc", (a, b, c), strict=True)]
    assert multiply(*placed).shape == (0, 3, 5)
    with pytest.raises(cutlass_blas.BlasError):
        cutlass_blas.gemm([], [], [])


def test_more_than_a_grid_holds() -> None:
    """A grid's third dimension ends at 65535: the rest takes further launches."""
    count = 65535 + 3
    rng = np.random.default_rng(6)
    a, b = rng.integers(-9, 9, (1, 2)).astype(np.float32), rng.integers(-9, 9, (count, 2, 1)).astype(np.float32)
    one, many = kaas.Buffer("a", a.shape, "float32"), kaas.Buffer("b", b.shape, "float32")
    c = kaas.Buffer("c", (count, 1, 1), "float32")
    kernels = cutlass_blas.gemm(one, many, c)
    assert len(kernels) > 1
    assert all(kernel.grid[2] <= 65535 for kernel in kernels)
    found = run(kernels, {"a": a, "b": b}, [c])["c"]
    assert (found == a @ b).all()


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_equals_its_products_one_by_one(count: int) -> None:
    """The results are bitwise equal: the same kernel sums in the same order."""
    rng = np.random.default_rng(9)
    a, b = random_values(rng, (count, 33, 40), "float32"), random_values(rng, (count, 40, 31), "float32")
    c = np.empty((count, 33, 31), np.float32)
    together = multiply(place("a", a), place("b", b), place("c", c), split_k=1)
    alone: Sequence[Array] = [
        multiply(place("a", a[i]), place("b", b[i]), place("c", c[i]), split_k=1) for i in range(count)
    ]
    assert (together == np.stack(alone)).all()
