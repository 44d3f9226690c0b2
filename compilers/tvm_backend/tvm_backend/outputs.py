"""Results that no kernel would write, copied by one: inputs, constants, and what another result already is."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax, te
from tvm.s_tir import dlight

from tvm_backend.targets import Target

VIEWS = ("relax.reshape",)
"""Operators whose result lies where their argument does."""


def with_own_outputs(module: tvm.IRModule, target: Target) -> tvm.IRModule:
    """The module with each result of each Relax function in a tensor of its own.

    Args:
        module: with reshapes that are views, and calls whose results are not arguments yet.
    """
    copies = _Copies(tvm.IRModule(module.functions, attrs=module.attrs), target)
    for variable, function in list(module.functions.items()):
        if isinstance(function, relax.Function):
            copies.module[variable] = copies.of(function)
    return copies.module


class _Copies:
    def __init__(self, module: tvm.IRModule, target: Target) -> None:
        self.module, self.target = module, target
        self.kernels: dict[tuple[tuple[int, ...], str], ir.GlobalVar] = {}

    def of(self, function: relax.Function) -> relax.Function:
        bound = {b.var: b.value for block in function.body.blocks for b in block.bindings}
        taken: set[Any] = set(function.params)
        made: list[relax.VarBinding] = []

        def own(value: Any) -> Any:
            origin = _origin(value, bound)
            if isinstance(origin, relax.Tuple):
                return relax.Tuple([own(field) for field in origin.fields])
            if isinstance(origin, relax.Var) and origin not in taken:
                taken.add(origin)
                return value
            copy = relax.Var(f"copy{len(made)}", value.ty)
            made.append(relax.VarBinding(copy, relax.call_tir(self.kernel(value.ty), [value], value.ty)))
            return copy

        result = own(function.body.body)
        if not made:
            return function
        final = relax.Var("result", result.ty) if isinstance(result, relax.Tuple) else result
        if final is not result:
            made.append(relax.VarBinding(final, result))
        body = relax.SeqExpr([*function.body.blocks, relax.BindingBlock(made)], final)
        return relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs)

    def kernel(self, ty: relax.TensorType) -> ir.GlobalVar:
        shape, dtype = tuple(int(n) for n in ty.shape.values), str(ty.dtype)
        if (shape, dtype) not in self.kernels:
            source = te.placeholder(shape, dtype, name="source")
            copy = te.create_prim_func([source, te.compute(shape, lambda *i: source(*i), name="copied")])
            name = f"copy_to_output{len(self.kernels)}"
            with self.target.tvm:
                scheduled = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(
                    tvm.IRModule({name: copy.with_attr("tirx.noalias", True)})
                )
            self.kernels[shape, dtype] = variable = ir.GlobalVar(name)
            self.module[variable] = scheduled[name]
        return self.kernels[shape, dtype]


def _origin(value: Any, bound: dict[Any, Any]) -> Any:
    """What a value is, seen through names, views and tuples: a tuple, a parameter, a constant, or the variable that a
    call defines."""
    while True:
        match value:
            case relax.Var() if value in bound:
                behind = bound[value]
                match behind:
                    case relax.Var() | relax.Tuple() | relax.Constant() | relax.TupleGetItem():
                        value = behind
                    case ir.Call(op=ir.Op(name=name)) if name in VIEWS:
                        value = behind.args[0]
                    case _:
                        return value
            case relax.TupleGetItem():
                whole = _origin(value.tuple_value, bound)
                if not isinstance(whole, relax.Tuple):
                    return value
                value = whole.fields[value.index]
            case _:
                return value


