"""kTasks from a lowered module: the calls of each Relax function as kernels, its storage plan as buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import ir, relax
from tvm.ir.prim import expr

from kaas import Buffer, In, InOut, Kernel, KTask, Library, Literal, Out, Variant
from tvm_backend.accesses import Use, uses
from tvm_backend.constants import Array, Constants, unused
from tvm_backend.errors import Place, unsupported
from tvm_backend.evaluate import brief
from tvm_backend.frontends.imported import EntryPoint, Imported
from tvm_backend.launches import Launch, Pointer, Workspace, launches
from tvm_backend.lowering import NOTHING, Lowered
from tvm_backend.outputs import VIEWS, called

Access = In | Out | InOut


def tasks(lowered: Lowered, imported: Imported, library: Library) -> tuple[tuple[Variant, ...], dict[str, Array]]:
    """Return a kTask for each of the model's functions, and the constants that the kTasks read, by name.

    Raises:
        UnsupportedOperators: parts of the functions cannot be part of a kTask; the error lists all that were found.
    """
    names = {name for entry in imported.functions for name in entry.inputs + entry.outputs}
    constants = Constants(lowered.names, names)
    kernel_uses = {symbol: uses(function) for symbol, function in lowered.device.items()}
    graphs = [
        Graph(entry, lowered, kernel_uses, constants).walk(lowered.functions[entry.function])
        for entry in imported.functions
    ]
    places = [place for graph in graphs for place in graph.places]
    if places:
        raise unsupported(imported.name, list(dict.fromkeys(places)))
    variants = tuple(graph.variant(_label(imported, graph.entry), library) for graph in graphs)
    return variants, constants.arrays


def _label(imported: Imported, entry: EntryPoint) -> str:
    """Return a kTask's name in statistics and errors: the model's name, with the batch size if there are several."""
    return f"{imported.name}-{entry.batch_size}" if len(imported.functions) > 1 else imported.name


@dataclass(slots=True, eq=False)
class Memory:
    """Memory that becomes one buffer.

    Fields:
        written: a kernel or the caller has written to the memory.
        cleared: a kernel reads from the memory before that, so that it has to begin as zeros.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    written: bool = False
    cleared: bool = False

    @property
    def buffer(self) -> Buffer:
        """The buffer for this memory."""
        return Buffer(self.name, self.shape, self.dtype, init="zero" if self.cleared else None)


@dataclass(slots=True, eq=False)
class Tensor:
    """A tensor in memory; its views are the same tensor."""

    memory: Memory
    offset_bytes: int = 0
    written: bool = False


Step = tuple[Launch, tuple[tuple[type[Access], Tensor, int] | Literal, ...]]
"""A launch and its arguments: an access, a tensor and an offset in bytes, or a literal."""


