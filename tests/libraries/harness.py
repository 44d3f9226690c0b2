"""Matrices anywhere in memory, runs of BLAS kernels on the software GPU, SciPy's results and error bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas

import cutlass_blas
import kaas

Array = NDArray[Any]

ROUTINES = {"float32": blas.sgemm, "float64": blas.dgemm, "complex64": blas.cgemm, "complex128": blas.zgemm}
SCALARS = {"float32": "f32", "float64": "f64", "complex64": "c64", "complex128": "c128"}
"""Dtype of sums -> kind of alpha and beta."""

ACCUMULATED = {"float16": "float32", "bfloat16": "float32"}
"""Dtype of operands -> dtype of sums, if it is another."""

UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53,
         "complex64": 2.0**-24, "complex128": 2.0**-53}  # fmt: skip
"""Largest relative error of one rounding."""

SMALLEST = {"float16": 2.0**-24, "bfloat16": 2.0**-133, "float32": 2.0**-149, "float64": 5e-324}
"""The smallest number above 0."""

GUARD = 0xFF
"""Every byte of memory outside of the matrices; two, four or eight of these bytes are NaN."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def is_complex(dtype: str) -> bool:
    return dtype.startswith("complex")


# --- operands in memory


@dataclass(frozen=True, slots=True)
class Placed:
    """A matrix, or a batch of them, inside a buffer.

    Fields:
        operand: what `gemm` is given. buffer: what it lies in.
        memory: what the buffer holds before. where: of each element of the matrices, its place in there.
    """

    operand: Any
    buffer: kaas.Buffer
    memory: Array
    where: NDArray[np.intp]

    def elements(self, memory: Array) -> Array:
        """Return the matrices from the buffer's current contents."""
        return np.asarray(memory.reshape(-1)[self.where])

    def untouched(self, memory: Array) -> bool:
        """Return True if all bytes outside of the matrices are unchanged."""
        around = np.ones(self.memory.size, bool)
        around[self.where] = False
        before, now = (np.ascontiguousarray(one.reshape(-1)[around]).view(np.uint8) for one in (self.memory, memory))
        return bool((before == now).all())


def place(
    name: str,
    values: Array,
    *,
    layout: str = "row",
    pad: int = 0,
    offset: int = 0,
    gap: int = 0,
    after: int = 0,
) -> Placed:
    """Return a matrix (2-D) or a batch (3-D) placed in a buffer.

    Args:
        pad: elements between the end of a row (in layout "column": of a column) and the start of the next.
        offset, after: elements before the first and behind the last. gap: elements between matrices of a batch.
    Without all of these the operand is the buffer itself, with the shape of the values.
    """
    count, (rows, columns) = (values.shape[0] if values.ndim == 3 else 1), values.shape[-2:]
    major, minor = (rows, columns) if layout == "row" else (columns, rows)
    ld = minor + pad
    stride = major * ld + gap
    i, j = np.indices((rows, columns))
    inner = i * ld + j if layout == "row" else j * ld + i
    where = offset + inner + stride * np.arange(count).reshape(-1, 1, 1)
    where = where if values.ndim == 3 else where[0]
    plain = not (pad or offset or gap or after)
    memory = np.full(values.nbytes if plain else (offset + count * stride + after) * values.itemsize, GUARD, np.uint8)
    memory = memory.view(values.dtype)
    memory[where] = values
    buffer = kaas.Buffer(name, values.shape if plain else memory.shape, values.dtype)
    operand: Any = buffer
    if not plain:
        batch = {"count": count, "stride": stride} if values.ndim == 3 else {}
        operand = cutlass_blas.Matrix(buffer, rows, columns, ld=max(1, ld), offset=offset, **batch)
    return Placed(operand, buffer, memory, where)


def run(
    kernels: Iterable[kaas.Kernel],
    given: Mapping[str, Array],
    outputs: Sequence[kaas.Buffer],
    scalars: Mapping[str, Any] | None = None,
) -> dict[str, Array]:
    """Return the outputs of the kernels as one kTask, which gets those of the arrays that it reads."""
    task = kaas.KTask(kernels, outputs)
    inputs = {buffer.name: given[buffer.name].reshape(buffer.shape) for buffer in task.inputs}
    return kaas.run_local(task, inputs, scalars=scalars)


