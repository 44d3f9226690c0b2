"""NumPy's matmul as kernels: any number of dimensions, broadcast, in as few products as the memory layout allows."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, NamedTuple

from cutlass_blas.errors import InvalidOperand, ShapeMismatch
from cutlass_blas.gemms import gemm
from cutlass_blas.gemvs import gemv
from cutlass_blas.operands import Matrix
from cutlass_blas.vectors import Vector
from kaas import Buffer, Kernel

Dimensions = tuple[int, ...]


class Axis(NamedTuple):
    """A dimension of the batch: its size, and the elements between entries of each operand; 0 if it is broadcast."""

    size: int
    a: int
    b: int
    c: int


class Product(NamedTuple):
    """A broadcast product of contiguous arrays: for each entry of the axes, an (m, k) by a (k, n).

    Fields:
        shape: the result's shape in NumPy.
    """

    m: int
    n: int
    k: int
    axes: tuple[Axis, ...]
    shape: Dimensions


def matmul(
    a: Buffer,
    b: Buffer,
    c: Buffer,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    epilogue: Any = None,
    compute: str | None = None,
    arch: str | None = None,
) -> tuple[Kernel, ...]:
    """Return the kernels of c = alpha (a @ b) + beta c, as numpy.matmul defines a @ b.

    `alpha`, `beta`, `epilogue`, `compute` and `arch` are those of `gemm`; a bias goes along c's last dimension. `gemv`
    computes products of vectors, unless there is an epilogue or a `compute`.

    `a` and `b` have one or more dimensions. The last two are matrices, and those before them are broadcast. With one
    dimension, a is a row and b is a column, and the result lacks that dimension. c has exactly the result's shape: ()
    for two vectors.

    Batch dimensions at equal distances in memory are one batch. If b has no batch dimensions, the entries of a are the
    rows of one matrix. All other batches take tables of pointers, in one launch.

    Raises:
        ShapeMismatch: the shapes of a and b do not fit, or the result's shape is not c's.
        InvalidOperand: an operand is no buffer, or a or b has no dimension.
        BlasError: see `gemm` and `gemv`.
    """
    for name, buffer in (("a", a), ("b", b), ("c", c)):
        if not isinstance(buffer, Buffer):
            raise InvalidOperand(f"{name} is a kaas.Buffer, not {buffer!r}", operand=name)
        if name != "c" and not buffer.shape:
            words = f"{name} is {buffer.name!r}, a single element: matmul takes one dimension or more"
            raise InvalidOperand(words, operand=name, buffer=buffer.name, shape=())
    found = product_of(a.shape, b.shape)
    if found.shape != c.shape:
        words = f"{a.shape} @ {b.shape} is of shape {found.shape}, and c of {c.shape}"
        raise ShapeMismatch(words, shapes={"a": a.shape, "b": b.shape, "c": c.shape})
    plain = epilogue is None and compute is None and 0 not in found.shape
    if plain and 1 in (found.m, found.n) and len(found.axes) <= 1:
        return _by_vectors(found, a, b, c, alpha, beta)
    options = {"alpha": alpha, "beta": beta, "epilogue": epilogue, "compute": compute, "arch": arch}
    if len(b.shape) == 1 < len(a.shape) and epilogue is not None:  # c becomes a row, along which a bias goes
        *outer, m, k = a.shape
        count = math.prod(outer) if outer else None
        return gemm(Matrix(b, 1, k), Matrix(a, m, k, count=count), Matrix(c, 1, m, count=count), trans_b="t", **options)
    return gemm(
        _matrices(a, found.m, found.k, [axis.a for axis in found.axes], found.axes),
        _matrices(b, found.k, found.n, [axis.b for axis in found.axes], found.axes),
        _matrices(c, found.m, found.n, [axis.c for axis in found.axes], found.axes),
        **options,
    )


def product_of(a: Dimensions, b: Dimensions) -> Product:
    """Return the product of two shapes, with as few axes as possible.

    Raises:
        ShapeMismatch: inner sizes differ, or dimensions cannot be broadcast.
    """
    rows = (1, *a) if len(a) == 1 else a
    columns = (*b, 1) if len(b) == 1 else b
    (*outer_a, m, k), (*outer_b, inner, n) = rows, columns
    shapes = {"a": a, "b": b}
    if k != inner:
        words = f"{a} @ {b}: the last dimension of a is {k}, and the {'one' if len(b) == 1 else 'second to last'} of b"
        raise ShapeMismatch(f"{words} is {inner}", shapes=shapes)
    dimensions = max(len(outer_a), len(outer_b))
    sizes_a = (1,) * (dimensions - len(outer_a)) + tuple(outer_a)
    sizes_b = (1,) * (dimensions - len(outer_b)) + tuple(outer_b)
    for size_a, size_b in zip(sizes_a, sizes_b, strict=True):
        if size_a != size_b and 1 not in (size_a, size_b):
            raise ShapeMismatch(f"{a} @ {b}: {tuple(outer_a)} and {tuple(outer_b)} do not broadcast", shapes=shapes)
    sizes = tuple(size_b if size_a == 1 else size_a for size_a, size_b in zip(sizes_a, sizes_b, strict=True))
    shape = (*sizes, *((m,) if len(a) > 1 else ()), *((n,) if len(b) > 1 else ()))
    if 0 in sizes:
        return Product(m, n, k, (Axis(0, 0, 0, m * n),), shape)
    strides = zip(sizes, _strides(sizes_a, m * k), _strides(sizes_b, k * n), _strides(sizes, m * n), strict=True)
    return _folded(Product(m, n, k, _merged([Axis(*axis) for axis in strides if axis[0] != 1]), shape))


def _strides(sizes: Dimensions, entry: int) -> list[int]:
    """Return the strides of a contiguous array of entries; 0 for a size of 1, which is broadcast."""
    strides = [entry * math.prod(sizes[position + 1 :]) for position in range(len(sizes))]
    return [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]


def _merged(axes: list[Axis]) -> tuple[Axis, ...]:
    """Merge adjacent axes if all three operands step through both in equal distances."""
    merged: list[Axis] = []
    for axis in axes:
        if merged and all(far == near * axis.size for far, near in zip(merged[-1][1:], axis[1:], strict=True)):
            axis = axis._replace(size=axis.size * merged.pop().size)
        merged.append(axis)
    return tuple(merged)


def _folded(found: Product) -> Product:
    """Return the product with the last axis as rows of a and c, if b is the same along that axis."""
    if not found.axes or found.axes[-1].b != 0 or found.axes[-1].a != found.m * found.k:
        return found
    *axes, last = found.axes
    return found._replace(m=found.m * last.size, axes=tuple(axes))


def _matrices(buffer: Buffer, rows: int, columns: int, strides: list[int], axes: tuple[Axis, ...]) -> Any:
    """Return an operand as `gemm` takes it: one matrix, a batch at equal distances, or a list."""
    if not any(strides) and buffer.nbytes:
        return Matrix(buffer, rows, columns)
    if len(axes) <= 1:
        count, stride = (axes[0].size, strides[0]) if axes else (None, None)
        return Matrix(buffer, rows, columns, count=count, stride=stride)
    entries = product(*(range(axis.size) for axis in axes))
    offsets = (sum(index * stride for index, stride in zip(entry, strides, strict=True)) for entry in entries)
    return [Matrix(buffer, rows, columns, offset=offset) for offset in offsets]


def _by_vectors(found: Product, a: Buffer, b: Buffer, c: Buffer, alpha: Any, beta: Any) -> tuple[Kernel, ...]:
    count, steps = (found.axes[0].size, found.axes[0]) if found.axes else (None, Axis(1, 0, 0, 0))
    if found.n == 1:
        matrix, rows, columns, step, trans = a, found.m, found.k, steps.a, "n"
        x, x_step = b, steps.b
    else:
        matrix, rows, columns, step, trans = b, found.k, found.n, steps.b, "t"
        x, x_step = a, steps.a

    def batch(stride: int) -> dict[str, Any]:
        return {} if count is None or not stride else {"count": count, "stride": stride}

    size = found.m if found.n == 1 else found.n
    y = Vector(c, size) if count is None else Vector(c, size, count=count, stride=steps.c)
    factor = Vector(x, found.k, **batch(x_step))
    return gemv(Matrix(matrix, rows, columns, **batch(step)), factor, y, alpha=alpha, beta=beta, trans=trans)
