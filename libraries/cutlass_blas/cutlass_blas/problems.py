"""Calls of gemm, checked and turned into one row-major product."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from cutlass_blas import choice, epilogues
from cutlass_blas.alignment import alignment
from cutlass_blas.batches import LAUNCH_COUNT, check_apart
from cutlass_blas.errors import (
    InvalidDtype,
    InvalidOption,
    OverlappingOperands,
    ProblemTooLarge,
    ShapeMismatch,
)
from cutlass_blas.operands import DTYPE_BYTES, KINDS, Operand, letter, natural, operand
from cutlass_blas.scalars import SCALAR_KINDS, coefficient, is_zero
from kaas import Buffer, Scalar

LIMIT: Final = (1 << 31) - (1 << 12)
"""m and n are below this limit: CUTLASS counts in 32 bits, and rounds up to tiles."""
LIMIT_K: Final = 1 << 30
"""k is below this limit: CUTLASS adds the length of a slice to k in 32 bits, and a single slice is as long as k."""


class Shape(NamedTuple):
    """The parts of a problem that its launches depend on: everything except the buffers.

    Fields:
        batch: the number of products, 1 without a batch.
        table: True if matrices are given by tables of pointers.
        leading, strides: of A, B and C, in elements.
        align, align_c: powers of two, at most one load, that divide all distances in A and B, and in C.
        alpha, beta: as bytes; zeros if each invocation chooses them.
        activation: as device/finish.cuh numbers them.
    """

    arch: str
    kind: str
    op_a: str
    op_b: str
    m: int
    n: int
    k: int
    batch: int
    table: bool
    leading: tuple[int, int, int]
    strides: tuple[int, int, int]
    align: int
    align_c: int
    out: str
    alpha: bytes
    beta: bytes
    chosen_alpha: bool
    chosen_beta: bool
    bias: bool
    activation: int
    split_k: int | None

    @property
    def reads_c(self) -> bool:
        """True if C's earlier contents count."""
        return self.chosen_beta or not is_zero(self.beta, SCALAR_KINDS[self.kind])

    @property
    def aligned(self) -> bool:
        """True if all loads and stores are as wide as possible."""
        widest = choice.WIDEST.get(self.kind)
        return widest is None or (self.align == widest and self.align_c * DTYPE_BYTES[self.out] == 16)


class Problem(NamedTuple):
    """A row-major product, C (m x n) = op(A) (m x k) op(B) (k x n), of given buffers.

    Fields:
        shape: the key of remembered plans.
        scalars: those that each invocation chooses, by "alpha" and "beta".
    """

    a: Operand
    b: Operand
    c: Operand
    shape: Shape
    bias: Buffer | None
    scalars: dict[str, Scalar]


def read(
    a: Any,
    b: Any,
    c: Any,
    alpha: Any,
    beta: Any,
    trans_a: Any,
    trans_b: Any,
    layout: Any,
    epilogue: Any,
    compute: Any,
    split_k: Any,
    arch: Any,
) -> Problem:
    """Return a call of gemm as a checked row-major product; for arguments and errors see `gemms.gemm`."""
    column = isinstance(layout, str) and layout == "column"
    if not column and not (isinstance(layout, str) and layout == "row"):
        raise _unknown("layout", layout, ("row", "column"))
    first, second, third = operand("a", a, column), operand("b", b, column), operand("c", c, column)
    kind = _kind(first, second, third, compute)
    is_complex = kind in "cz"
    op_a, op_b = letter("trans_a", trans_a, is_complex), letter("trans_b", trans_b, is_complex)
    m, n, k, batch, table = _sizes(first, second, third, op_a, op_b)
    _check_written(first, second, third)
    if column:  # column-major memory, read as row-major, is the transposed matrix: C' = op(B)' op(A)'
        first, second, op_a, op_b, m, n = second, first, op_b, op_a, n, m
    check_apart(third, n, m)
    ending = epilogues.epilogue_of(epilogue)
    if ending is not epilogues.NOTHING:
        epilogues.check(ending, third, n, is_complex)
    scalar_kind = SCALAR_KINDS[kind]
    alpha_bytes, alpha_scalar = coefficient("alpha", alpha, scalar_kind)
    beta_bytes, beta_scalar = coefficient("beta", beta, scalar_kind)
    scalars = {}
    if alpha_scalar is not None:
        scalars["alpha"] = alpha_scalar
    if beta_scalar is not None:
        scalars["beta"] = beta_scalar
    slices = None if split_k is None else _slices(split_k)
    align, align_c = 1, 1
    if kind in choice.WIDEST:
        align = min(alignment(first, k if op_a == "n" else m), alignment(second, n if op_b == "n" else k))
        align_c = alignment(third, n)
    tall = batch > 1 and not table and first.stride == m * first.ld and third.stride == m * third.ld
    if tall and second.count is None and op_a == "n" and m * batch < LIMIT:  # one matrix of more rows times the same B
        first, third, m, batch = _joined(first, column), _joined(third, column), m * batch, 1
    shape = Shape(
        choice.architecture(arch), kind, op_a, op_b, m, n, k, batch, table,
        (first.ld, second.ld, third.ld), (first.stride, second.stride, third.stride), align, align_c, third.dtype,
        alpha_bytes, beta_bytes, alpha_scalar is not None, beta_scalar is not None,
        ending.bias is not None, epilogues.ACTIVATIONS[ending.activation], slices,
    )  # fmt: skip
    return Problem(first, second, third, shape, ending.bias, scalars)


