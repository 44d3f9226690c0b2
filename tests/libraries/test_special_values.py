"""NaN and infinities are treated as in BLAS: C is not read if beta is 0, nor are A and B if alpha is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cutlass_blas
import kaas
from tests.libraries.harness import (
    SCALARS,
    Array,
    Placed,
    is_complex,
    multiply,
    place,
    random_values,
    run,
    scipy_gemm,
)

NAN, INF = np.nan, np.inf
DTYPES = ("float32", "complex64")
M, N, K = 9, 10, 11


def operands(dtype: str) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(5)
    return tuple(random_values(rng, shape, dtype) for shape in ((M, K), (K, N), (M, N)))  # type: ignore[return-value]


def scalars(dtype: str, by_name: bool, **values: Any) -> dict[str, Any]:
    """Return alpha and beta as options of multiply, as values or as scalars of the invocation."""
    if not by_name:
        return values
    return {name: kaas.Scalar(name, SCALARS[dtype]) for name in values} | {"scalars": values}


@pytest.mark.parametrize("by_name", [False, True], ids=["values", "scalars"])
@pytest.mark.parametrize("pad", [0, 3], ids=["whole", "view"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_beta_zero_does_not_read_c(dtype: str, pad: int, by_name: bool) -> None:
    a, b, c = operands(dtype)
    c[:] = NAN
    found = multiply(place("a", a), place("b", b), place("c", c, pad=pad), **scalars(dtype, by_name, alpha=1, beta=0))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("by_name", [False, True], ids=["values", "scalars"])
@pytest.mark.parametrize("beta", [0, 1, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_alpha_zero_does_not_read_a_and_b(dtype: str, beta: float, by_name: bool) -> None:
    a, b, c = operands(dtype)
    a[:] = NAN
    b[:] = INF
    found = multiply(place("a", a), place("b", b), place("c", c), **scalars(dtype, by_name, alpha=0, beta=beta))
    assert (found == np.asarray(beta, dtype) * c).all()


@pytest.mark.parametrize("by_name", [False, True], ids=["values", "scalars"])
def test_both_zero_clears_c(by_name: bool) -> None:
    a, b, c = operands("float32")
    for values in (a, b, c):
        values[:] = NAN
    found = multiply(place("a", a), place("b", b), place("c", c, pad=1), **scalars("float32", by_name, alpha=0, beta=0))
    assert (found == 0).all()


@pytest.mark.parametrize("beta", [0, 2])
def test_no_products_at_all(beta: float) -> None:
    """With k = 0, C = beta C, and C = 0 if beta is 0, for any contents of C."""
    c = np.full((M, N), NAN if beta == 0 else 3, np.float32)
    empty = np.empty((M, 0), np.float32), np.empty((0, N), np.float32)
    found = multiply(place("a", empty[0]), place("b", empty[1]), place("c", c, pad=2), alpha=INF, beta=beta)
    assert (found == 3 * beta).all()


@pytest.mark.parametrize("beta", [0, 1])
def test_infinities_meet_zeros_as_in_scipy(beta: float) -> None:
    """0 times infinity is NaN, and infinities of both signs add to NaN: no element is skipped for being 0."""
    a, b, c = operands("float32")
    a[2, 3], b[3, 4] = INF, 0  # one NaN in row 2; the rest of the row is infinite
    a[5, 1], a[5, 2] = INF, -INF
    b[6, 7] = NAN
    a[7, 6] = 0
    c[0, 0], c[1, 1] = NAN, INF
    found = multiply(place("a", a), place("b", b), place("c", c), beta=beta)
    expected = scipy_gemm(a, b, c, 1, beta, "n", "n")
    assert np.isnan(found[2, 4])
    assert np.isnan(found[:, 7]).all()
    assert (np.isnan(found) == np.isnan(expected)).all()
    infinite = np.isinf(expected)
    assert infinite.any()
    assert (found[infinite] == expected[infinite]).all()
    assert (np.isinf(found) == infinite).all()


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("beta", [1, 0.5])
def test_infinities_of_complex_numbers_stay_infinities(beta: float, split_k: int) -> None:
    """As in gemv, a real beta scales both parts, without a product of 0 and infinity."""
    a, b, c = operands("complex64")
    c[2, 3], c[4, 5] = complex(INF, 1), complex(0, -INF)
    found = multiply(place("a", a), place("b", b), place("c", c), beta=beta, split_k=split_k)
    expected = a @ b + np.float32(beta) * c.view(np.float32).reshape(M, N, 2)[..., 0]
    assert (found[2, 3].real, found[4, 5].imag) == (INF, -INF)
    assert np.isfinite((found[2, 3].imag, found[4, 5].real)).all()
    assert not np.isnan(found).any()
    whole = np.isfinite(c)
    np.testing.assert_allclose(found.real[whole], expected.real[whole], rtol=1e-4, atol=1e-4)


def test_relu_keeps_nan() -> None:
    """torch.relu keeps NaN too; a maximum in CUDA would give 0."""
    a, b, c = operands("float32")
    a[3, 3] = NAN
    a[4] = -INF
    b[:, 0] = np.abs(b[:, 0])
    found = multiply(place("a", a), place("b", b), place("c", c), epilogue="relu")
    assert np.isnan(found[3]).all()
    assert found[4, 0] == 0
    rest = np.delete(found, (3, 4), axis=0)
    assert (rest >= 0).all()
    assert (rest == 0).any()


def test_gelu_at_the_ends() -> None:
    """GELU is 0 for arguments far below 0, the argument itself far above 0, and NaN for NaN."""
    a = np.array([[-60.0], [60.0], [0.0], [NAN], [INF]], np.float32)
    one = np.ones((1, 2), np.float32)
    found = multiply(place("a", a), place("b", one), place("c", np.empty((5, 2), np.float32)), epilogue=GELU)
    assert (found[0] == 0).all()
    assert (found[1] == 60).all()
    assert (found[2] == 0).all()
    assert np.isnan(found[3]).all()
    assert (found[4] == INF).all()


GELU = cutlass_blas.Epilogue(activation="gelu")


def nan_split(beta: float, **options: Any) -> Array:
    rng = np.random.default_rng(7)
    a, b = random_values(rng, (M, 96), "float32"), random_values(rng, (96, N), "float32")
    c = np.full((M, N), NAN, np.float32)
    return np.asarray(multiply(place("a", a), place("b", b), place("c", c), beta=beta, split_k=3, **options))


def test_split_products_do_not_read_c() -> None:
    assert np.isfinite(nan_split(0)).all()
    assert np.isnan(nan_split(1)).all()


def test_split_products_with_alpha_zero() -> None:
    rng = np.random.default_rng(8)
    a, c = np.full((M, 96), NAN, np.float32), random_values(rng, (M, N), "float32")
    b = np.full((96, N), INF, np.float32)
    found = multiply(place("a", a), place("b", b), place("c", c), alpha=0, beta=2, split_k=3)
    assert (found == 2 * c).all()


@pytest.mark.parametrize("by_name", [False, True], ids=["values", "scalars"])
def test_a_buffer_that_only_beta_would_read_is_no_input(by_name: bool) -> None:
    """With beta 0 as a value the kTask has no input C; with a Scalar it has, since the value is not known."""
    a, b, c = operands("float32")
    where = [place(name, values) for name, values in zip("abc", (a, b, c), strict=True)]
    beta: Any = kaas.Scalar("beta", "f32") if by_name else 0.0
    kernels = cutlass_blas.gemm(*(one.operand for one in where), beta=beta)
    task = kaas.KTask(kernels, ["c"])
    assert {buffer.name for buffer in task.inputs} == ({"a", "b", "c"} if by_name else {"a", "b"})


def test_earlier_contents_of_a_temporary_do_not_matter() -> None:
    """A product goes into a temporary and is used from there: the arena's memory has any contents before."""
    a, b, _ = operands("float32")
    square = np.eye(N, dtype=np.float32)
    middle, last = kaas.Buffer("middle", (M, N), "float32"), kaas.Buffer("last", (M, N), "float32")
    placed: list[Placed] = [place("a", a), place("b", b), place("e", square)]
    first, second, e = (one.buffer for one in placed)
    kernels = [*cutlass_blas.gemm(first, second, middle), *cutlass_blas.gemm(middle, e, last)]
    found = run(kernels, {one.buffer.name: one.memory for one in placed}, [last])["last"]
    np.testing.assert_allclose(found, a @ b, rtol=1e-4, atol=1e-4)
    assert not is_complex(found.dtype.name)
