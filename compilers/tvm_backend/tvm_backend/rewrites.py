"""Rewrites of PrimFuncs around TVM's schedules and code generator, to which some code is a pitfall."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir.prim import expr

EXPLICIT = "pragma_unroll_explicit"
"""The annotation of a loop in which TVM should write out each iteration."""

ASYNCHRONOUS = "software_pipeline_async_stages"
"""The annotation of a loop that copies data ahead of its use. The number of copies to wait for must be a literal in the
source, and it is one only if TVM itself unrolls."""


def without_unit_reductions(module: tvm.IRModule) -> tvm.IRModule:
    """Replace `y = start; y = y + x` over a single x by `y = start + x`, which dlight inlines without mistakes."""
    return _rewritten(module, s_tir.SBlock, _assigned)


def without_bool_vectors(module: tvm.IRModule) -> tvm.IRModule:
    """Replace vectorized loops over elements of bool buffers by unrolled loops.

    The code generator writes two bool values as a `ushort2`: it would read and write twice the number of bytes.
    """
    return _rewritten(module, tirx.For, _unrolled)


def unrolled_by_nvrtc(module: tvm.IRModule) -> tvm.IRModule:
    """Give loops `#pragma unroll` instead of copies of their bodies: NVRTC unrolls as well, from a smaller source."""
    return _rewritten(module, tirx.For, _implicit, keep=_copies_ahead)


def _rewritten(
    module: tvm.IRModule, kind: type, rule: Callable[[Any], Any], keep: Callable[[Any], bool] = lambda _: False
) -> tvm.IRModule:
    """Return the module with a rule applied to all nodes of a kind in its PrimFuncs, but for those to keep."""

    def rewritten(function: Any) -> Any:
        if not isinstance(function, tirx.PrimFunc) or keep(function):
            return function
        return tvm_ffi.structural_map(function, [(kind, rule)])

    return tvm.IRModule({name: rewritten(function) for name, function in module.functions.items()}, attrs=module.attrs)


def _found(node: Any, *questions: tuple[type, Callable[[Any], bool]]) -> bool:
    """Return True if a node inside answers yes to the question of its kind."""
    answers: list[bool] = []

    def asked(kind: type, question: Callable[[Any], bool]) -> tuple[type, Callable[[Any], None]]:
        return kind, lambda inner: answers.append(question(inner))

    tvm_ffi.structural_walk(node, tuple(asked(kind, question) for kind, question in questions))
    return any(answers)


def _assigned(block: s_tir.SBlock) -> s_tir.SBlock:
    reduced = [variable for variable in block.iter_vars if variable.iter_type == tirx.IterVar.CommReduce]
    if block.init is None or not reduced or not all(_single(variable) for variable in reduced):
        return block
    stores: list[Any] = []
    tvm_ffi.structural_walk(block.init, [(tirx.BufferStore, stores.append)])
    starts = {store.buffer: store.value for store in stores}

    def started(load: ir.TensorLoad) -> Any:
        return starts.get(load.source, load)

    variables = [
        tirx.IterVar(variable.dom, variable.var, tirx.IterVar.DataPar) if _single(variable) else variable
        for variable in block.iter_vars
    ]
    return s_tir.SBlock(
        variables, block.reads, block.writes, block.name_hint,
        tvm_ffi.structural_map(block.body, [(ir.TensorLoad, started)]), None, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip


def _single(variable: tirx.IterVar) -> bool:
    return isinstance(variable.dom.extent, expr.IntImm) and variable.dom.extent.value == 1


def _unrolled(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.VECTORIZED or not _touches_bool(loop.body):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, None, loop.annotations)


def _touches_bool(body: tirx.Stmt) -> bool:
    return _found(
        body,
        (ir.TensorLoad, lambda load: str(load.source.dtype) == "bool"),
        (tirx.BufferStore, lambda store: str(store.buffer.dtype) == "bool"),
    )


def _implicit(loop: tirx.For) -> tirx.For:
    if EXPLICIT not in loop.annotations:
        return loop
    annotations = {**loop.annotations, EXPLICIT: 0}
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, annotations)


def _copies_ahead(function: tirx.PrimFunc) -> bool:
    def copies(node: Any) -> bool:
        return ASYNCHRONOUS in node.annotations

    return _found(function.body, (tirx.For, copies), (s_tir.SBlock, copies))
