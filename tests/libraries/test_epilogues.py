"""Fused epilogues and split-K: bias, ReLU and GELU after alpha A B + beta C, with and without slices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import cutlass_blas
import kaas
from tests.libraries.harness import Array, assert_close, bound, multiply, op, place, random_values, run, scipy_gemm

few = settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
SIZES = st.sampled_from([1, 2, 7, 31, 33, 64, 65, 129]) | st.integers(0, 80)

_erf = np.vectorize(math.erf, otypes=[np.float64])

STEEPEST = {None: 1.0, "relu": 1.0, "gelu": 1.13}
"""The largest slope of each activation: an error before it may grow by this factor."""


def activated(values: Array, activation: str | None) -> Array:
    """Return the activation in double precision."""
    wide = values.astype(np.float64)
    match activation:
        case "relu":
            return np.maximum(wide, 0)
        case "gelu":
            return np.asarray(0.5 * wide * (1 + _erf(wide / math.sqrt(2))))
        case _:
            return wide


def check(
    m: int,
    n: int,
    k: int,
    activation: str | None,
    *,
    biased: bool = False,
    layout: str = "row",
    alpha: float = 1,
    beta: float = 0,
    pads: tuple[int, ...] = (0, 0, 0),
    ops: str = "nn",
    split_k: int | None = None,
    by_name: bool = False,
) -> None:
    rng = np.random.default_rng(1000 * m + 10 * n + k)
    shapes = ((m, k) if ops[0] == "n" else (k, m), (k, n) if ops[1] == "n" else (n, k), (m, n))
    a, b, c = (random_values(rng, shape, "float32") for shape in shapes)
    bias = random_values(rng, (n if layout == "row" else m,), "float32")
    placed = [
        place(name, values, layout=layout, pad=pad) for name, values, pad in zip("abc", (a, b, c), pads, strict=True)
    ]
    epilogue = cutlass_blas.Epilogue(kaas.Buffer("bias", bias.shape, "float32") if biased else None, activation)
    numbers: dict[str, Any] = {"alpha": alpha, "beta": beta}
    scalars = {name: kaas.Scalar(name, "f32") for name in numbers} if by_name else numbers
    found = multiply(
        *placed,
        extra={"bias": bias},
        scalars=numbers if by_name else None,
        trans_a=ops[0],
        trans_b=ops[1],
        layout=layout,
        split_k=split_k,
        epilogue=epilogue,
        **scalars,
    )
    spread = (bias if layout == "row" else bias[:, None]).astype(np.float64) if biased else np.zeros(1)
    wide = [one.astype(np.float64) for one in (a, b, c)]
    before = scipy_gemm(wide[0], wide[1], wide[2], alpha, beta, ops[0], ops[1]) + spread
    allowed = bound(op(a, ops[0]), op(b, ops[1]), c, alpha, beta, "float32", slices=split_k or 1)
    after = activated(before, activation)
    rounded = 2.0**-22 * (np.abs(before) + np.abs(spread) + np.abs(after))  # of the sum with the bias, and of erf
    assert_close(found, after, STEEPEST[activation] * allowed + rounded)


@given(
    m=SIZES,
    n=SIZES,
    k=SIZES,
    activation=st.sampled_from([None, "relu", "gelu"]),
    biased=st.booleans(),
    layout=st.sampled_from(["row", "column"]),
    alpha=st.sampled_from([1, -0.5]),
    beta=st.sampled_from([0, 0, 1, -2]),
    pads=st.tuples(*[st.sampled_from([0, 0, 3])] * 3),
    by_name=st.booleans(),
)
@few
def test_epilogues(
    m: int,
    n: int,
    k: int,
    activation: str | None,
    biased: bool,
    layout: str,
    alpha: float,
    beta: float,
    pads: tuple[int, ...],
    by_name: bool,
) -> None:
    check(m, n, k, activation, biased=biased, layout=layout, alpha=alpha, beta=beta, pads=pads, by_name=by_name)


@given(
    m=st.integers(1, 40),
    n=st.integers(1, 40),
    k=st.sampled_from([1, 8, 63, 64, 65, 500]),
    split_k=st.integers(1, 9),
    activation=st.sampled_from([None, "relu", "gelu"]),
    biased=st.booleans(),
    layout=st.sampled_from(["row", "column"]),
    ops=st.sampled_from(["nn", "nt", "tn"]),
    beta=st.sampled_from([0, 0, 1, -2]),
    pads=st.tuples(*[st.sampled_from([0, 0, 3])] * 3),
    by_name=st.booleans(),
)
@few
def test_split_k(
    m: int,
    n: int,
    k: int,
    split_k: int,
    activation: str | None,
    biased: bool,
    layout: str,
    ops: str,
    beta: float,
    pads: tuple[int, ...],
    by_name: bool,
) -> None:
    """Some cases have more slices than k has elements."""
    if activation == "gelu" and split_k == 1:
        ops = "nn"  # other transposes need a kernel that would have to be built
    options: dict[str, Any] = {"biased": biased, "layout": layout, "ops": ops, "pads": pads}
    check(m, n, k, activation, split_k=split_k, alpha=0.75, beta=beta, by_name=by_name, **options)


@pytest.mark.full
def test_split_k_of_complex_numbers() -> None:
    rng = np.random.default_rng(2)
    a, b, c = (random_values(rng, shape, "complex64") for shape in ((300, 5), (300, 6), (5, 6)))
    alpha, beta = 2 - 1j, 0.5j
    found = multiply(place("a", a), place("b", b), place("c", c), trans_a="c", split_k=4, alpha=alpha, beta=beta)
    expected = scipy_gemm(a, b, c, alpha, beta, "c", "n")
    assert_close(found, expected, bound(a.conj().T, b, c, alpha, beta, "complex64", slices=4))


def test_one_number_of_slices_is_one_answer() -> None:
    """The result is deterministic: the slices are added in one order, in whichever order they are computed."""
    rng = np.random.default_rng(3)
    a, b = random_values(rng, (20, 700), "float32"), random_values(rng, (700, 20), "float32")
    c = np.empty((20, 20), np.float32)
    first, second = (multiply(place("a", a), place("b", b), place("c", c), split_k=7) for _ in range(2))
    assert (first == second).all()


def test_split_k_is_chosen_where_k_is_far_larger() -> None:
    """A deep and narrow product is split by default, a square product is not, and split_k=1 forbids it."""
    a, b, c = (kaas.Buffer(name, shape, "float32") for name, shape in zip("abc", [(64, 65536), (65536, 64), (64, 64)],
                                                                          strict=True))  # fmt: skip
    assert len(cutlass_blas.gemm(a, b, c)) > 1
    assert len(cutlass_blas.gemm(a, b, c, split_k=1)) == 1
    square = [kaas.Buffer(name, (4096, 4096), "float32") for name in "abc"]
    assert len(cutlass_blas.gemm(*square)) == 1


def test_two_split_products_in_one_task() -> None:
    """Their workspaces are different or ordered: names do not collide."""
    rng = np.random.default_rng(4)
    a, b = random_values(rng, (12, 400), "float32"), random_values(rng, (400, 12), "float32")
    one, two = kaas.Buffer("a", a.shape, "float32"), kaas.Buffer("b", b.shape, "float32")
    c, d, e = (kaas.Buffer(name, (12, 12), "float32") for name in "cde")
    kernels = [
        *cutlass_blas.gemm(one, two, c, split_k=4),
        *cutlass_blas.gemm(one, two, d, split_k=5, alpha=2),
        *cutlass_blas.gemm(c, d, e, split_k=2),
    ]
    found = run(kernels, {"a": a, "b": b}, [c, d, e])
    product = a.astype(np.float64) @ b
    np.testing.assert_allclose(found["c"], product, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found["d"], 2 * product, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found["e"], product @ (2 * product), rtol=1e-3, atol=1e-1)


def test_relu_for_short() -> None:
    rng = np.random.default_rng(5)
    a, b, c = (random_values(rng, (9, 9), "float32") for _ in range(3))
    placed = place("a", a), place("b", b), place("c", c)
    short = multiply(*placed, epilogue="relu")
    long = multiply(*placed, epilogue=cutlass_blas.Epilogue(activation="relu"))
    assert (short == long).all()
    assert (short == np.maximum(short, 0)).all()


@pytest.mark.parametrize("shared", [False, True], ids=["batch", "shared"])
def test_bias_of_a_batch(shared: bool) -> None:
    """One bias for all matrices of a batch."""
    rng = np.random.default_rng(6)
    a = random_values(rng, (3, 7, 8), "float32")
    b = random_values(rng, (8, 9) if shared else (3, 8, 9), "float32")
    bias = random_values(rng, (9,), "float32")
    epilogue = cutlass_blas.Epilogue(kaas.Buffer("bias", 9, "float32"), "relu")
    c = np.empty((3, 7, 9), np.float32)
    found = multiply(place("a", a), place("b", b), place("c", c), extra={"bias": bias}, epilogue=epilogue)
    np.testing.assert_allclose(found, np.maximum(a @ b + bias, 0), rtol=1e-5, atol=1e-5)
