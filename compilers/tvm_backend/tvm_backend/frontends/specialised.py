"""PrimFuncs with open sizes, specialised for the shapes of their calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx

CALLS = ("relax.call_tir", "relax.call_tir_inplace")


def closed(module: tvm.IRModule, function: str, sizes: Mapping[str, int]) -> tvm.IRModule:
    """Return the module with these symbolic sizes bound in one function, and in the PrimFuncs that it calls."""
    main = module[function]
    used = {
        each.name for each in (*relax.analysis.free_symbolic_vars(main), *relax.analysis.defined_symbolic_vars(main))
    }
    bound = {each: size for each, size in sizes.items() if each in used}
    if bound:
        module = relax.transform.BindSymbolicVars(bound, function)(module)
    return _specialised(module, function)


def _specialised(module: tvm.IRModule, function: str) -> tvm.IRModule:
    open_functions = {
        variable.name_hint
        for variable, each in module.functions.items()
        if isinstance(each, tirx.PrimFunc) and any(_open_sizes(parameter) for parameter in each.params)
    }
    if not open_functions:
        return module
    builder = relax.BlockBuilder(module)

    def called(call: tvm.ir.Call) -> tvm.ir.Call:
        if getattr(call.op, "name", "") not in CALLS or call.args[0].name_hint not in open_functions:
            return call
        callee = module[call.args[0].name_hint]
        sizes = _sizes(callee, call)
        made = tvm_ffi.structural_map(callee, (tirx.Var, lambda found: sizes.get(found, found)))
        variable = builder.add_func(made, call.args[0].name_hint)
        return tvm.ir.Call(call.op, [variable, *call.args[1:2]], call.attrs, call.ty_args)

    main = tvm_ffi.structural_map(module[function], (tvm.ir.Call, called))
    builder.update_func(module.get_global_var(function), main)
    made = builder.get()
    kept = {variable: each for variable, each in made.functions.items() if variable.name_hint not in open_functions}
    return tvm.IRModule(kept, attrs=module.attrs)


def _sizes(callee: tirx.PrimFunc, call: tvm.ir.Call) -> dict[tirx.Var, tirx.IntImm]:
    """Return the values of a PrimFunc's open sizes in one call."""
    results = call.ty_args[0]
    types = [value.ty for value in call.args[1]]
    types += list(results.fields) if isinstance(results, tvm.ir.TupleType) else [results]
    sizes: dict[tirx.Var, tirx.IntImm] = {}
    for parameter, kind in zip(callee.params, types, strict=False):
        known = zip(parameter.shape, kind.shape, strict=True)
        sizes.update((declared, size) for declared, size in known if isinstance(declared, tirx.Var))
    numbers = call.args[2].values if len(call.args) > 2 else ()
    sizes.update(zip(callee.params[len(types) :], numbers, strict=True))
    return sizes


def _open_sizes(parameter: Any) -> bool:
    """Return True if a parameter is a number or a buffer of open shape."""
    return not isinstance(parameter, tirx.Buffer) or not all(isinstance(size, tirx.IntImm) for size in parameter.shape)
