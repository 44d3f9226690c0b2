"""The launches of a PrimFunc, found by interpreting the host code that TVM would compile for the CPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, tirx

import kaas
from kaas import Buffer, Literal
from tvm_backend.errors import Place
from tvm_backend.evaluate import NotConstant, Number, brief, evaluate, integer

AXES = ("x", "y", "z")
SHARED = "tirx.use_dyn_shared_memory"
MOST_LAUNCHES = 100_000
"""The most launches of one PrimFunc: a model with more should be written differently."""

KINDS = {
    **{f"{name}{bits}": f"{name[0]}{bits}" for name in ("int", "uint", "float") for bits in (8, 16, 32, 64)},
    "bfloat16": "bf16",
    "bool": "boolean",
}
"""TVM's dtypes and the kinds of literals for them."""


@dataclass(frozen=True, slots=True, eq=False)
class Workspace:
    """Memory that a PrimFunc allocates for the time of its call."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address: `base` is the position of a parameter of the PrimFunc, or a workspace."""

    base: int | Workspace
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a kernel, its arguments in the kernel's own order."""

    symbol: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[Pointer | Literal, ...]


def launches(
    function: tirx.PrimFunc, arguments: Sequence[tuple[int, ...] | Number]
) -> tuple[list[Launch], list[Place]]:
    """Return the launches of one call of a function, in order, and the steps that no kTask can do.

    Args:
        function: the host code.
        arguments: for each parameter the shape if it is a tensor, else the value.
    """
    host = _Host(str(function.attrs["global_symbol"]))
    for position, (parameter, argument) in enumerate(zip(function.params, arguments, strict=True)):
        if isinstance(argument, tuple):
            host.tensor(parameter, position, argument)
        else:
            host.values[parameter] = argument
    host.run(function.body)
    return host.launches, host.problems


@dataclass(slots=True)
class _Host:
    name: str
    pointers: dict[Any, Pointer] = field(default_factory=dict)
    values: dict[Any, Number] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    problems: list[Place] = field(default_factory=list)

    def tensor(self, parameter: ir.Var, position: int, shape: tuple[int, ...]) -> None:
        """Bind a parameter's pointer and the sizes that its declaration leaves open.

        Tensors are contiguous, and pointers to them include their offset.
        """
        self.pointers[parameter] = Pointer(position, 0)
        strides = (math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        declared = [*zip(parameter.shape, shape, strict=True), *zip(parameter.strides, strides, strict=False)]
        for extent, value in [*declared, (parameter.elem_offset, 0)]:
            if isinstance(extent, ir.Var):
                self.values[extent] = value

    def run(self, statement: Any) -> None:
        try:
            self.step(statement)
        except NotConstant as error:
            self.refuse(error.operator, str(error))

    def step(self, statement: Any) -> None:
        match statement:
            case tirx.SeqStmt():
                for part in statement.seq:
                    self.run(part)
            case tirx.DeclBuffer():
                self.pointers[statement.buffer] = self.pointer(statement.data)
            case tirx.AllocBuffer():
                self.pointers[statement.buffer] = Pointer(self.workspace(statement.buffer), 0)
            case tirx.Bind():
                self.bind(statement.var, statement.value)
            case tirx.For():
                self.loop(statement)
            case tirx.IfThenElse():
                branch = statement.then_case if evaluate(statement.condition, self.values) else statement.else_case
                if branch is not None:
                    self.run(branch)
            case tirx.AttrStmt():
                self.run(statement.body)
            case tirx.Evaluate(value=ir.Call() as call):
                self.call(call)
            case tirx.AssertStmt():
                if not evaluate(statement.condition, self.values):
                    self.refuse("tirx.AssertStmt", f"{brief(statement.condition)} does not hold")
            case tirx.Evaluate():
                evaluate(statement.value, self.values)
            case _:
                self.refuse(f"tirx.{type(statement).__name__}", f"runs on the host: {brief(statement)}")

    def refuse(self, operator: str, reason: str) -> None:
        self.problems.append(Place(operator, self.name, reason))

    def loop(self, statement: tirx.For) -> None:
        first, count = integer(statement.min, self.values), integer(statement.extent, self.values)
        for number in range(first, first + count):
            self.values[statement.loop_var] = number
            self.run(statement.body)
            if self.problems:
                return
            if len(self.launches) > MOST_LAUNCHES:
                self.refuse("tirx.For", f"launches more than {MOST_LAUNCHES} kernels")
                return

    def bind(self, variable: ir.Var, value: Any) -> None:
        if isinstance(variable.ty, ir.PointerType):
            self.pointers[variable] = self.pointer(value)
        else:
            self.values[variable] = evaluate(value, self.values)

    def workspace(self, buffer: ir.Var) -> Workspace:
        shape = [integer(extent, self.values) for extent in buffer.shape]
        return Workspace(buffer.name or "workspace", Buffer("workspace", shape, str(buffer.dtype)).nbytes)

    def pointer(self, value: Any) -> Pointer:
        match value:
            case ir.Call(op=ir.Op(name="tirx.buffer_data"), args=[buffer]) if buffer in self.pointers:
                return self.pointers[buffer]
            case ir.Var() if value in self.pointers:
                return self.pointers[value]
            case ir.Call(op=ir.Op(name="tirx.handle_add_byte_offset"), args=[base, offset]):
                start = self.pointer(base)
                return Pointer(start.base, start.offset_bytes + integer(offset, self.values))
            case ir.Call(op=ir.Op(name="tirx.reinterpret"), args=[base]):
                return self.pointer(base)
        raise NotConstant(value, f"where {brief(value)} points is not known before it runs")

    def call(self, call: ir.Call) -> None:
        match call.op:
            case ir.Op(name="tirx.call_ffi_kernel"):
                launch = self.launch(call)
                if math.prod(launch.grid + launch.block):
                    self.launches.append(launch)
            case _ if call.args and isinstance(call.args[0], ir.StringImm):
                self.refuse(str(call.args[0].value), "is a function of the host")
            case _:
                self.refuse(str(getattr(call.op, "name", call.op)), f"runs on the host: {brief(call)}")

    def launch(self, call: ir.Call) -> Launch:
        tags = [str(tag) for tag in call.attrs.launch_params]
        symbol, *values = call.args
        count = len(values) - len(tags)
        extents = {tag: integer(value, self.values) for tag, value in zip(tags, values[count:], strict=True)}
        unknown = [tag for tag in tags if tag != SHARED and not tag.startswith(("blockIdx.", "threadIdx."))]
        if unknown:
            self.refuse("tirx.call_ffi_kernel", f"a launch with {', '.join(unknown)}")
        return Launch(
            str(symbol.value),
            _extents(extents, "blockIdx"),
            _extents(extents, "threadIdx"),
            extents.get(SHARED, 0),
            tuple(self.argument(value) for value in values[:count]),
        )

    def argument(self, value: Any) -> Pointer | Literal:
        if isinstance(value.ty, ir.PointerType):
            return self.pointer(value)
        kind = KINDS.get(str(value.ty))
        if kind is None:
            raise NotConstant(value, f"an argument of type {value.ty}: {brief(value)}")
        made: Literal = getattr(kaas, kind)(evaluate(value, self.values))
        return made


def _extents(extents: dict[str, int], what: str) -> tuple[int, int, int]:
    x, y, z = (extents.get(f"{what}.{axis}", 1) for axis in AXES)
    return x, y, z
