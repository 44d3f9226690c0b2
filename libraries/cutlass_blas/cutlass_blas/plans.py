"""A product's launches, which depend on its shape only, and their kernels for given buffers."""

from __future__ import annotations

from collections.abc import Set
from functools import lru_cache
from typing import NamedTuple

from cutlass_blas import adapter, batches, choice, split_k
from cutlass_blas.adapter import Launch
from cutlass_blas.batches import Piece
from cutlass_blas.instances import Instance
from cutlass_blas.operands import DTYPE_BYTES, Operand
from cutlass_blas.problems import Problem, Shape
from cutlass_blas.provider import library
from cutlass_blas.records import Key
from cutlass_blas.scalars import SCALAR_KINDS, is_zero, one
from kaas import Buffer, In, InOut, Kernel, Library, Out, Pointers, Scalar, Struct


class Step(NamedTuple):
    """One launch of a product.

    Fields:
        table: True if matrices are given by tables of pointers.
        shift_b, shift_c: elements from the matrices' first elements to the piece's; in A both are the same.
    """

    code: Library
    symbol: str
    launch: Launch
    piece: Piece
    table: bool
    shift_b: int
    shift_c: int


class Plan(NamedTuple):
    """The launches of a shape.

    Fields:
        reads_c: True if C's earlier contents count.
        slices: the number of sums for each element that the steps leave in a workspace; 0 if they write to C.
        finish: the last kernel, if the steps do not complete the product.
    """

    steps: tuple[Step, ...]
    reads_c: bool
    slices: int
    finish: split_k.Finish | None


def key_of(shape: Shape) -> Key:
    """Return the key by which a kernel is chosen for a shape."""
    key = Key(
        shape.arch, shape.kind, shape.out, shape.op_a, shape.op_b, shape.m, shape.n, shape.k, shape.align,
        shape.align_c, shape.batch, shape.activation == split_k.GELU,
    )  # fmt: skip
    return choice.for_sums(key) if shape.bias and shape.reads_c else key


def plan(problem: Problem, chosen: choice.Pick | None = None) -> Plan:
    """Return the launches of a problem, by the kernel and the slices of `chosen` instead of the best ones if given.

    Raises:
        kaas.errors.MissingPackage, CompileFailed: a kernel is missing and cannot be built.
    """
    shape, reads_c = problem.shape, problem.shape.reads_c
    kind = SCALAR_KINDS[shape.kind]
    nothing = not (shape.m and shape.n and shape.k and shape.batch)
    if nothing or (not shape.chosen_alpha and is_zero(shape.alpha, kind)):
        return Plan((), reads_c, 0, _finish(problem, 0))
    instance, slices = chosen or choice.choose(key_of(shape), shape.split_k)
    if slices == 1 and not (shape.bias and reads_c):  # a kernel adds either a bias or C
        return Plan(_steps(shape, instance, 1, False), reads_c, 0, None)
    steps = _steps(shape, instance, slices, True)
    made = steps[0].launch.grid[2] if slices > 1 else 1  # may be fewer: a slice is a multiple of one load
    return Plan(steps, reads_c, made, _finish(problem, made))


def _finish(problem: Problem, slices: int) -> split_k.Finish:
    shape = problem.shape
    sizes = shape.m, shape.n, shape.batch
    return split_k.finish(problem.c, sizes, slices, shape.activation, shape.alpha, shape.beta)


