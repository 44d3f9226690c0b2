"""Products of a matrix and a vector against NumPy, on the software GPU, and refused calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kaas
from cutlass_blas.errors import (
    BlasError,
    InvalidDtype,
    InvalidOperand,
    InvalidOption,
    InvalidScalar,
    OverlappingOperands,
    ShapeMismatch,
)
from cutlass_blas.gemvs import gemv, over_columns, over_rows
from cutlass_blas.operands import Matrix
from cutlass_blas.vectors import Vector
from kaas.ktask.dtypes import numpy_dtype

Array = np.ndarray[Any, Any]

EPSILON = {
    "float32": 2.0**-23,
    "float64": 2.0**-52,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
}
DTYPES = sorted(EPSILON)
SUMS = {"float16": "float32", "bfloat16": "float32"}
"""Dtypes whose sums have another dtype."""


def drawn(rng: np.random.Generator, size: int | tuple[int, ...], dtype: str) -> Array:
    values = rng.uniform(-1, 1, size)
    if dtype.startswith("complex"):
        values = values + 1j * rng.uniform(-1, 1, size)
    made: Array = values.astype(numpy_dtype(dtype))
    return made


def wide(array: Array) -> Array:
    made: Array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return made


def strided(memory: Array, offset: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> Array:
    """Return a view of flat memory, with strides in elements."""
    bytes_ = tuple(step * memory.itemsize for step in steps)
    return np.lib.stride_tricks.as_strided(memory[offset:], shape, bytes_)


def ran(kernels: tuple[kaas.Kernel, ...], scalars: Any = None, **inputs: Array) -> Array:
    """Return y after the kTask; y is an input only if the kTask reads it."""
    task = kaas.KTask(kernels, ["y"])
    needed = {buffer.name for buffer in task.inputs}
    given = {name: array for name, array in inputs.items() if name in needed}
    return kaas.run_local(task, given, scalars=scalars)["y"]


@st.composite
def calls(draw: st.DrawFn) -> dict[str, Any]:
    dtype = draw(st.sampled_from(DTYPES))
    sizes = st.one_of(st.integers(0, 3), st.integers(4, 70), st.integers(200, 700))
    return {
        "dtype": dtype,
        "out": "float32" if dtype in ("float16", "bfloat16") and draw(st.booleans()) else dtype,
        "m": draw(sizes),
        "n": draw(sizes),
        "count": draw(st.sampled_from([None, None, 0, 1, 3])),
        "shared": draw(st.sampled_from(["", "a", "x"])),
        "trans": draw(st.sampled_from("ntcNTC")),
        "layout": draw(st.sampled_from(["row", "column"])),
        "gap": draw(st.integers(0, 5)),
        "offset": draw(st.integers(0, 9)),
        "inc_x": draw(st.sampled_from([1, 1, 2, -1, -3])),
        "inc_y": draw(st.sampled_from([1, 1, 2, -1, 5])),
        "alpha": draw(st.sampled_from([0, 1, -0.5])),
        "beta": draw(st.sampled_from([0, 1, 2.5])),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def vector_in(rng: np.random.Generator, name: str, size: int, inc: int, offset: int, count: int | None,
              dtype: str) -> tuple[Vector, Array, Array]:  # fmt: skip
    """Return a vector with memory around it, all of the memory, and the vector's view: (entries, size)."""
    stride = size * abs(inc) + 3
    memory = drawn(rng, offset + stride * (count or 1) + 1, dtype)
    first = offset + (max(size, 1) - 1) * -inc if inc < 0 else offset
    batch = {} if count is None else {"count": count, "stride": stride}
    vector = Vector(kaas.Buffer(name, memory.size, dtype), size, inc, first, **batch)
    entries = 1 if count is None else count
    return vector, memory, strided(memory, first, (entries, size), (stride, inc))


