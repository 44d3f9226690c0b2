"""The loads from and the stores to each parameter of a kernel, read from its device code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm_ffi.structural import WalkResult

READ, WRITE = 1, 2
"""Bits of `tvm_access_ptr`'s mask."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one parameter: `loads` if the kernel reads from it, `stores` if the kernel writes to it."""

    loads: bool
    stores: bool


def uses(kernel: tirx.PrimFunc) -> tuple[Use, ...]:
    """Return the use of each parameter, in order.

    An address that goes elsewhere than into a load or a store counts as both. A parameter that is no pointer has
    neither.
    """
    found = _Uses()
    found.bases.update({parameter: parameter for parameter in kernel.params})
    tvm_ffi.structural_walk(
        kernel.body,
        (
            (tirx.DeclBuffer, found.declare),
            (tirx.Bind, found.bind),
            (tirx.BufferStore, found.store),
            (ir.TensorLoad, found.load),
            (ir.Call, found.call),
            (ir.Var, found.variable),
        ),
        order="pre",
    )
    pointers = {parameter for parameter in kernel.params if isinstance(parameter.ty, ir.PointerType)}
    escaped = found.escaped & pointers
    return tuple(
        Use(
            parameter in found.loaded or parameter in escaped,
            parameter in found.stored or parameter in escaped,
        )
        for parameter in kernel.params
    )


@dataclass(slots=True)
class _Uses:
    """The state of the walk. `bases` maps each buffer and each pointer variable to the parameter that it lies in."""

    bases: dict[Any, Any] = field(default_factory=dict)
    loaded: set[Any] = field(default_factory=set)
    stored: set[Any] = field(default_factory=set)
    escaped: set[Any] = field(default_factory=set)

    def base(self, pointer: Any) -> Any:
        match pointer:
            case ir.Var():
                return self.bases.get(pointer)
            case ir.Call(op=ir.Op(name="tirx.buffer_data" | "tirx.handle_add_byte_offset" | "tirx.reinterpret")):
                return self.base(pointer.args[0])
        return None

    def declare(self, statement: tirx.DeclBuffer) -> WalkResult | None:
        base = self.base(statement.data)
        if base is None:
            return None
        self.bases[statement.buffer] = base
        return WalkResult.SKIP

    def bind(self, statement: tirx.Bind) -> WalkResult | None:
        base = self.base(statement.value)
        if base is None or not isinstance(statement.var.ty, ir.PointerType):
            return None
        self.bases[statement.var] = base
        return WalkResult.SKIP

    def store(self, statement: tirx.BufferStore) -> None:
        self.stored.add(self.bases.get(statement.buffer))

    def load(self, expression: ir.TensorLoad) -> None:
        self.loaded.add(self.bases.get(expression.source))

    def call(self, call: ir.Call) -> WalkResult | None:
        match call:
            case ir.Call(op=ir.Op(name="tirx.tvm_access_ptr"), args=[_, data, *_, mask]) if self.base(data) is not None:
                if mask.value & READ:
                    self.loaded.add(self.base(data))
                if mask.value & WRITE:
                    self.stored.add(self.base(data))
                return WalkResult.SKIP
            case ir.Call(op=ir.Op(name="tirx.address_of"), args=[ir.TensorLoad() as place]):
                self.escaped.add(self.bases.get(place.source))
            case ir.Call(op=ir.Op(name="tirx.buffer_data"), args=[buffer]):
                self.escaped.add(self.bases.get(buffer))
        return None

    def variable(self, variable: ir.Var) -> None:
        """Note a pointer that no declaration takes up: its address escapes."""
        if isinstance(variable.ty, ir.PointerType):
            self.escaped.add(self.bases.get(variable))
