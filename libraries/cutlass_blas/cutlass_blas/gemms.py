"""gemm: products of matrices, as kernels that go into any kTask."""

from __future__ import annotations

from typing import Any, Final

from cutlass_blas import choice, plans
from cutlass_blas.alignment import warn
from cutlass_blas.epilogues import Epilogue
from cutlass_blas.operands import Given
from cutlass_blas.plans import Plan
from cutlass_blas.problems import Shape, read
from cutlass_blas.records import Key
from kaas import Kernel

REMEMBERED: Final = 1_024
"""The most shapes whose launches are kept; beyond that all are dropped, and planned again when they are used."""

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
    """Return the kernels of C = act(alpha op(A) op(B) + beta C + bias), BLAS's gemm; nearly always a single kernel.

    They follow BLAS: with beta = 0 they do not read C, with alpha = 0 they read neither A nor B, so that NaN in these
    does not count. float16 and bfloat16 are added up in float32. Every shape may be empty: with m, n or the batch empty
    nothing happens, with k = 0 C becomes beta C.

    Args:
        a: a kaas.Buffer of two dimensions, or of three: a batch, (count, rows, columns), with one product for each
            entry; a Matrix: a view within a buffer; or a list of either, whose addresses the kernel gets in a table. A
            single a or b goes with all entries of a batch.
        b: as a, with a's dtype.
        c: as a, with a's dtype, or float32 if that is float16 or bfloat16. Its buffers are not those of a or b.
        alpha: a number; or a kaas.Scalar of kind "f32", "f64", "c64" or "c128", the kind of the sums.
        beta: as alpha.
        trans_a: "n"; "t": a is transposed; "c": a is transposed and conjugated. a's shape is that before.
        trans_b: the same for b.
        layout: "row", or "column": shapes stay the same, but columns are contiguous in memory.
        epilogue: an Epilogue, or "relu" or "gelu". For real numbers.
        compute: "tf32" multiplies float32 rounded to 10 bits of fraction, on tensor cores.
        split_k: the most slices that k is cut into; they run in parallel, and one more kernel adds them up in a
            workspace. None: as many as keep the device busy, if k is much larger than c; a batch is not cut. 1: none.
        arch: the architecture to choose kernels for, as "sm_90". None: "sm_80", whose kernels run on all newer ones.

    Raises:
        ShapeMismatch, InvalidDtype, InvalidOperand, InvalidOption, InvalidScalar, OverlappingOperands, ProblemTooLarge
        kaas.errors.MissingPackage, CompileFailed: the kernel that fits is not in the core, and cannot be built here.
        StoreFailed: a built kernel cannot be written, read or loaded.

    Warns:
        AlignmentWarning: rows of float16, bfloat16 or tf32 do not begin at multiples of 16 bytes, which takes longer.
    """
    problem = read(a, b, c, alpha, beta, trans_a, trans_b, layout, epilogue, compute, split_k, arch)
    shape = problem.shape
    if _chosen is not None:
        return plans.kernels(plans.plan(problem, _chosen), problem)
    plan = _plans.get(shape)
    if plan is None:
        plan = plans.plan(problem)
        if len(_plans) >= REMEMBERED:
            _plans.clear()
        _plans[shape] = plan
    if not shape.aligned and plan.steps:
        m, n, k = shape.m, shape.n, shape.k
        contiguous = k if shape.op_a == "n" else m, n if shape.op_b == "n" else k, n
        warn(zip(problem[:3], contiguous, strict=True))
    return plans.kernels(plan, problem)


def key_of(a: Given, b: Given, c: Given, **options: Any) -> Key:
    """Return the key by which a call of gemm with the same arguments chooses its kernel."""
    defaults = {"alpha": 1, "beta": 0, "trans_a": "n", "trans_b": "n", "layout": "row"}
    rest = dict.fromkeys(("epilogue", "compute", "split_k", "arch"))
    return plans.key_of(read(a, b, c, **{**defaults, **rest, **options}).shape)


def forget() -> None:
    """Drop the remembered launches, so that kernels are chosen again."""
    _plans.clear()
