"""The operands of gemm: matrices in buffers, checked before a kernel is made of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final, NamedTuple

from cutlass_blas.errors import InvalidDtype, InvalidOperand, InvalidOption
from kaas import Buffer

KINDS: Final = {
    "float32": "s",
    "float64": "d",
    "complex64": "c",
    "complex128": "z",
    "float16": "h",
    "bfloat16": "b",
}
"""Dtype of the elements -> kind of product."""
DTYPE_BYTES: Final = {"float32": 4, "float64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2}
SUM_DTYPES: Final = {
    "s": "float32",
    "d": "float64",
    "c": "complex64",
    "z": "complex128",
    "h": "float32",
    "b": "float32",
    "t": "float32",
}
"""Kind of product -> dtype of its sums and of its workspace."""
LETTERS: Final = {"n": "n", "t": "t", "c": "c", "N": "n", "T": "t", "C": "c"}
"""A given letter -> the letter of instances. Fortran programs use capital letters."""
LIMIT: Final = 1 << 62
"""All distances and sizes are below this limit: kernels count in 64 bits."""


@dataclass(frozen=True, slots=True, init=False)
class Matrix:
    """A matrix within a buffer, or a batch of them at equal distances.

    Args:
        buffer: of any shape; its dtype is the matrix's.
        rows, columns: of the logical matrix, before it is transposed.
        ld: leading dimension, in elements: from one row to the next (layout "row"), or from one column to the next
            (layout "column"). None: no gaps.
        offset: of the first element, in elements of the buffer.
        count: the number of matrices; None is a single matrix, which goes with every entry of the others' batches.
        stride: from one matrix to the next, in elements. None: no gaps.

    Raises:
        InvalidOperand: a number is no integer from 0 to 2**62. gemm checks that the matrix lies within its buffer,
            which depends on the layout.
    """

    buffer: Buffer
    rows: int
    columns: int
    ld: int | None
    offset: int
    count: int | None
    stride: int | None

    def __init__(
        self,
        buffer: Buffer,
        rows: int,
        columns: int,
        ld: int | None = None,
        offset: int = 0,
        *,
        count: int | None = None,
        stride: int | None = None,
    ) -> None:
        if not isinstance(buffer, Buffer):
            raise InvalidOperand(f"a Matrix lies in a kaas.Buffer, not in {buffer!r}")
        numbers = {"rows": rows, "columns": columns, "ld": ld, "offset": offset, "count": count, "stride": stride}
        for name, value in numbers.items():
            optional = name in ("ld", "count", "stride")
            number = None if value is None and optional else natural(value)
            if number is None and not (value is None and optional):
                what = f"a Matrix in buffer {buffer.name!r}: {name} is an integer from 0 to 2**62, not {value!r}"
                raise InvalidOperand(what, buffer=buffer.name, shape=buffer.shape)
            object.__setattr__(self, name, number)
        if stride is not None and count is None:
            what = f"a Matrix in buffer {buffer.name!r} has a stride of {stride} but no count of matrices"
            raise InvalidOperand(what, buffer=buffer.name, shape=buffer.shape)
        object.__setattr__(self, "buffer", buffer)


Given = Buffer | Matrix | Sequence[Buffer | Matrix]
"""The types of an argument for a matrix or a batch of matrices."""


class Operand(NamedTuple):
    """A matrix, or several of one shape, in memory; a tuple, since making a gemm should take little time.

    Fields:
        name: the name of the caller's parameter: "a".
        buffers, offsets: the place of the first element, in elements; one for every matrix if `table`, else one.
        rows, columns: before it is transposed.
        ld: elements from one row (layout "column": column) to the next, at least 1.
        count, stride: the number of matrices, None if it is no batch, and the elements from one to the next.
    """

    name: str
    buffers: tuple[Buffer, ...]
    offsets: tuple[int, ...]
    rows: int
    columns: int
    ld: int
    count: int | None  # type: ignore[assignment] # hides a tuple's own `count`
    stride: int
    table: bool
    dtype: str

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, columns), with the count before them if it is a batch."""
        return (self.rows, self.columns) if self.count is None else (self.count, self.rows, self.columns)

    def place(self, entry: int) -> tuple[Buffer, int]:
        """Return the buffer and the offset of a batch's matrix; every entry of a single matrix is that matrix."""
        if self.table:
            return self.buffers[entry], self.offsets[entry]
        return self.buffers[0], self.offsets[0] + (entry * self.stride if self.count is not None else 0)


