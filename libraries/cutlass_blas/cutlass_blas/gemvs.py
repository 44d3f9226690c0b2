"""Products of a matrix and a vector: checked calls become launches of the kernels in `device/gemv.cuh`."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from cutlass_blas.batches import Access
from cutlass_blas.errors import InvalidDtype, InvalidOperand, InvalidOption, OverlappingOperands, ShapeMismatch
from cutlass_blas.operands import Matrix, Operand, letter, operand
from cutlass_blas.provider import library
from cutlass_blas.scalars import coefficient, is_zero
from cutlass_blas.vectors import Vector, vector
from kaas import Buffer, In, InOut, Kernel, Literal, Null, Out, Scalar, Struct

THREADS, WARP, VECTOR_BYTES = 256, 32, 16
"""As in gemv.cuh."""
LAYOUTS = ("row", "column")
BLOCKS = 264
"""The number of blocks that keep a large device busy: two for each multiprocessor of an H100."""
MOST_BATCHES = 65535
"""The most batch entries of a grid; with more, each block computes several, MOST_BATCHES entries apart."""
SINGLE_LANE_OUTPUTS = 2048
"""From so many outputs on, the last kernel takes one thread for each output."""


class Kind(NamedTuple):
    """A dtype: the letter in its kernels' names, the bytes of an element, and the kind of alpha and beta."""

    letter: str
    element_bytes: int
    factor: str

    @property
    def vector(self) -> int:
        """The number of elements in 16 bytes."""
        return VECTOR_BYTES // self.element_bytes


KINDS = {
    "float32": Kind("s", 4, "f32"),
    "float64": Kind("d", 8, "f64"),
    "complex64": Kind("c", 8, "c64"),
    "complex128": Kind("z", 16, "c128"),
    "float16": Kind("h", 2, "f32"),
    "bfloat16": Kind("b", 2, "f32"),
}
WORKSPACES = {"f32": "float32", "f64": "float64", "c64": "complex64", "c128": "complex128"}


class Geometry(NamedTuple):
    """The division of a product among threads and blocks.

    Fields:
        lanes: adjacent threads along contiguous elements, a power of two.
        blocks: the number that covers the outputs.
        splits: the number of blocks that share one output's sum. chunk: the terms of the sum for each of them.
    """

    lanes: int
    blocks: int
    splits: int
    chunk: int