@given(calls())
def test_any_vectors_in_any_memory(call: dict[str, Any]) -> None:
    rng = np.random.default_rng(call["seed"])
    m, n, dtype, count, offset = (call[name] for name in ("m", "n", "dtype", "count", "offset"))
    own = {name: None if call["shared"] == name else count for name in ("a", "x")}
    rows, columns = (m, n) if call["layout"] == "row" else (n, m)
    ld = max(1, columns) + call["gap"]
    stride = rows * ld + 2
    memory = drawn(rng, offset + stride * (own["a"] or 1) + ld, dtype)
    buffer = kaas.Buffer("a", memory.size, dtype)
    batch = {} if own["a"] is None else {"count": own["a"], "stride": stride}
    a = Matrix(buffer, m, n, ld, offset, **batch)
    lying = strided(memory, offset, (1 if own["a"] is None else own["a"], rows, columns), (stride, ld, 1))
    matrices = wide(lying if call["layout"] == "row" else lying.swapaxes(-1, -2))
    outputs, inner = (m, n) if call["trans"] in "nN" else (n, m)
    x, x_memory, xs = vector_in(rng, "x", inner, call["inc_x"], offset, own["x"], dtype)
    y, y_memory, ys = vector_in(rng, "y", outputs, call["inc_y"], 2, count, call["out"])

    kernels = gemv(a, x, y, alpha=call["alpha"], beta=call["beta"], trans=call["trans"], layout=call["layout"])
    got = ran(kernels, a=memory, x=x_memory, y=y_memory)

    op = matrices if call["trans"] in "nN" else matrices.swapaxes(-1, -2)
    op = op.conj() if call["trans"] in "cC" else op
    wanted = call["alpha"] * (op @ wide(xs)[..., None])[..., 0] + call["beta"] * wide(ys)
    expected = wide(y_memory)
    strided(expected, y.offset, ys.shape, (y.stride, y.inc))[:] = wanted
    largest = 1 + np.abs(wanted).max(initial=0)
    within = 4 * EPSILON[call["out"]] * largest + inner * EPSILON[SUMS.get(dtype, dtype)]
    np.testing.assert_allclose(wide(got), expected, rtol=0, atol=within)
    untouched = np.ones(y_memory.size, bool)
    strided(untouched, y.offset, ys.shape, (y.stride, y.inc))[:] = False
    np.testing.assert_array_equal(got[untouched], y_memory[untouched])


