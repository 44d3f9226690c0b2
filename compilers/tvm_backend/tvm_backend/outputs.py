"""Results that no kernel would write, copied by a kernel: inputs, constants, and tensors that are results already."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, relax, te
from tvm.s_tir import dlight

from tvm_backend.targets import Target

VIEWS = ("relax.reshape", "vm.builtin.reshape")
"""Operators and functions of TVM's runtime whose result shares the memory of their first argument."""


def called(call: ir.Call) -> str:
    """Return the name of a call's callee: an operator, one of the module's functions, or a function of the host."""
    match call.op:
        case relax.ExternFunc():
            return str(call.op.global_symbol)
        case ir.GlobalVar():
            return str(call.op.name_hint)
    return str(getattr(call.op, "name", call.op))


def own_outputs(target: Target) -> tvm.transform.Pass:
    """Return a pass that makes each result of each Relax function a tensor of its own.

    The pass runs when reshapes are views already and results are not arguments yet.
    """

    @tvm.transform.module_pass(opt_level=0, name="OwnOutputs")  # type: ignore[untyped-decorator]
    def run(module: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        copies = _Copies(relax.BlockBuilder(module), target)
        for variable, function in module.functions.items():
            if isinstance(function, relax.Function):
                copies.builder.update_func(variable, copies.of(function))
        return copies.builder.get()

    return run


class _Copies:
    def __init__(self, builder: relax.BlockBuilder, target: Target) -> None:
        self.builder, self.target = builder, target
        self.kernels: dict[tuple[tuple[int, ...], str], ir.GlobalVar] = {}

    def of(self, function: relax.Function) -> relax.Function:
        bound = {b.var: b.value for block in function.body.blocks for b in block.bindings}
        taken: set[Any] = set(function.params)
        made: list[relax.VarBinding] = []

        def own(value: Any) -> Any:
            origin = _origin(value, bound)
            if isinstance(origin, relax.Tuple):
                return relax.Tuple([own(field) for field in origin.fields])
            key = (origin.tuple_value, origin.index) if isinstance(origin, relax.TupleGetItem) else origin
            if not isinstance(origin, ir.GenericConst) and key not in taken:
                taken.add(key)
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
            unscheduled = tvm.IRModule({"copy": copy.with_attr("tirx.noalias", True)})
            with self.target.tvm:
                scheduled = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(unscheduled)
            self.kernels[shape, dtype] = self.builder.add_func(scheduled["copy"], "copy_to_output")
        return self.kernels[shape, dtype]


def _origin(value: Any, bound: dict[Any, Any]) -> Any:
    """Return the origin of a value behind names, views, tuples and writes in place.

    The origin is a tuple, a parameter, a constant, or a variable that a call defines.
    """
    while True:
        behind = _behind(value, bound)
        if behind is None:
            return value
        value = behind


def _behind(value: Any, bound: dict[Any, Any]) -> Any:
    """Return the value one step closer to the origin, or None if the value is the origin."""
    match value:
        case relax.Var() if value in bound:
            made = bound[value]
            match made:
                case relax.Var() | relax.Tuple() | ir.GenericConst() | relax.TupleGetItem():
                    return made
                case ir.Call() if called(made) in VIEWS:
                    return made.args[0]
                case ir.Call():
                    return _written_in_place(made, 0) if not isinstance(made.ty, relax.TupleType) else None
        case relax.TupleGetItem():
            whole = _origin(value.tuple_value, bound)
            if isinstance(whole, relax.Tuple):
                return whole.fields[value.index]
            if isinstance(whole, relax.Var) and isinstance(bound.get(whole), ir.Call):
                return _written_in_place(bound[whole], value.index)
    return None


def _written_in_place(call: ir.Call, position: int) -> Any:
    """Return the argument that a result of a call overwrites, or None if the result has memory of its own."""
    if called(call) != "relax.call_tir_inplace":
        return None
    index = int(call.attrs.inplace_indices[position])
    return call.args[1].fields[index] if index >= 0 else None