def over_rows(outputs: int, inner: int, count: int, vector: int) -> Geometry:
    """Return the geometry of a launch that adds up contiguous rows; `vector` elements are 16 bytes."""
    few = outputs * count < BLOCKS and inner >= THREADS * vector
    lanes = THREADS if few else _power_of_two(_up(inner, vector), WARP)
    blocks = max(1, _up(outputs, THREADS // lanes))
    return Geometry(lanes, blocks, *_shared(blocks * count, inner, lanes * vector, 4))


def over_columns(outputs: int, inner: int, count: int, vector: int) -> Geometry:
    """Return the geometry of a launch that adds up strided columns, whose outputs are contiguous."""
    lanes = _power_of_two(_up(outputs, vector), WARP)
    blocks = max(1, _up(outputs, lanes * vector))
    return Geometry(lanes, blocks, *_shared(blocks * count, inner, THREADS // lanes, 8))


def _shared(blocks: int, inner: int, step: int, least_steps: int) -> tuple[int, int]:
    """Return the number of blocks that share a sum, and each block's terms: whole steps of a block, not too few."""
    wanted = min(BLOCKS // max(1, blocks), inner // (step * least_steps))
    chunk = _up(_up(inner, max(1, wanted)), step) * step or step
    return max(1, _up(inner, chunk)), chunk


def _up(number: int, unit: int) -> int:
    return -(-number // unit)


def _power_of_two(least: int, most: int) -> int:
    return min(most, 1 << max(0, least - 1).bit_length())


def gemv(
    a: Buffer | Matrix,
    x: Buffer | Vector,
    y: Buffer | Vector,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    trans: str = "n",
    layout: str = "row",
) -> tuple[Kernel, ...]:
    """Return the kernels of y = alpha op(A) x + beta y.

    A few outputs with long sums take two launches with a temporary buffer between them; all else takes one launch.

    y has the dtype of a and x, or float32 for float16 and bfloat16. As in BLAS, y is not read if beta is 0, nor are A
    and x if alpha is 0. Sums are the same in each run.

    Args:
        a: (m, n), or (count, m, n): a batch. A Matrix has any leading dimension.
        x: a vector of n elements, or (count, n); with trans, m in the place of n. A Vector has any increment. A single
            a or x goes with all entries of a batch.
        y: a vector of m elements, or (count, m); with trans, n in the place of m.
        alpha: a number, or a kaas.Scalar of the sums' kind: f32 (also for float16 and bfloat16), f64, c64, c128.
        beta: as alpha.
        trans: op: "n", "t" (transposed) or "c" (transposed and conjugated).
        layout: of A: "row" or "column", that is column-major memory of the same (m, n).

    Raises:
        InvalidOperand, ShapeMismatch, InvalidDtype, InvalidOption, InvalidScalar, OverlappingOperands
    """
    if not isinstance(layout, str) or layout not in LAYOUTS:
        words = f"layout is one of {', '.join(LAYOUTS)}, not {layout!r}"
        raise InvalidOption(words, option="layout", value=repr(layout), known=LAYOUTS)
    column_major = layout == "column"
    matrix, x, y = _matrix(a, column_major), vector("x", x), vector("y", y)
    kind = _kind(matrix.dtype, x.buffer.dtype, y.buffer.dtype)
    op = letter("trans", trans, kind.factor in ("c64", "c128"))
    _check_shapes(matrix, x, y, op != "n")
    _check_overlap(matrix, x, y)
    across = (op != "n") != column_major  # in memory, a column-major matrix is transposed
    scale, keep = (_factor(name, value, kind) for name, value in (("alpha", alpha), ("beta", beta)))
    overwrites = y.covers and isinstance(keep, Literal) and is_zero(keep.data, kind.factor)
    product = _VectorProduct(matrix, x, y, kind, across, op == "c", scale, keep, Out if overwrites else InOut)
    return product.launches()


class _VectorProduct(NamedTuple):
    """A checked call.

    Fields:
        across: True if sums run from row to row of memory, not along a row.
        scale, keep: alpha and beta as arguments. access: Out or InOut for y.
    """

    a: Operand
    x: Vector
    y: Vector
    kind: Kind
    across: bool
    conjugate: bool
    scale: Literal | Scalar
    keep: Literal | Scalar
    access: type[Out] | type[InOut]

    def launches(self) -> tuple[Kernel, ...]:
        outputs, count = self.y.size, self.y.entries
        inner = self.x.size if outputs and count else 0  # without outputs there are no sums to share
        geometry = (over_columns if self.across else over_rows)(outputs, inner, count, self.kind.vector)
        grid = (geometry.blocks, geometry.splits, _batches(count))
        block = (geometry.lanes, THREADS // geometry.lanes)
        symbol = f"gemv_{'columns' if self.across else 'rows'}_{self.kind.letter}"
        sources = (_pointer(In, self.a.buffers[0], self.a.offsets[0]), _pointer(In, self.x.buffer, self.x.offset))
        target = _pointer(self.access, self.y.buffer, self.y.offset)
        values = (self.scale, self.keep, self._sizes(geometry))
        if geometry.splits == 1:
            return (Kernel(library("gemv"), symbol, grid, block, (*sources, target, Null, *values)),)
        # named after its shape too: products of the same y and shape may share it
        name = f"{self.y.buffer.name}.gemv{count}x{geometry.splits}x{outputs}"
        parts = Buffer(name, (count, geometry.splits, outputs), WORKSPACES[self.kind.factor])
        first = Kernel(library("gemv"), symbol, grid, block, (*sources, Null, Out(parts), *values))
        return first, self._finish(parts, geometry, target)

    def _finish(self, parts: Buffer, geometry: Geometry, target: Access) -> Kernel:
        outputs = self.y.size
        lanes = 1 if outputs >= SINGLE_LANE_OUTPUTS else _power_of_two(geometry.splits, WARP)
        blocks = _up(outputs, THREADS // lanes)
        symbol = f"gemv_finish_{KINDS[self.y.buffer.dtype].letter}"
        arguments = (In(parts), target, self.scale, self.keep, self._sizes(geometry, finish=True))
        grid = (blocks, 1, _batches(self.y.entries))
        return Kernel(library("gemv"), symbol, grid, (lanes, THREADS // lanes), arguments)

    def _sizes(self, geometry: Geometry, *, finish: bool = False) -> Struct:
        """Return the struct Sizes of gemv.cuh."""
        a, x, y = self.a, self.x, self.y
        outputs, inner = y.size, x.size
        rows, columns = (inner, outputs) if self.across and not finish else (outputs, inner)
        strides = (y.entries, *(0 if each.count is None else each.stride for each in (a, x, y)))
        shared = (geometry.chunk, geometry.splits, int(self.conjugate))
        return Struct(struct.pack("<12q", rows, columns, a.ld, x.inc, y.inc, *strides, *shared), align=8)


def _matrix(given: Any, column_major: bool) -> Operand:
    if isinstance(given, list | tuple):
        raise InvalidOperand("a is a kaas.Buffer or a Matrix, not a list of them", operand="a")
    return operand("a", given, column_major)


def _kind(a: str, x: str, y: str) -> Kind:
    """Return the kind of a product.

    Raises:
        InvalidDtype: the dtypes do not fit.
    """
    dtypes = {"a": a, "x": x, "y": y}
    kind = KINDS[a]
    if kind.element_bytes == 2 and y == "float32":
        kind = kind._replace(letter=kind.letter + "s")
    elif y != a:
        raise InvalidDtype(f"a has elements of {a}: y cannot have {y}", dtypes=dtypes)
    if x != a:
        raise InvalidDtype(f"a has elements of {a}: x cannot have {x}", dtypes=dtypes)
    return kind


def _check_shapes(a: Operand, x: Vector, y: Vector, transposed: bool) -> None:
    """Check the sizes, and the entries of batches.

    Raises:
        ShapeMismatch: they do not fit.
    """
    outputs, inner = (a.columns, a.rows) if transposed else (a.rows, a.columns)
    shapes = {"a": a.shape, "x": x.shape, "y": y.shape}
    if (x.size, y.size) != (inner, outputs):
        words = f"op(A) of shape {(outputs, inner)} makes a vector of {outputs} from one of {inner}"
        raise ShapeMismatch(f"{words}, not one of {y.size} from one of {x.size}", shapes=shapes)
    given = {name: each.count for name, each in (("a", a), ("x", x)) if each.count is not None}
    if any(count != y.count for count in given.values()):
        words = " and ".join(f"{name} has {count} entries" for name, count in given.items())
        raise ShapeMismatch(f"{words}, and y {'is no batch' if y.count is None else f'has {y.count}'}", shapes=shapes)


def _check_overlap(a: Operand, x: Vector, y: Vector) -> None:
    """Check that y overlaps nothing.

    Raises:
        OverlappingOperands: y's buffer is read too, or two elements of y may have one address.
    """
    for name, each in (("a", a.buffers[0]), ("x", x.buffer)):
        if each.name == y.buffer.name:
            words = f"y is written into {y.buffer.name!r}, which {name} is read from"
            raise OverlappingOperands(words, operands=("y", name), buffer=y.buffer.name)
    if y.overlaps:
        words = f"y has elements in one place: {y.words}"
        raise OverlappingOperands(words, operands=("y", "y"), buffer=y.buffer.name)


def _factor(name: str, value: Any, kind: Kind) -> Literal | Scalar:
    data, scalar = coefficient(name, value, kind.factor)
    return Literal(kind.factor, data) if scalar is None else scalar


def _pointer(access: type[Access], buffer: Buffer, offset: int) -> Access:
    # the offset of an empty operand may be the buffer's end, which no argument may have
    offset_bytes = offset * KINDS[buffer.dtype].element_bytes
    return access(buffer, offset_bytes if offset_bytes < buffer.nbytes else 0)


def _batches(count: int) -> int:
    return min(max(1, count), MOST_BATCHES)
