"""gemm: products of matrices, as kernels that go into any kTask."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any, Final, NamedTuple

from kaas import Buffer, In, InOut, Kernel, Library, Out, Pointers, Scalar, Struct

from cutlass_blas import adapter, batches, choice, epilogues, split_k
from cutlass_blas.adapter import Launch
from cutlass_blas.batches import Piece
from cutlass_blas.epilogues import Epilogue
from cutlass_blas.errors import (
    AlignmentWarning,
    InvalidDtype,
    InvalidOption,
    OverlappingOperands,
    ProblemTooLarge,
    ShapeMismatch,
)
from cutlass_blas.instances import Instance
from cutlass_blas.operands import DTYPE_BYTES, KINDS, Given, Operand, letter, operand
from cutlass_blas.provider import library
from cutlass_blas.records import Key
from cutlass_blas.scalars import SCALAR_KINDS, coefficient, is_zero, one

LIMIT: Final = (1 << 31) - (1 << 12)
"""m, n and k stay below: CUTLASS counts in 32 bits, and rounds up to tiles."""
REMEMBERED: Final = 4_096
"""Shapes whose launches are kept."""


class Problem(NamedTuple):
    """A row-major product: C (m x n) = op(A) (m x k) op(B) (k x n), and all that its launches depend on.

    Fields:
        shape: what says which launches are needed, whatever buffers they work on: what plans are remembered by.
        table: matrices are given to kernels by tables of pointers.
    """

    a: Operand
    b: Operand
    c: Operand
    shape: Shape
    bias: Buffer | None
    scalars: dict[str, Scalar]


class Shape(NamedTuple):
    """All that launches depend on but for buffers. align, align_c: powers of two that divide all distances of A and B,
    and of C, in elements, up to what a load takes. activation: as device/finish.cuh numbers them."""

    arch: str
    kind: str
    op_a: str
    op_b: str
    m: int
    n: int
    k: int
    count: int
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


class Step(NamedTuple):
    """One launch of a product. shifts: of A, B and C, from the first element of the piece's matrices."""

    code: Library
    symbol: str
    launch: Launch
    piece: Piece
    shifts: tuple[int, int, int]


class Plan(NamedTuple):
    """The launches of a shape. finish: what comes after them, if they leave their sums in a workspace, of `slices`."""

    steps: tuple[Step, ...]
    slices: int
    finish: split_k.Finish | None


_plans: dict[Shape, Plan] = {}


def gemm(
    a: Given,
    b: Given,
    c: Given,
    *,
    alpha: Any = 1,
    beta: Any = 0,
    trans_a: str = "n",
    trans_b: str = "n",
    layout: str = "row",
    epilogue: Epilogue | str | None = None,
    compute: str | None = None,
    split_k: int | None = None,
    arch: str | None = None,
    _chosen: choice.Pick | None = None,
) -> tuple[Kernel, ...]:
    """The kernels of C = act(alpha op(A) op(B) + beta C + bias), BLAS's gemm; one of them nearly always.

    They follow BLAS: beta = 0 does not read C, alpha = 0 reads neither A nor B, so that what NaN lies there does not
    count. float16 and bfloat16 are added up in float32. No shape is too small: with m, n or the batch empty nothing
    happens, with k = 0 C becomes beta C.

    Args:
        a, b, c: kaas.Buffer of two dimensions, or of three: a batch, (count, rows, columns), one product each, where an a
            or b of two dimensions goes with all; Matrix: views within buffers; or lists of either, one product for
            each entry, whose addresses the kernel gets in tables. c is float16 or bfloat16 or float32 for factors of
            float16 and bfloat16, else of their dtype; c's buffers are not those of a or b.
        alpha, beta: numbers; or kaas.Scalar of kind "f32", "f64", "c64" or "c128", that in which is added up.
        trans_a, trans_b: "n"; "t" transposed; "c" transposed and conjugated. Shapes are those before.
        layout: "row", or "column": shapes stay what they are, but columns are contiguous in memory.
        epilogue: an Epilogue, or "relu" or "gelu". For real numbers.
        compute: "tf32" multiplies float32 rounded to 10 bits of fraction, on tensor cores.
        split_k: into how many slices k is cut at most, which go over the device and are added up in a workspace by one
            more kernel. None: as many as keep the device busy, where k is much larger than c. 1: none. A batch is cut
            only if this is asked for.
        arch: what device to choose kernels for, as "sm_90". None: "sm_80". Every kernel runs on all from there on.

    Raises:
        ShapeMismatch, InvalidDtype, InvalidOperand, InvalidOption, InvalidScalar, OverlappingOperands, ProblemTooLarge
        kaas.errors.MissingPackage, CompileFailed: the kernel that fits is none of the core, and cannot be built here.

    Warns:
        AlignmentWarning: rows of float16, bfloat16 or tf32 do not begin at multiples of 16 bytes, which takes longer.
    """
    problem = read(
        a, b, c, alpha, beta, trans_a, trans_b, layout, epilogue, compute, split_k, arch
    )  # fmt: skip
    shape = problem.shape
    if _chosen is not None:
        return _kernels(_planned(problem, _chosen), problem)
    plan = _plans.get(shape)
    if plan is None:
        plan = _planned(problem, None)
        if len(_plans) >= REMEMBERED:
            _plans.clear()
        _plans[shape] = plan
    if shape.align != choice.WIDEST.get(shape.kind, 1) and plan.steps:
        _warn(problem)
    return _kernels(plan, problem)