def _kind(a: Operand, b: Operand, c: Operand, compute: Any) -> str:
    kind = KINDS[a.dtype]
    if a.dtype != b.dtype or (c.dtype != a.dtype and not (kind in "hb" and c.dtype == "float32")):
        may = f"{a.dtype} or float32" if kind in "hb" else a.dtype
        raise InvalidDtype(
            f"a is {a.dtype}, b is {b.dtype}, c is {c.dtype}: a and b have one dtype, c of {a.dtype} factors is {may}",
            dtypes={"a": a.dtype, "b": b.dtype, "c": c.dtype},
        )
    if compute is None:
        return kind
    if not isinstance(compute, str) or compute != "tf32":
        raise _unknown("compute", compute, ("tf32",))
    if kind != "s":
        raise InvalidOption(
            f'compute="tf32" is for float32, not {a.dtype}', option="compute", value=repr(compute), known=()
        )
    return "t"


def _sizes(a: Operand, b: Operand, c: Operand, op_a: str, op_b: str) -> tuple[int, int, int, int, bool]:
    """Return m, n, k, the number of products, and True if tables of pointers are needed.

    Raises:
        ShapeMismatch, ProblemTooLarge: the sizes do not fit, or are too large.
    """
    m, k = (a.rows, a.columns) if op_a == "n" else (a.columns, a.rows)
    inner, n = (b.rows, b.columns) if op_b == "n" else (b.columns, b.rows)
    if inner != k:
        raise _mismatch(
            a, b, c, f"{_shown(a, op_a)} has {k} columns and {_shown(b, op_b)} has {inner} rows; they have to be equal"
        )
    if c.rows != m or c.columns != n:
        raise _mismatch(a, b, c, f"{_shown(a, op_a)} times {_shown(b, op_b)} is {m}x{n}, but c is {c.rows}x{c.columns}")
    if m >= LIMIT or n >= LIMIT or k >= LIMIT_K:
        raise ProblemTooLarge(
            f"m = {m}, n = {n}, k = {k}: a kernel counts m and n to {LIMIT - 1}, k to {LIMIT_K - 1}; cut the matrices",
            sizes={"m": m, "n": n, "k": k},
            limit=(LIMIT_K if k >= LIMIT_K else LIMIT) - 1,
        )
    if c.count is None:
        for factor in (a, b):
            if factor.count is not None:
                raise _mismatch(a, b, c, f"{factor.name} is a batch of {factor.count}, but c is a single matrix")
        return m, n, k, 1, False
    for factor in (a, b):
        if factor.count is not None and factor.count != c.count:
            raise _mismatch(a, b, c, f"{factor.name} is a batch of {factor.count}, c one of {c.count}")
    if c.count >= LIMIT:
        raise ProblemTooLarge(f"a batch of {c.count}", sizes={"count": c.count}, limit=LIMIT - 1)
    return m, n, k, c.count, a.table or b.table or c.table


def _check_written(a: Operand, b: Operand, c: Operand) -> None:
    """Check that C's buffers are not read.

    Raises:
        OverlappingOperands: a or b lies in one of them.
    """
    if len(a.buffers) == len(b.buffers) == len(c.buffers) == 1:
        name = c.buffers[0].name
        if name not in (a.buffers[0].name, b.buffers[0].name):
            return
    written = {buffer.name for buffer in c.buffers}
    for factor in (a, b):
        for buffer in factor.buffers:
            if buffer.name in written:
                raise OverlappingOperands(
                    f"c is written to buffer {buffer.name!r}, which {factor.name} is read from; give c its own",
                    operands=(factor.name, "c"),
                    buffer=buffer.name,
                )


def _slices(split_k: Any) -> int:
    """Return the number of slices.

    Raises:
        InvalidOption: no integer from 1 to LAUNCH_COUNT.
    """
    slices = natural(split_k)
    if slices is None or not 1 <= slices <= LAUNCH_COUNT:
        raise InvalidOption(
            f"split_k is an integer from 1 to {LAUNCH_COUNT}, not {split_k!r}",
            option="split_k",
            value=repr(split_k),
            known=(),
        )
    return slices


def _joined(x: Operand, column: bool) -> Operand:
    """Return a batch without gaps as one matrix, joined along its strided dimension."""
    count = x.count or 1
    if column:
        return x._replace(columns=x.columns * count, count=None, stride=0)
    return x._replace(rows=x.rows * count, count=None, stride=0)


def _shown(x: Operand, op: str) -> str:
    how = {"n": "", "t": " transposed", "c": " transposed and conjugated"}[op]
    return f"{x.name} ({x.rows}x{x.columns}){how}"


def _mismatch(a: Operand, b: Operand, c: Operand, what: str) -> ShapeMismatch:
    return ShapeMismatch(what, shapes={"a": a.shape, "b": b.shape, "c": c.shape})


def _unknown(option: str, value: Any, known: tuple[str, ...]) -> InvalidOption:
    allowed = " or ".join(map(repr, known))
    return InvalidOption(f"{option} is {allowed}, not {value!r}", option=option, value=repr(value), known=known)
