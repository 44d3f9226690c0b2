"""Reductions over a single element become plain assignments: dlight makes wrong code where it inlines them."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir.prim import expr


def without_unit_reductions(module: tvm.IRModule) -> tvm.IRModule:
    """Replace `y = start; y = y + x` over a single x by `y = start + x` in the module's PrimFuncs."""

    def changed(function: Any) -> Any:
        if not isinstance(function, tirx.PrimFunc):
            return function
        return tvm_ffi.structural_map(function, [(s_tir.SBlock, _assigned)])

    return tvm.IRModule({name: changed(function) for name, function in module.functions.items()}, attrs=module.attrs)


def _assigned(block: s_tir.SBlock) -> s_tir.SBlock:
    reduced = [variable for variable in block.iter_vars if variable.iter_type == tirx.IterVar.CommReduce]
    if block.init is None or not reduced or not all(_single(variable) for variable in reduced):
        return block
    starts = {store.buffer: store.value for store in _stores(block.init)}

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


def _stores(statement: Any) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(statement, [(tirx.BufferStore, found.append)])
    return found