@pytest.mark.parametrize("trans", ["n", "t"])
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_long_sums_are_shared_by_blocks_and_are_the_same_each_time(dtype: str, trans: str) -> None:
    rng = np.random.default_rng(1)
    shape = (3, 40_001) if trans == "n" else (40_001, 3)
    a, x = drawn(rng, shape, dtype), drawn(rng, 40_001, dtype)
    buffers = [kaas.Buffer("a", shape, dtype), kaas.Buffer("x", 40_001, dtype), kaas.Buffer("y", 3, dtype)]
    kernels = gemv(*buffers, trans=trans)
    assert len(kernels) == 2
    first, again = (ran(kernels, a=a, x=x) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    exact = wide(a if trans == "n" else a.T) @ wide(x)
    np.testing.assert_allclose(first, exact, rtol=0, atol=200 * EPSILON[dtype] * np.abs(exact).max())


@pytest.mark.parametrize("dtype", ["float16", "complex64"])
def test_batches_beyond_a_grid(dtype: str) -> None:
    rng = np.random.default_rng(2)
    a, x = drawn(rng, (70_000, 2, 3), dtype), drawn(rng, 3, dtype)
    buffers = kaas.Buffer("a", a.shape, dtype), kaas.Buffer("x", 3, dtype), kaas.Buffer("y", (70_000, 2), dtype)
    got = ran(gemv(*buffers), a=a, x=x)
    np.testing.assert_allclose(wide(got), wide(a) @ wide(x), rtol=0, atol=4 * EPSILON[dtype])


# --- alpha, beta and NaN, as in BLAS


def small(dtype: str = "float32") -> list[kaas.Buffer]:
    return [kaas.Buffer("a", (4, 5), dtype), kaas.Buffer("x", 5, dtype), kaas.Buffer("y", 4, dtype)]


def transposed(dtype: str = "float32") -> list[kaas.Buffer]:
    return [kaas.Buffer("a", (4, 5), dtype), kaas.Buffer("x", 4, dtype), kaas.Buffer("y", 5, dtype)]


@pytest.mark.parametrize("trans", ["n", "t"])
def test_operands_that_a_zero_multiplies_are_not_read(trans: str) -> None:
    a, x, y = small() if trans == "n" else transposed()
    ones, nan = np.ones(a.shape, np.float32), np.full(9, np.nan, np.float32)
    outputs, inner = y.shape[0], x.shape[0]
    kernels = gemv(a, x, y, beta=kaas.Scalar("beta", "f32"), trans=trans)
    given = {"a": ones, "x": np.ones(inner, np.float32), "y": nan[:outputs]}
    np.testing.assert_array_equal(ran(kernels, {"beta": 0.0}, **given), np.full(outputs, inner, np.float32))
    assert np.isnan(ran(kernels, {"beta": 1.0}, **given)).all()
    given = {"a": ones * np.nan, "x": nan[:inner], "y": np.ones(outputs, np.float32)}
    kernels = gemv(a, x, y, alpha=kaas.Scalar("alpha", "f32"), beta=2, trans=trans)
    np.testing.assert_array_equal(ran(kernels, {"alpha": 0.0}, **given), np.full(outputs, 2, np.float32))
    assert np.isnan(ran(kernels, {"alpha": 1.0}, **given)).all()


def test_y_is_an_input_only_where_it_is_read() -> None:
    a, x, y = small()
    assert kaas.KTask(gemv(a, x, y), [y]).inputs == (a, x)
    assert kaas.KTask(gemv(a, x, y, beta=1), [y]).inputs == (a, x, y)
    assert kaas.KTask(gemv(a, x, y, beta=1e-60), [y]).inputs == (a, x)  # 0 in float32
    longer = kaas.Buffer("y", 9, "float32")
    assert kaas.KTask(gemv(a, x, Vector(longer, 4, 2)), [longer]).inputs == (a, x, longer)  # the rest of it stays


def test_nothing_to_add_up_leaves_beta_y() -> None:
    buffers = kaas.Buffer("a", (3, 0), "float64"), kaas.Buffer("x", 0, "float64"), kaas.Buffer("y", 3, "float64")
    nothing = {"a": np.empty((3, 0)), "x": np.empty(0)}
    np.testing.assert_array_equal(ran(gemv(*buffers, beta=3), **nothing, y=np.ones(3)), [3, 3, 3])
    np.testing.assert_array_equal(ran(gemv(*buffers), **nothing), [0, 0, 0])


@pytest.mark.parametrize("trans", ["n", "t"])
@pytest.mark.parametrize("count", [None, 0, 2])
def test_no_outputs_of_long_sums(count: int | None, trans: str) -> None:
    batch = () if count is None else (count,)
    shape, inner = (*batch, 0, 40_000) if trans == "n" else (*batch, 40_000, 0), (*batch, 40_000)
    a, x, y = (kaas.Buffer(*each, "float32") for each in (("a", shape), ("x", inner), ("y", (*batch, 0))))
    got = ran(gemv(a, x, y, trans=trans), a=np.empty(shape, np.float32), x=np.ones(inner, np.float32))
    assert got.shape == (*batch, 0)


@pytest.mark.parametrize("trans", ["n", "t"])
@pytest.mark.parametrize("alpha", [np.inf, np.nan])
def test_an_empty_sum_is_no_product_for_any_alpha(alpha: float, trans: str) -> None:
    shape = (3, 0) if trans == "n" else (0, 3)
    buffers = kaas.Buffer("a", shape, "float32"), kaas.Buffer("x", 0, "float32"), kaas.Buffer("y", 3, "float32")
    inputs = {"a": np.empty(shape, np.float32), "x": np.empty(0, np.float32), "y": np.ones(3, np.float32)}
    np.testing.assert_array_equal(ran(gemv(*buffers, alpha=alpha, beta=3, trans=trans), **inputs), [3, 3, 3])
    chosen = gemv(*buffers, alpha=kaas.Scalar("alpha", "f32"), trans=trans)
    np.testing.assert_array_equal(ran(chosen, {"alpha": alpha}, **inputs), [0, 0, 0])


def test_infinities_of_complex_numbers_stay_infinities() -> None:
    a, x, y = (kaas.Buffer(name, shape, "complex64") for name, shape in (("a", (1, 1)), ("x", 1), ("y", 1)))
    kernels = gemv(a, x, y, alpha=2, beta=0.5)
    got = ran(
        kernels, a=np.zeros((1, 1), np.complex64), x=np.zeros(1, np.complex64), y=np.array([np.inf], np.complex64)
    )
    assert got.real == np.inf
    assert got.imag == 0


# --- refused arguments

Made = Callable[[], object]


A, X, Y = small()
DOUBLES = small("float64")
CROWDED = Vector(kaas.Buffer("y", 9, "float32"), 4, count=2, stride=3)
REFUSALS: list[tuple[type[BlasError], str, Made]] = [
    (ShapeMismatch, "makes a vector of 5 from one of 4, not one of 4 from one of 5", lambda: gemv(A, X, Y, trans="t")),
    (ShapeMismatch, "x has 3 entries, and y is no batch", lambda: gemv(A, kaas.Buffer("x", (3, 5), "float32"), Y)),
    (InvalidDtype, "x cannot have float64", lambda: gemv(A, DOUBLES[1], Y)),
    (InvalidDtype, "y cannot have float64", lambda: gemv(A, X, DOUBLES[2])),
    (InvalidDtype, "int32", lambda: gemv(*small("int32"))),
    (InvalidOption, "trans", lambda: gemv(A, X, Y, trans="h")),
    (InvalidOption, "layout", lambda: gemv(A, X, Y, layout="C")),
    (InvalidOption, "layout", lambda: gemv(A, X, Y, layout=np.array(["row", "column"]))),  # type: ignore[arg-type]
    (InvalidScalar, "alpha", lambda: gemv(A, X, Y, alpha=1j)),
    (InvalidScalar, "beta", lambda: gemv(A, X, Y, beta=kaas.Scalar("beta", "f64"))),
    (OverlappingOperands, "x is read from", lambda: gemv(kaas.Buffer("a", (4, 4), "float32"), Y, Y)),
    (OverlappingOperands, "in one place", lambda: gemv(kaas.Buffer("a", (2, 4, 5), "float32"), X, CROWDED)),
    (InvalidOperand, "a list", lambda: gemv([A], X, Y)),  # type: ignore[arg-type]
    (InvalidOperand, "of shape", lambda: gemv(A, kaas.Buffer("x", (1, 5, 1), "float32"), Y)),
    (InvalidOperand, "inc is not 0", lambda: Vector(X, 5, 0)),
    (InvalidOperand, "does not lie within its 5 elements", lambda: Vector(X, 3, 2, 1)),
    (InvalidOperand, "does not lie within its 5 elements", lambda: Vector(X, 3, -1, 1)),
    (InvalidOperand, "does not lie within its 5 elements", lambda: Vector(X, 2, count=3)),
    (InvalidOperand, "count is not negative", lambda: Vector(X, 2, count=-1)),
    (InvalidOperand, "size is an integer", lambda: Vector(X, 2.5)),  # type: ignore[arg-type]
    (InvalidOperand, "size is an integer, not None", lambda: Vector(X, None)),  # type: ignore[arg-type]
    (InvalidOperand, "inc is an integer, not None", lambda: Vector(X, 5, None)),  # type: ignore[arg-type]
    (InvalidOperand, "offset is an integer, not None", lambda: Vector(X, 5, 1, None)),  # type: ignore[arg-type]
    (InvalidOperand, r"inc is an integer below 2\*\*62", lambda: Vector(X, 1, inc=-(1 << 62))),
    (InvalidOperand, "stride is an integer", lambda: Vector(X, 1, count=1, stride=1 << 63)),
    (InvalidOperand, "without a count", lambda: Vector(X, 1, stride=4)),
]


@pytest.mark.parametrize(("kind", "words", "call"), REFUSALS)
def test_impossible_calls_are_refused_when_the_kernel_is_made(kind: type[BlasError], words: str, call: Made) -> None:
    with pytest.raises(kind, match=words):
        call()


# --- how work is shared out

shapes = st.tuples(
    st.integers(0, 1 << 20), st.integers(0, 1 << 20), st.integers(0, 1 << 16), st.sampled_from([1, 2, 4, 8])
)


@given(shapes)
def test_every_element_has_one_block_and_long_sums_have_several(shape: tuple[int, int, int, int]) -> None:
    outputs, inner, count, vector = shape
    for share, columns in ((over_rows, 1), (over_columns, vector)):
        lanes, blocks, splits, chunk = share(outputs, inner, count, vector)
        assert 256 % lanes == 0
        of_a_block = lanes * columns if share is over_columns else 256 // lanes
        assert blocks * of_a_block >= outputs
        assert (blocks - 1) * of_a_block < max(1, outputs)
        assert splits * chunk >= inner
        assert (splits - 1) * chunk < max(1, inner)
        assert splits <= 264