def _steps(shape: Shape, instance: Instance, slices: int, sums: bool) -> tuple[Step, ...]:
    """Return the launches of an instance, which write to C or, if `sums`, to a workspace."""
    kind = SCALAR_KINDS[shape.kind]
    symbol = instance.name
    code = _code(symbol)
    alpha, beta, relu = shape.alpha, shape.beta, shape.activation == split_k.RELU
    lda, ldb, ldc = shape.leading
    stride_a, stride_b, stride_c = shape.strides
    leading, strides = (lda, ldb, ldc, ldc), (stride_a, stride_b, stride_c, stride_c)
    if sums:
        alpha, beta, relu = one(kind), bytes(len(beta)), False
        leading, strides = (lda, ldb, shape.n, shape.n), (stride_a, stride_b, *(shape.m * shape.n,) * 2)
    elif shape.bias:  # the bias in C's place, as one row for all rows
        beta, leading, strides = one(kind), (lda, ldb, 0, ldc), (stride_a, stride_b, 0, stride_c)
    mode = _SPLIT if slices > 1 else _PLAIN if shape.batch == 1 else _TABLES if shape.table else _STRIDED
    steps = []
    for piece in batches.pieces(shape.batch, shape.n, instance.tile[1], 1 if mode == _SPLIT else batches.LAUNCH_COUNT):
        times = slices if mode == _SPLIT else piece.entries
        launch = adapter.launch(
            instance, mode, shape.m, piece.columns, shape.k, times, strides, leading, alpha, beta, relu
        )
        shift_b = piece.column * (1 if shape.op_b == "n" else ldb)
        steps.append(Step(code, symbol, launch, piece, mode == _TABLES, shift_b, piece.column))
    return tuple(steps)


_PLAIN, _SPLIT, _STRIDED, _TABLES = range(4)
"""As CUTLASS's GemmUniversalMode has them."""


@lru_cache(maxsize=1024)
def _code(name: str) -> Library:
    return library(name)


# --- for given buffers


def kernels(made: Plan, problem: Problem) -> tuple[Kernel, ...]:
    """Return the kernels of a plan."""
    shape, c, bias = problem.shape, problem.c, problem.bias
    fresh: Set[str] = frozenset() if made.reads_c else batches.covered(c, shape.m * shape.n)
    if made.finish is None:
        return tuple(_writing(made.steps, problem, c, fresh, bias, problem.scalars))
    if not made.steps:
        unread = problem.a, problem.b
        return (split_k.finishing(made.finish, c, shape.batch, fresh, None, bias, unread, problem.scalars),)
    space = split_k.workspace(c.buffers[0], shape.kind, shape.batch, made.slices, shape.m, shape.n)
    stride = made.slices * shape.m * shape.n
    sums = Operand("sums", (space,), (0,), shape.m, shape.n, shape.n, shape.batch, stride, False, space.dtype)
    products = _writing(made.steps, problem, sums, {space.name}, None, {})
    return *products, split_k.finishing(made.finish, c, shape.batch, fresh, space, bias, (), problem.scalars)


def _writing(
    steps: tuple[Step, ...],
    problem: Problem,
    d: Operand,
    fresh: Set[str],
    bias: Buffer | None,
    scalars: dict[str, Scalar],
) -> list[Kernel]:
    """Return the kernels of steps that write to d. Earlier contents of the buffers named in `fresh` do not count."""
    made = []
    bytes_ab, bytes_d = DTYPE_BYTES[problem.a.dtype], DTYPE_BYTES[d.dtype]
    for step in steps:
        launch, piece, table = step.launch, step.piece, step.table
        result = batches.target(d, piece, step.shift_c, bytes_d, table, fresh)
        source: In | Out | InOut | Pointers = result
        if bias is not None:
            vector = In(bias, step.shift_c * bytes_d)
            source = Pointers([vector] * piece.entries) if table else vector
        struct = Struct(
            launch.params,
            {
                launch.a: batches.pointer(In, problem.a, piece, 0, bytes_ab, table),
                launch.b: batches.pointer(In, problem.b, piece, step.shift_b, bytes_ab, table),
                launch.c: source,
                launch.d: result,
            },
            {(launch.alpha if name == "alpha" else launch.beta): scalar for name, scalar in scalars.items()}
            if scalars
            else None,
        )
        made.append(Kernel(step.code, step.symbol, launch.grid, launch.block, (struct,), launch.shared_bytes))
        if len(steps) > 1 and fresh:  # the next kernels have to keep the results of this one
            fresh = fresh - {d.place(entry)[0].name for entry in range(piece.first, piece.first + piece.entries)}
    return made
