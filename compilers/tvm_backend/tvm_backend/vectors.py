"""Loops over bool buffers are not vectorized: TVM's CUDA code generator makes wrong code for them."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx


def without_bool_vectors(module: tvm.IRModule) -> tvm.IRModule:
    """Replace vectorized loops over elements of bool buffers by unrolled loops.

    The code generator writes two bool values as a `ushort2`: it would read and write twice the number of bytes.
    """

    def changed(function: Any) -> Any:
        if not isinstance(function, tirx.PrimFunc):
            return function
        return tvm_ffi.structural_map(function, [(tirx.For, _unrolled)])

    return tvm.IRModule({name: changed(function) for name, function in module.functions.items()}, attrs=module.attrs)


def _unrolled(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.VECTORIZED or not _touches_bool(loop.body):
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.UNROLLED, loop.body, None, loop.annotations)


def _touches_bool(body: tirx.Stmt) -> bool:
    found: list[Any] = []

    def note(buffer: Any) -> None:
        if str(buffer.dtype) == "bool":
            found.append(buffer)

    loads = (ir.TensorLoad, lambda load: note(load.source))
    stores = (tirx.BufferStore, lambda store: note(store.buffer))
    tvm_ffi.structural_walk(body, (loads, stores))
    return bool(found)