def multiply(
    a: Placed | Sequence[Placed],
    b: Placed | Sequence[Placed],
    c: Placed | Sequence[Placed],
    *,
    scalars: Mapping[str, Any] | None = None,
    extra: Mapping[str, Array] | None = None,
    **options: Any,
) -> Any:
    """Return C after `gemm`, or each C of several, and assert that nothing around it has changed.

    Args:
        extra: what other buffers hold, such as a bias. options: of `gemm`.
    """
    groups = [[one] if isinstance(one, Placed) else list(one) for one in (a, b, c)]
    operands = [one.operand if isinstance(one, Placed) else [each.operand for each in one] for one in (a, b, c)]
    kernels = cutlass_blas.gemm(*operands, **options)
    given = {placed.buffer.name: placed.memory for group in groups for placed in group} | dict(extra or {})
    outputs = list(dict.fromkeys(placed.buffer for placed in groups[2]))
    results = run(kernels, given, outputs, scalars)
    for placed in groups[2]:
        if len(outputs) == len(groups[2]):
            assert placed.untouched(results[placed.buffer.name]), (
                f"{placed.buffer.name} was written outside of its matrix"
            )
    found = [placed.elements(results[placed.buffer.name]) for placed in groups[2]]
    return found[0] if isinstance(c, Placed) else found


# --- expected results


def op(values: Array, trans: str) -> Array:
    """Return op(A) of one matrix or of each matrix of a batch."""
    turned = values if trans == "n" else np.swapaxes(values, -1, -2)
    return turned.conj() if trans == "c" else turned


def scipy_gemm(a: Array, b: Array, c: Array, alpha: Any, beta: Any, trans_a: str, trans_b: str) -> Array:
    """Return alpha op(a) op(b) + beta c by SciPy's BLAS, in the arrays' dtype; sizes must not be 0."""
    if 0 in (*c.shape, *a.shape):
        return np.zeros_like(c) if beta == 0 else np.asarray(c.dtype.type(beta) * c)
    code = {"n": 0, "t": 1, "c": 2}
    routine = ROUTINES[c.dtype.name]
    return np.asarray(routine(alpha, a, b, beta, c, trans_a=code[trans_a], trans_b=code[trans_b]))


def bound(
    a: Array, b: Array, c: Array, alpha: Any, beta: Any, dtype: str, *, inner: float = 0.0, slices: int = 1
) -> Array:
    """Return the largest allowed difference of two computations of alpha a b + beta c, for each element; op is applied.

    Each is off by at most gamma(n) = n u / (1 - n u) times the same sum over magnitudes (Higham, Accuracy and Stability
    of Numerical Algorithms, 3.5), n the roundings on the longest way: k products and sums, and a few of the scalars;
    a complex product has two more. Outputs of half precision are rounded once more.

    Args:
        dtype: of C. inner: relative error of what operands are rounded to before products (tf32). slices: of split-K.
    """
    size = [np.abs(np.asarray(one, np.complex128)) for one in (a, b, c)]
    wide = ACCUMULATED.get(a.dtype.name, a.dtype.name)
    n = (a.shape[-1] + slices + 4) * (3 if is_complex(wide) else 1)
    gamma = n * UNITS[wide] / (1 - n * UNITS[wide])
    product = abs(alpha) * (size[0] @ size[1])
    whole = product + (abs(beta) * size[2] if beta != 0 else 0)
    tiny = 0.0 if is_complex(dtype) else SMALLEST[dtype]
    rounding = UNITS[dtype] * whole if dtype != wide else 0.0
    return np.asarray(2 * gamma * whole + 2 * inner * product + 1.01 * rounding + tiny)


def assert_close(found: Array, expected: Array, allowed: Array) -> None:
    """Assert that all elements are within the bound; the message names the worst one."""
    assert found.shape == expected.shape
    wide = np.complex128 if is_complex(found.dtype.name) else np.float64
    off = np.abs(found.astype(wide) - expected.astype(wide))
    excess = np.where(off <= allowed, 0, off)
    if excess.any() or not np.isfinite(off).all():
        at = np.unravel_index(int(np.argmax(np.where(np.isfinite(off), excess, np.inf))), off.shape)
        raise AssertionError(f"{found[at]} instead of {expected[at]} at {at}, where {allowed[at]:.3g} is allowed")


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return normally distributed numbers; complex ones have both parts."""
    values = rng.standard_normal(shape)
    if is_complex(dtype):
        return np.asarray((values + 1j * rng.standard_normal(shape)).astype(dtype))
    return np.asarray(values.astype(numpy_dtype(dtype)))