def operand(name: str, given: Any, column: bool) -> Operand:
    """Return the operand for an argument, checked without the others.

    Raises:
        InvalidOperand: no matrix, or a matrix that does not lie within its buffer.
        InvalidDtype: elements that this library does not multiply.
    """
    if isinstance(given, Buffer):
        shape, dtype = given.shape, given.dtype
        if dtype not in KINDS:
            known = ", ".join(KINDS)
            raise InvalidDtype(f"{name} has elements of {dtype}; known are {known}", dtypes={name: dtype})
        if len(shape) == 2:
            rows, columns = shape
            return Operand(
                name, (given,), (0,), rows, columns, (rows if column else columns) or 1, None, 0, False, dtype
            )
        if len(shape) == 3:
            count, rows, columns = shape
            ld = (rows if column else columns) or 1
            return Operand(name, (given,), (0,), rows, columns, ld, count, rows * columns, False, dtype)
        raise InvalidOperand(
            f"{name} is a matrix or a batch of them, but buffer {given.name!r} has the shape {shape}; "
            "give it 2 or 3 dimensions, or say by a Matrix what lies where",
            operand=name,
            buffer=given.name,
            shape=shape,
        )
    if isinstance(given, Matrix):
        return _view(name, given, column)
    if isinstance(given, list | tuple):
        return _table(name, given, column)
    raise InvalidOperand(f"{name} is a kaas.Buffer, a Matrix or a list of them, not {given!r}", operand=name)


def _view(name: str, matrix: Matrix, column: bool) -> Operand:
    buffer, rows, columns, offset, count = matrix.buffer, matrix.rows, matrix.columns, matrix.offset, matrix.count
    if buffer.dtype not in KINDS:
        known = ", ".join(KINDS)
        raise InvalidDtype(f"{name} has elements of {buffer.dtype}; known are {known}", dtypes={name: buffer.dtype})
    inner, outer, across = (rows, columns, "column") if column else (columns, rows, "row")
    ld = (inner or 1) if matrix.ld is None else matrix.ld
    where = {"operand": name, "buffer": buffer.name, "shape": buffer.shape}
    if ld < max(1, inner):
        raise InvalidOperand(
            f"{name}: a leading dimension of {ld} is less than a {across} of {inner} elements", **where
        )
    stride = (ld * outer if matrix.stride is None else matrix.stride) if count is not None else 0
    elements = math.prod(buffer.shape)
    last = offset + (0 if count is None else (count - 1) * stride) + (outer - 1) * ld + inner
    if offset > elements or stride >= LIMIT or (rows and columns and count != 0 and last > elements):
        raise InvalidOperand(
            f"{name}: a Matrix of {rows}x{columns} at {offset} with a leading dimension of {ld}"
            + ("" if count is None else f", {count} of them {stride} apart,")
            + f" ends at element {last}, beyond buffer {buffer.name!r} of {elements}",
            **where,
        )
    return Operand(name, (buffer,), (offset,), rows, columns, ld, count, stride, False, buffer.dtype)


def _table(name: str, given: Sequence[Any], column: bool) -> Operand:
    if not given:
        raise InvalidOperand(f"{name} is an empty list: a kernel needs at least one matrix", operand=name)
    entries = [operand(f"{name}[{position}]", each, column) for position, each in enumerate(given)]
    first = entries[0]
    for entry in entries:
        where = {"operand": entry.name, "buffer": entry.buffers[0].name, "shape": entry.buffers[0].shape}
        if entry.table or entry.count is not None:
            raise InvalidOperand(f"{entry.name} is a batch itself; a list is of single matrices", **where)
        if entry.dtype != first.dtype:
            dtypes = {first.name: first.dtype, entry.name: entry.dtype}
            raise InvalidDtype(
                f"the matrices of a list have one dtype: {first.name} is {first.dtype}, {entry.name} {entry.dtype}",
                dtypes=dtypes,
            )
        if (entry.rows, entry.columns, entry.ld) != (first.rows, first.columns, first.ld):
            raise InvalidOperand(
                f"the matrices of a list have one shape and one leading dimension: {first.name} is {first.rows}x"
                f"{first.columns} with {first.ld}, {entry.name} {entry.rows}x{entry.columns} with {entry.ld}",
                **where,
            )
    if len(entries) == 1:  # needs no table
        return first._replace(name=name, count=1)
    buffers = tuple(entry.buffers[0] for entry in entries)
    offsets = tuple(entry.offsets[0] for entry in entries)
    return Operand(
        name, buffers, offsets, first.rows, first.columns, first.ld, len(entries), 0, True, first.dtype
    )  # fmt: skip


def letter(option: str, value: Any, is_complex: bool) -> str:
    """Return the letter of an operation: "n" none, "t" transposed, "c" transposed and conjugated.

    Raises:
        InvalidOption: no such letter.
    """
    found = LETTERS.get(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidOption(
            f'{option} is "n", "t" or "c", not {value!r}', option=option, value=repr(value), known=("n", "t", "c")
        )
    return "t" if found == "c" and not is_complex else found


def natural(value: Any) -> int | None:
    """Return a non-negative integer of any library, below LIMIT; None for other values."""
    try:
        number = index(value)
    except TypeError:
        return None
    return number if 0 <= number < LIMIT and not isinstance(value, bool) else None