def key_of(a: Given, b: Given, c: Given, **options: Any) -> Key:
    """What a call of gemm with the same arguments chooses its kernel by."""
    defaults = {"alpha": 1, "beta": 0, "trans_a": "n", "trans_b": "n", "layout": "row"}
    rest = dict.fromkeys(("epilogue", "compute", "split_k", "arch"))
    return _key(read(a, b, c, **{**defaults, **rest, **options}).shape)


def forget() -> None:
    """Drop what is remembered of shapes, so that they are chosen for anew."""
    _plans.clear()


# --- what is asked for


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
    """A call of gemm as a row-major product, checked.

    Raises:
        see gemm
    """
    column = layout == "column"
    if not column and layout != "row":
        raise _unknown("layout", layout, ("row", "column"))
    first, second, third = operand("a", a, column), operand("b", b, column), operand("c", c, column)
    kind = _kind(first, second, third, compute)
    is_complex = kind in "cz"
    op_a, op_b = letter("trans_a", trans_a, is_complex), letter("trans_b", trans_b, is_complex)
    m, n, k, count, table = _sizes(first, second, third, op_a, op_b)
    _check_written(first, second, third)
    if column:  # what is column-major, read as row-major, is transposed: C' = op(B)' op(A)'
        first, second, op_a, op_b, m, n = second, first, op_b, op_a, n, m
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
    if split_k is not None and (type(split_k) is not int or split_k < 1):
        raise _unknown("split_k", split_k, ())
    align, align_c = 1, 1
    widest = choice.WIDEST.get(kind)
    if widest is not None:
        align = min(_alignment(first, op_a, m, k, widest), _alignment(second, op_b, k, n, widest))
        align_c = _alignment(third, "n", m, n, 16 // DTYPE_BYTES[third.dtype])
    shape = Shape(
        choice.architecture(arch), kind, op_a, op_b, m, n, k, count, table,
        (first.ld, second.ld, third.ld), (first.stride, second.stride, third.stride), align, align_c, third.dtype,
        alpha_bytes, beta_bytes, alpha_scalar is not None, beta_scalar is not None,
        ending.bias is not None, epilogues.ACTIVATIONS[ending.activation], split_k,
    )  # fmt: skip
    return Problem(first, second, third, shape, ending.bias, scalars)


def _kind(a: Operand, b: Operand, c: Operand, compute: Any) -> str:
    kind = KINDS[a.dtype]
    if a.dtype != b.dtype or (c.dtype != a.dtype and not (kind in "hb" and c.dtype == "float32")):
        may = f"{a.dtype} or float32" if kind in "hb" else a.dtype
        raise InvalidDtype(
            f"a is {a.dtype}, b is {b.dtype}, c is {c.dtype}: a and b have one dtype, and c of {a.dtype} factors is {may}",
            dtypes={"a": a.dtype, "b": b.dtype, "c": c.dtype},
        )
    if compute is None:
        return kind
    if compute != "tf32":
        raise _unknown("compute", compute, ("tf32",))
    if kind != "s":
        raise InvalidOption(
            f'compute="tf32" is for float32, not {a.dtype}', option="compute", value=repr(compute), known=()
        )
    return "t"


def _sizes(a: Operand, b: Operand, c: Operand, op_a: str, op_b: str) -> tuple[int, int, int, int, bool]:
    """m, n, k, the number of products, and whether tables of pointers are needed.

    Raises:
        ShapeMismatch, ProblemTooLarge
    """
    m, k = (a.rows, a.columns) if op_a == "n" else (a.columns, a.rows)
    inner, n = (b.rows, b.columns) if op_b == "n" else (b.columns, b.rows)
    if inner != k:
        raise _mismatch(
            a, b, c, f"{_said(a, op_a)} has {k} columns and {_said(b, op_b)} has {inner} rows; they have to be equal"
        )
    if c.rows != m or c.columns != n:
        raise _mismatch(a, b, c, f"{_said(a, op_a)} times {_said(b, op_b)} is {m}x{n}, but c is {c.rows}x{c.columns}")
    if m >= LIMIT or n >= LIMIT or k >= LIMIT:
        raise ProblemTooLarge(
            f"m = {m}, n = {n}, k = {k}: a kernel counts to {LIMIT - 1}; cut the matrices",
            sizes={"m": m, "n": n, "k": k},
            limit=LIMIT - 1,
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
    """
    Raises:
        OverlappingOperands
    """
    for factor in (a, b):
        if len(c.buffers) == len(factor.buffers) == 1:
            same = {c.buffers[0].name} if c.buffers[0].name == factor.buffers[0].name else None
        else:
            same = {buffer.name for buffer in c.buffers} & {buffer.name for buffer in factor.buffers}
        if same:
            name = min(same)
            raise OverlappingOperands(
                f"c is written to buffer {name!r}, which {factor.name} is read from; give c a buffer of its own",
                operands=(factor.name, "c"),
                buffer=name,
            )


def _alignment(x: Operand, op: str, rows: int, columns: int, widest: int) -> int:
    """The largest power of two up to `widest` that divides all distances, in elements; rows and columns of op(X)."""
    bits = widest | x.ld | (columns if op == "n" else rows)
    for offset in x.offsets:
        bits |= offset
    if x.count is not None:
        bits |= x.stride
    return bits & -bits


def _warn(problem: Problem) -> None:
    shape = problem.shape
    widest = choice.WIDEST[shape.kind]
    size = DTYPE_BYTES[problem.a.dtype]
    sizes = ((shape.op_a, shape.m, shape.k), (shape.op_b, shape.k, shape.n))
    for x, (op, rows, columns) in zip((problem.a, problem.b), sizes, strict=True):
        aligned = _alignment(x, op, rows, columns, widest)
        if aligned < widest:
            row = columns if op == "n" else rows
            warnings.warn(
                f"gemm: {x.name} ({x.dtype}, leading dimension {x.ld}, {row} elements in a row) is aligned to {aligned} "
                f"elements, not to {widest}: it is loaded {aligned * size} bytes at a time, not 16",
                AlignmentWarning,
                stacklevel=3,
            )


def _said(x: Operand, op: str) -> str:
    how = {"n": "", "t": " transposed", "c": " transposed and conjugated"}[op]
    return f"{x.name} ({x.rows}x{x.columns}){how}"


def _mismatch(a: Operand, b: Operand, c: Operand, what: str) -> ShapeMismatch:
    return ShapeMismatch(what, shapes={"a": a.shape, "b": b.shape, "c": c.shape})


def _unknown(option: str, value: Any, known: tuple[str, ...]) -> InvalidOption:
    allowed = " or ".join(map(repr, known)) or "a positive integer"
    return InvalidOption(f"{option} is {allowed}, not {value!r}", option=option, value=repr(value), known=known)


# --- its launches


def _key(shape: Shape) -> Key:
    return Key(
        shape.arch, shape.kind, shape.out, shape.op_a, shape.op_b, shape.m, shape.n, shape.k, shape.align,
        shape.align_c, shape.count, shape.activation == 2,
    )  # fmt: skip


def _planned(problem: Problem, chosen: choice.Pick | None) -> Plan:
    """
    Raises:
        OverlappingOperands: matrices of the batch c.
    """
    shape, c = problem.shape, problem.c
    m, n, count, kind = shape.m, shape.n, shape.count, SCALAR_KINDS[shape.kind]
    batches.check_apart(c, n, m)
    if not (m and n and count and shape.k) or (not shape.chosen_alpha and is_zero(shape.alpha, kind)):
        return Plan((), 0, _finish(problem, 0))
    beside = shape.bias and (shape.chosen_beta or not is_zero(shape.beta, kind))  # both a bias and beta * C
    key = _key(shape)
    if beside and key.out != split_k.SUM_DTYPES[shape.kind] or beside and key.gelu:
        key = choice.with_sums(key)
    instance, slices = chosen or choice.choose(key, shape.split_k)
    if slices == 1 and not beside:
        return Plan(_steps(shape, instance, 1, False), 0, None)
    steps = _steps(shape, instance, slices, True)
    slices = steps[0].launch.grid[2] if slices > 1 else 1
    return Plan(steps, slices, _finish(problem, slices))


def _finish(problem: Problem, slices: int) -> split_k.Finish:
    shape = problem.shape
    sizes = shape.m, shape.n, shape.count
    return split_k.finish(problem.c, sizes, slices, shape.activation, shape.alpha, shape.beta)


def _steps(shape: Shape, instance: Instance, slices: int, sums: bool) -> tuple[Step, ...]:
    """The launches of an instance, into C or into the workspace."""
    kind = SCALAR_KINDS[shape.kind]
    code, symbol = _named(instance)
    alpha, beta = (one(kind), bytes(len(shape.beta))) if sums else (shape.alpha, shape.beta)
    if shape.bias and not sums:
        beta = one(kind)  # the bias stands in C's place, one row of it for all
    lda, ldb, ldc = shape.leading
    stride_a, stride_b, stride_c = shape.strides
    ldd, stride_d = (shape.n, shape.m * shape.n) if sums else (ldc, stride_c)
    leading = (lda, ldb, 0 if shape.bias and not sums else ldd, ldd)
    strides = (stride_a, stride_b, 0 if shape.bias and not sums else stride_d, stride_d)
    relu = shape.activation == 1 and not sums
    steps = []
    for piece in batches.pieces(shape.count, shape.n, instance.tile[1], 1 if slices > 1 else batches.LAUNCH_COUNT):
        mode, times = (1, slices) if slices > 1 else (0 if shape.count == 1 else 3 if shape.table else 2, piece.count)
        launch = adapter.launch(
            instance, mode, shape.m, piece.columns, shape.k, times, strides, leading, alpha, beta, relu
        )
        shifts = (0, piece.column * (1 if shape.op_b == "n" else ldb), piece.column)
        steps.append(Step(code, symbol, launch, piece, shifts))
    return tuple(steps)


@lru_cache(maxsize=1024)
def _named(instance: Instance) -> tuple[Library, str]:
    return library(instance.name), instance.name


# --- its kernels


def _kernels(plan: Plan, problem: Problem) -> tuple[Kernel, ...]:
    shape, c = problem.shape, problem.c
    reads_c = shape.chosen_beta or not is_zero(shape.beta, SCALAR_KINDS[shape.kind])
    fresh = frozenset() if reads_c else batches.covered(c, shape.m * shape.n)
    if plan.finish is None:
        kernels = []
        for step in plan.steps:
            table = shape.table and step.piece.count > 0 and shape.count > 1
            element_bytes = DTYPE_BYTES[c.dtype]
            d = batches.target(c, step.piece, step.shifts[2], element_bytes, table, fresh)
            source = d
            if problem.bias is not None:
                source = In(problem.bias, step.shifts[2] * element_bytes)
                if table:
                    source = Pointers([source] * step.piece.count)
            kernels.append(_kernel(step, problem, source, d, table, problem.scalars))
            fresh = frozenset()  # what the next ones write to may hold what this one has written
        return tuple(kernels)
    return _kernels_with_sums(plan, plan.finish, problem, fresh)
