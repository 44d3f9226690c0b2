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
"""Shapes whose launches are kept. More of them would take longer to find room for than to plan anew."""

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
        a, b, c: kaas.Buffer of two dimensions, or of three: a batch, (count, rows, columns), one product for each,
            where an a or b of two dimensions goes with all; Matrix: views within buffers; or lists of either, whose
            addresses the kernel gets in tables. c has their dtype, or is float32 where they are float16 or bfloat16;
            its buffers are not those of a or b.
        alpha, beta: numbers; or kaas.Scalar of kind "f32", "f64", "c64" or "c128", that in which is added up.
        trans_a, trans_b: "n"; "t" transposed; "c" transposed and conjugated. Shapes are those before.
        layout: "row", or "column": shapes stay what they are, but columns are contiguous in memory.
        epilogue: an Epilogue, or "relu" or "gelu". For real numbers.
        compute: "tf32" multiplies float32 rounded to 10 bits of fraction, on tensor cores.
        split_k: into how many slices k is cut at most, which go over the device and are added up in a workspace by one
            more kernel. None: as many as keep the device busy, where k is much larger than c. 1: none. A batch is cut
            only if this is asked for.
        arch: what device to choose kernels for, as "sm_90". None: "sm_80", whose kernels run on all from there on.

    Raises:
        ShapeMismatch, InvalidDtype, InvalidOperand, InvalidOption, InvalidScalar, OverlappingOperands, ProblemTooLarge
        kaas.errors.MissingPackage, CompileFailed: the kernel that fits is none of the core, and cannot be built here.
        StoreFailed: what is built cannot be kept, read or loaded.

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
    """What a call of gemm with the same arguments chooses its kernel by."""
    defaults = {"alpha": 1, "beta": 0, "trans_a": "n", "trans_b": "n", "layout": "row"}
    rest = dict.fromkeys(("epilogue", "compute", "split_k", "arch"))
    return plans.key_of(read(a, b, c, **{**defaults, **rest, **options}).shape)


def forget() -> None:
    """Drop what is remembered of shapes, so that kernels are chosen for them anew."""
    _plans.clear()
