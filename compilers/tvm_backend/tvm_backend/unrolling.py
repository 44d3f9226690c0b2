"""Unrolled loops stay loops in the source: NVRTC unrolls them as well as TVM, from a source many times smaller."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlock

EXPLICIT = "pragma_unroll_explicit"
"""What schedules write at a loop below which TVM is to write each iteration out."""

ASYNCHRONOUS = "software_pipeline_async_stages"
"""What schedules write at a loop that copies ahead of its use. How many copies to wait for must be a number in the
source, which it is where TVM itself unrolls."""


def left_to_nvrtc(module: tvm.IRModule) -> tvm.IRModule:
    """The module's PrimFuncs with `#pragma unroll` where they would have had copies of a loop's body."""

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
