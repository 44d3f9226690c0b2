"""gemm equals SciPy's BLAS over random shapes, transposes, layouts, leading dimensions, offsets and scalars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import kaas
from tests.libraries.harness import (
    SCALARS,
    Placed,
    assert_close,
    bound,
    is_complex,
    multiply,
    op,
    place,
    random_values,
    scipy_gemm,
)

few = settings(max_examples=40, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])

OPS = {
    "float32": ("nn", "nt", "tn", "tt", "cn"),
    "float64": ("nn", "nt", "tn"),
    "complex64": ("nn", "nc", "cn", "tt"),
    "complex128": ("nn", "nt", "tn"),
}
"""The tested transposes. With C in column-major order the kernel is that of the reversed pair, so each pair is listed
with its reverse. Not all pairs are tested, since the software GPU has to compile a kernel for each."""

SIZES = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130]) | st.integers(0, 130)

REAL_SCALARS = st.sampled_from([0, 1, -1, 0.5, -2.25])
COMPLEX_SCALARS = REAL_SCALARS | st.sampled_from([1j, -1j, 0.5 - 2j, 3 + 0.25j])


@dataclass(frozen=True, slots=True)
class Product:
    """One call of gemm. `pads`, `offsets` and `after` have a value each for a, b and c."""

    m: int
    n: int
    k: int
    ops: str = "nn"
    layout: str = "row"
    alpha: complex = 1
    beta: complex = 0
    pads: tuple[int, int, int] = (0, 0, 0)
    offsets: tuple[int, int, int] = (0, 0, 0)
    after: tuple[int, int, int] = (0, 0, 0)
    by_name: bool = False
    seed: int = 0


@st.composite
def products(draw: st.DrawFn, dtype: str) -> Product:
    three = st.tuples(*[st.sampled_from([0, 0, 1, 3, 8])] * 3)
    scalars = COMPLEX_SCALARS if is_complex(dtype) else REAL_SCALARS
    return Product(
        m=draw(SIZES),
        n=draw(SIZES),
        k=draw(SIZES),
        ops=draw(st.sampled_from(OPS[dtype])),
        layout=draw(st.sampled_from(["row", "column"])),
        alpha=draw(scalars),
        beta=draw(scalars),
        pads=draw(three),
        offsets=draw(three),
        after=draw(three),
        by_name=draw(st.booleans()),
        seed=draw(st.integers(0, 99)),
    )


def check(dtype: str, p: Product) -> None:
    """Compare one product with SciPy's."""
    rng = np.random.default_rng(p.seed)
    shapes = ((p.m, p.k) if p.ops[0] == "n" else (p.k, p.m), (p.k, p.n) if p.ops[1] == "n" else (p.n, p.k), (p.m, p.n))
    a, b, c = (random_values(rng, shape, dtype) for shape in shapes)
    placed: list[Placed] = []
    for name, values, pad, offset, after in zip("abc", (a, b, c), p.pads, p.offsets, p.after, strict=True):
        placed.append(place(name, values, layout=p.layout, pad=pad, offset=offset, after=after))
    scalars: dict[str, Any] = {"alpha": p.alpha, "beta": p.beta}
    given = {name: kaas.Scalar(name, SCALARS[dtype]) for name in scalars} if p.by_name else scalars
    values_by_name = scalars if p.by_name else None
    found = multiply(*placed, trans_a=p.ops[0], trans_b=p.ops[1], layout=p.layout, scalars=values_by_name, **given)
    expected = scipy_gemm(a, b, c, p.alpha, p.beta, *p.ops)
    assert_close(found, expected, bound(op(a, p.ops[0]), op(b, p.ops[1]), c, p.alpha, p.beta, dtype))


@example(p=Product(130, 129, 65, beta=-1, by_name=True))
@example(p=Product(0, 5, 7, "nt", beta=2))
@example(p=Product(5, 7, 0, "tn", beta=2, after=(1, 1, 1)))
@example(p=Product(1, 1, 1, "tt", "column", 2, 3, (3, 1, 8), (1, 3, 1)))
@given(p=products("float32"))
@few
def test_float32(p: Product) -> None:
    check("float32", p)


@example(p=Product(65, 33, 17, "tn", "column", -1, 1, (1, 0, 3), (1, 0, 1)))
@given(p=products("float64"))
@few
@pytest.mark.full
def test_float64(p: Product) -> None:
    check("float64", p)


@example(p=Product(33, 65, 31, "cn", "column", 0.5 - 2j, 1j, by_name=True))
@given(p=products("complex64"))
@few
@pytest.mark.full
def test_complex64(p: Product) -> None:
    check("complex64", p)


@example(p=Product(33, 31, 65, "cn", alpha=3 + 0.25j, beta=-1j))
@given(p=products("complex128"))
@few
@pytest.mark.full
def test_complex128(p: Product) -> None:
    check("complex128", p)


@pytest.mark.parametrize("beta", [0, 1, 0.5])
def test_a_deep_product(beta: float) -> None:
    """There are more steps along k than stages of the pipeline, and a remainder."""
    check("float32", Product(9, 10, 1031, "nt", beta=beta))


@pytest.mark.parametrize(("m", "n"), [(700, 3), (3, 700)])
def test_long_and_thin(m: int, n: int) -> None:
    """With many blocks in one dimension, their order is permuted among the grid's dimensions."""
    check("float32", Product(m, n, 5))


def test_the_same_kernels_from_numbers_of_any_kind() -> None:
    """alpha and beta may be NumPy's numbers, 0-d arrays among them, or Python's."""
    rng = np.random.default_rng(0)
    a, b, c = (random_values(rng, (3, 3), "float32") for _ in range(3))
    results = []
    for number in (2, 2.0, np.float64(2), np.int8(2), np.float32(2)):
        results.append(multiply(place("a", a), place("b", b), place("c", c), alpha=number, beta=number))
    assert all((result == results[0]).all() for result in results)