@dataclass(slots=True)
class Graph:
    """One Relax function's calls, in order, and the memory of its values."""

    entry: EntryPoint
    lowered: Lowered
    uses: dict[str, tuple[Use, ...]]
    constants: Constants
    values: dict[Any, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    inputs: list[Memory] = field(default_factory=list)
    outputs: list[Memory] = field(default_factory=list)
    constant_tensors: dict[str, Tensor] = field(default_factory=dict)
    temporaries: list[Memory] = field(default_factory=list)

    def walk(self, function: relax.Function) -> Graph:
        """Read a function's bindings and results, and return this graph; `places` has what cannot be in a kTask."""
        for name, parameter in zip(self.entry.inputs, function.params, strict=True):
            memory = Memory(name, *described(parameter.ty), written=True)
            self.inputs.append(memory)
            self.values[parameter] = Tensor(memory, written=True)
        for block in function.body.blocks:
            for binding in block.bindings:
                self.bind(binding.var, binding.value)
        if not self.places:
            self.finish(function.body.body)
        return self

    def bind(self, variable: Any, value: Any) -> None:
        """Give a variable its value; an unknown value is noted in `places`."""
        try:
            self.values[variable] = self.value(value, variable.name)
        except _Unknown as error:
            self.values[variable] = error
            if error.reason:
                where = f"{self.entry.function}, {variable.name}"
                self.places.append(Place(error.operator, where, error.reason))

    def value(self, value: Any, name: str) -> Any:
        """Return the meaning of a value: a Tensor, a tuple of values, a Memory, or a number.

        Raises:
            _Unknown: the value is none of these.
        """
        match value:
            case relax.Var() if isinstance(self.values.get(value), _Unknown):
                raise _Unknown(value.name, "")
            case relax.Var() if value in self.values:
                return self.values[value]
            case ir.GenericConst():
                return self.constant(value)
            case relax.Tuple():
                return tuple(self.value(field, name) for field in value.fields)
            case relax.TupleGetItem():
                return self.value(value.tuple_value, name)[value.index]
            case expr.IntImm() | expr.FloatImm():
                return value.value
            case ir.Call(op=ir.GlobalVar() as function):
                return self.call(function.name_hint, value.args)
            case ir.Call():
                return self.builtin(value, name)
        raise _Unknown(f"relax.{type(value).__name__}", f"is nothing that a kTask has: {brief(value)}")

    def builtin(self, call: ir.Call, name: str) -> Any:
        """Return the value of a call of a TVM operator: memory, a tensor or a view. See `value`."""
        match called(call), list(call.args):
            case "relax.memory.alloc_storage", [size, *_]:
                (nbytes,) = integers(size)
                return self.temporary(name, (nbytes,), "uint8")
            case "relax.memory.alloc_tensor", [storage, offset, *_]:
                return Tensor(self.value(storage, name), offset.value)
            case "relax.builtin.alloc_tensor", [shape, dtype, *_]:
                return Tensor(self.temporary(name, integers(shape), str(dtype.value)))
            case operator, [whole, *_] if operator in VIEWS:
                return self.value(whole, name)
            case operator, _:
                raise _Unknown(operator, "runs on the host")

    def temporary(self, name: str, shape: tuple[int, ...], dtype: str) -> Memory:
        """Return new memory for a temporary buffer."""
        self.temporaries.append(Memory(str(name), shape, dtype))  # str: no codec knows TVM's String
        return self.temporaries[-1]

    def constant(self, value: ir.GenericConst) -> Tensor:
        """Return the tensor of a constant. Equal constants have the same tensor."""
        buffer = self.constants.buffer(value.value.numpy())
        if buffer.name not in self.constant_tensors:
            memory = Memory(buffer.name, buffer.shape, buffer.dtype, written=True)
            self.constant_tensors[buffer.name] = Tensor(memory, written=True)
        return self.constant_tensors[buffer.name]

    def call(self, function: str, given: Sequence[Any]) -> tuple[()]:
        """Append the launches of a call of a PrimFunc to the steps."""
        values = [self.value(argument, "") for argument in given]
        shapes = [
            described(argument.ty)[0] if isinstance(value, Tensor) else value
            for argument, value in zip(given, values, strict=True)
        ]
        made, problems = launches(self.lowered.host[function], shapes)
        self.places.extend(problems)
        workspaces: dict[Workspace, Tensor] = {}
        for launch in made:
            pairs = zip(launch.arguments, self.uses[launch.symbol], strict=True)
            arguments = tuple(self.argument(argument, use, values, workspaces) for argument, use in pairs)
            for argument in arguments:
                if not isinstance(argument, Literal) and argument[0].writes:
                    argument[1].written = argument[1].memory.written = True
            self.steps.append((launch, arguments))
        return ()

    def argument(
        self, argument: Pointer | Literal, use: Use, values: list[Any], workspaces: dict[Workspace, Tensor]
    ) -> tuple[type[Access], Tensor, int] | Literal:
        """Return a launch's argument as a `Step` has it, with new memory for a workspace at its first use."""
        match argument:
            case Literal():
                return argument
            case Pointer(base=Workspace() as space):
                if space not in workspaces:
                    workspaces[space] = Tensor(self.temporary(space.name, (space.nbytes,), "uint8"))
                tensor = workspaces[space]
            case Pointer(base=int() as parameter):
                tensor = values[parameter]
        return self.access(tensor, use), tensor, argument.offset_bytes

    def access(self, tensor: Tensor, use: Use) -> type[Access]:
        """Return how a kernel accesses a tensor.

        The first kernel that stores to a tensor writes all of it, so that its earlier contents do not count. Later
        stores may write a part.
        """
        if use.stores:
            return InOut if tensor.written else Out
        if not tensor.memory.written:
            tensor.memory.cleared = True
        return In

    def finish(self, result: Any) -> None:
        """Turn the memory of the function's results into outputs, under the model's names."""
        leaves = list(flat(self.value(result, ""), result.ty))
        for name, (tensor, ty) in zip(self.entry.outputs, leaves, strict=True):
            memory = tensor.memory
            memory.name, (memory.shape, memory.dtype) = name, described(ty)
            if not memory.written and not math.prod(memory.shape):
                self.steps.append((Launch(NOTHING, (1, 1, 1), (1, 1, 1), 0, ()), ((Out, tensor, 0),)))
            self.temporaries.remove(memory)
            self.outputs.append(memory)

    def variant(self, label: str, library: Library) -> Variant:
        """Return the kTask named `label` with its inputs."""
        taken = {memory.name for memory in self.inputs + self.outputs} | set(self.constants.arrays)
        for memory in self.temporaries:
            memory.name = unused(memory.name, taken)
        kernels = [
            Kernel(
                library,
                launch.symbol,
                launch.grid,
                launch.block,
                [argument if isinstance(argument, Literal) else placed(*argument) for argument in arguments],
                launch.shared_bytes,
            )
            for launch, arguments in self.steps
        ]
        task = KTask(kernels, [memory.buffer for memory in self.outputs], name=label)
        return Variant(task, tuple(memory.buffer for memory in self.inputs))


class _Unknown(Exception):
    """A value without a meaning in a kTask.

    Always caught: it becomes one of the error's places. With an empty reason it only follows from another place.
    """

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(operator, reason)
        self.operator, self.reason = operator, reason


def placed(access: type[Access], tensor: Tensor, offset_bytes: int) -> Access:
    """Return the kernel argument for an access to a tensor, `offset_bytes` from its start."""
    return access(tensor.memory.buffer, tensor.offset_bytes + offset_bytes)


def integers(shape: Any) -> tuple[int, ...]:
    """Return a Relax shape as integers."""
    return tuple(int(extent) for extent in shape.values)


def described(ty: relax.TensorType) -> tuple[tuple[int, ...], str]:
    """Return the shape and the dtype of a tensor type."""
    return integers(ty.shape), str(ty.dtype)


def flat(value: Any, ty: Any) -> list[tuple[Tensor, Any]]:
    """Return a result's tensors with their types, nested tuples laid flat."""
    if isinstance(value, tuple):
        return [leaf for part, kind in zip(value, ty.fields, strict=True) for leaf in flat(part, kind)]
    return [(value, ty)]
