"""Unrolled loops stay loops in the source: NVRTC unrolls them as well as TVM does, from a much smaller source."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock

EXPLICIT = "pragma_unroll_explicit"
"""The annotation of a loop in which TVM should write out each iteration."""

ASYNCHRONOUS = "software_pipeline_async_stages"
"""The annotation of a loop that copies data ahead of its use. The number of copies to wait for must be a literal in the
source, and it is one only if TVM itself unrolls."""


def left_to_nvrtc(module: tvm.IRModule) -> tvm.IRModule:
    """Give the module's PrimFuncs `#pragma unroll` instead of copies of a loop's body."""

    def changed(function: Any) -> Any:
        if not isinstance(function, tirx.PrimFunc) or _copies_ahead(function):
            return function
        return tvm_ffi.structural_map(function, [(tirx.For, _implicit)])

    return tvm.IRModule({name: changed(function) for name, function in module.functions.items()}, attrs=module.attrs)


def _copies_ahead(function: tirx.PrimFunc) -> bool:
    found = False

    def visit(node: Any) -> None:
        nonlocal found
        found = found or ASYNCHRONOUS in node.annotations

    tvm_ffi.structural_walk(function.body, ((tirx.For, visit), (SBlock, visit)), order="pre")
    return found


def _implicit(loop: tirx.For) -> tirx.For:
    if EXPLICIT not in loop.annotations:
        return loop
    annotations = {**loop.annotations, EXPLICIT: 0}
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, annotations)
