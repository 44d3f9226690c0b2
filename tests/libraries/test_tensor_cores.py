"""Products on tensor cores: half precision added up in float32, tf32, doubles, with every alignment of the core."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import cutlass_blas
import kaas
from tests.lanes import spread
from tests.libraries.harness import Placed, assert_close, bound, multiply, numpy_dtype, op, place, random_values

few = settings(max_examples=15, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])

TF32 = 2.0**-10
"""The relative error of a float32 whose fraction is cut to 10 bits."""

odd_rows = pytest.mark.filterwarnings("ignore::cutlass_blas.AlignmentWarning")


def check(
    dtype: str,
    m: int,
    n: int,
    k: int,
    *,
    ops: str = "nn",
    out: str | None = None,
    alpha: float = 1,
    beta: float = 0,
    pads: tuple[int, ...] = (0, 0, 0),
    compute: str | None = None,
    layout: str = "row",
    relu: bool = False,
) -> None:
    """Compare with the product of the same half-precision numbers in double precision."""
    out = out or dtype
    rng = np.random.default_rng(100 * m + 10 * n + k)
    shapes = ((m, k) if ops[0] == "n" else (k, m), (k, n) if ops[1] == "n" else (n, k))
    a, b = (random_values(rng, shape, dtype) for shape in shapes)
    c = random_values(rng, (m, n), out)
    placed: list[Placed] = []
    for name, values, pad in zip("abc", (a, b, c), pads, strict=True):
        placed.append(place(name, values, layout=layout, pad=pad))
    options: dict[str, Any] = {"trans_a": ops[0], "trans_b": ops[1], "layout": layout, "compute": compute}
    found = multiply(*placed, alpha=alpha, beta=beta, epilogue="relu" if relu else None, **options)
    wide = [op(one.astype(np.float64), trans) for one, trans in zip((a, b), ops, strict=True)]
    expected = alpha * (wide[0] @ wide[1]) + beta * c.astype(np.float64)
    allowed = bound(op(a, ops[0]), op(b, ops[1]), c, alpha, beta, out, inner=TF32 if compute else 0)
    assert_close(found, np.maximum(expected, 0) if relu else expected, allowed)


@odd_rows
@given(
    dtype=st.sampled_from(["float16", "bfloat16"]),
    m=st.sampled_from([1, 2, 16, 33, 65]),
    n=st.sampled_from([1, 2, 8, 24, 31, 64, 66]),
    k=st.sampled_from([1, 2, 8, 16, 31, 40, 66, 130]),
    layout=st.sampled_from(["row", "column"]),
    alpha=st.sampled_from([1, -0.5]),
    beta=st.sampled_from([0, 0, 1, 2]),
    pads=st.tuples(*[st.sampled_from([0, 0, 1, 8])] * 3),
    relu=st.booleans(),
)
@few
@pytest.mark.full
def test_half_precision(
    dtype: str, m: int, n: int, k: int, layout: str, alpha: float, beta: float, pads: tuple[int, ...], relu: bool
) -> None:
    check(dtype, m, n, k, layout=layout, alpha=alpha, beta=beta, pads=pads, relu=relu)


@odd_rows
@given(
    m=st.sampled_from([1, 4, 33, 64]),
    n=st.sampled_from([1, 4, 31, 68]),
    k=st.sampled_from([1, 4, 8, 31, 36, 129]),
    layout=st.sampled_from(["row", "column"]),
    beta=st.sampled_from([0, 1]),
    pads=st.tuples(*[st.sampled_from([0, 0, 1, 4])] * 3),
)
@few
@pytest.mark.full
def test_tf32(m: int, n: int, k: int, layout: str, beta: float, pads: tuple[int, ...]) -> None:
    check("float32", m, n, k, layout=layout, beta=beta, pads=pads, compute="tf32")


@pytest.mark.parametrize("ops", ["nt", "tn"])
@pytest.mark.full
def test_transposed_half_precision(ops: str) -> None:
    check("float16", 136, 72, 80, ops=ops, beta=1)


@pytest.mark.full
def test_half_precision_into_float32() -> None:
    check("float16", 40, 24, 136, out="float32", beta=-1)


def ones(m: int, n: int, k: int, dtype: str, out: str) -> NDArray[Any]:
    a, b = np.ones((m, k), numpy_dtype(dtype)), np.ones((k, n), numpy_dtype(dtype))
    return np.asarray(multiply(place("a", a), place("b", b), place("c", np.empty((m, n), numpy_dtype(out))), split_k=1))


@pytest.mark.parametrize("dtype", spread(["float16", "bfloat16"], 1))
def test_sums_are_of_float32(dtype: str) -> None:
    """In half precision a sum of ones does not get beyond 2048, in bfloat16 not beyond 256."""
    assert (ones(8, 8, 4096, dtype, dtype) == 4096).all()


@pytest.mark.full
def test_tf32_is_used_only_on_request() -> None:
    """With tf32, operands keep 10 bits of their fraction, and otherwise all 23."""
    a, b, c = np.full((8, 8), 1 + 2.0**-12, np.float32), np.eye(8, dtype=np.float32), np.empty((8, 8), np.float32)
    given = place("a", a), place("b", b), place("c", c)
    assert (multiply(*given, compute="tf32") == 1).all()
    assert (multiply(*given) == a).all()


@pytest.mark.parametrize("dtype", spread(["float16", "bfloat16"], 1))
def test_nan_rules_hold(dtype: str) -> None:
    """beta 0 does not read C, alpha 0 neither A nor B, and ReLU keeps NaN."""
    kind = numpy_dtype(dtype)
    nan, one = np.full((8, 8), np.nan, kind), np.eye(8, dtype=kind)
    assert (multiply(place("a", one), place("b", one), place("c", nan, pad=8)) == one).all()
    assert (multiply(place("a", nan), place("b", nan), place("c", one), alpha=0, beta=2) == 2 * one).all()
    assert np.isnan(multiply(place("a", nan), place("b", one), place("c", one), epilogue="relu")).all()


def test_overflow_of_half_precision_is_infinite() -> None:
    """65504 is the largest float16; the sum, in float32, does not overflow."""
    a, b = np.full((8, 8), 256, np.float16), np.full((8, 8), 256, np.float16)
    placed = place("a", a), place("b", b), place("c", np.empty((8, 8), np.float16))
    assert (multiply(*placed) == np.inf).all()
    assert (multiply(*placed, alpha=0.0625) == 256 * 256 / 2).all()


# --- warnings about alignment


def buffers(k: int, n: int = 16, dtype: str = "float16") -> list[kaas.Buffer]:
    return [kaas.Buffer(name, shape, dtype) for name, shape in (("a", (16, k)), ("b", (k, n)), ("c", (16, n)))]


@odd_rows
def test_slower_loads_give_a_warning() -> None:
    with pytest.warns(cutlass_blas.AlignmentWarning, match=r"\ba\b.*33"):
        cutlass_blas.gemm(*buffers(33))
    with pytest.warns(cutlass_blas.AlignmentWarning, match=r"\bb\b.*18"):
        cutlass_blas.gemm(*buffers(32, 18))


def test_a_warning_is_given_of_known_shapes_too() -> None:
    for _ in range(2):
        with pytest.warns(cutlass_blas.AlignmentWarning):
            cutlass_blas.gemm(*buffers(33))


@pytest.mark.parametrize(
    ("k", "n", "dtype"), [(32, 16, "float16"), (8, 8, "bfloat16"), (33, 17, "float32"), (33, 17, "float64")]
)
def test_loads_of_full_width_give_no_warning(k: int, n: int, dtype: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cutlass_blas.gemm(*buffers(k, n, dtype))
