"""A kTask prepared for one device: launches that are checked against the code, with gaps that each request fills in.

Requests differ in the addresses of buffers and of tables of pointers, and in the scalars' bytes. A plan has the places
of these values in the launches' parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kaas.errors import ArgumentMismatch, LaunchLimit
from kaas.executor.device.code import LoadedKernel
from kaas.executor.device.device import LaunchLimits
from kaas.executor.device.graphs import KernelNode, ParameterBlock
from kaas.executor.device.partitions import SmPartition
from kaas.executor.plan.arena import ArenaBuffer, HappensBefore, Layout, lay_apart, lay_out
from kaas.executor.plan.globals import Globals
from kaas.executor.plan.loaded_kernels import LoadedKernels
from kaas.executor.plan.parameters import parameters_of
from kaas.executor.plan.sizes import too_large
from kaas.ktask.arguments import (
    POINTER_BYTES,
    Access,
    Argument,
    Buffer,
    Literal,
    Null,
    Pointers,
    Scalar,
    Struct,
    argument_bytes,
)
from kaas.ktask.dtypes import KIND_BYTES
from kaas.ktask.graph import KTask
from kaas.ktask.library import Image, Kernel
from kaas.ktask.signature import shown_name

Table = tuple[tuple[int, int], ...]
"""The entries of a table of pointers: (index of a buffer, offset in bytes)."""


OFTEN_READS, OFTEN_BYTES = 4, 64 << 10
"""An input of at most OFTEN_BYTES that OFTEN_READS launches or more read, and that differs in each request, is copied
to a fixed place: that takes less time than pointing each launch to the object."""


class Patch(NamedTuple):
    """The place of an address or a scalar: the launch, the byte in its parameters, and the offset for an address.

    A tuple, since warm requests read many of them.
    """

    launch: int
    at: int
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A kTask for one device.

    Fields:
        launches, parameters: of each kernel. The parameters have its literals, and zeros in the places of patches.
        buffers, tables: values with an address. Indices count buffers, then tables. nbytes: of the buffers.
        address_patches, scalar_patches: by that index, and in the order of scalars.
        arena_buffers, order: buffers and tables that may lie in the arena, and the order of their users.
        globals: of the libraries that have some.
        inputs, private, outputs: indices of buffers: those read first, inputs that are also written, those returned.
        often_read: indices of small inputs that many launches read.
        zeroed: indices of buffers that start as zeros: those with init="zero", and every output that is no input. A
            part that no kernel writes must not be from an earlier request; clearing costs less than copying out.
        prints: True if the code may print.
        local_bytes: local memory of the launch with the most of it; 0 on a GPU.
        apart: buffers share no memory, and there are gaps between them.
    """

    task: KTask
    launches: tuple[KernelNode, ...]
    parameters: tuple[bytes, ...]
    buffers: tuple[Buffer, ...]
    nbytes: tuple[int, ...]
    tables: tuple[Table, ...]
    scalars: tuple[str, ...]
    address_patches: tuple[tuple[Patch, ...], ...]
    scalar_patches: tuple[tuple[Patch, ...], ...]
    arena_buffers: tuple[ArenaBuffer, ...] = field(repr=False)
    order: HappensBefore = field(repr=False)
    inputs: tuple[int, ...]
    private: frozenset[int]
    often_read: frozenset[int]
    outputs: tuple[int, ...]
    zeroed: tuple[int, ...]
    input_names: frozenset[str]
    globals: tuple[Globals, ...]
    prints: bool
    local_bytes: int
    apart: bool

    def layout(self, resident: int, kept: int = 0) -> Layout:
        """Return the arena's layout for a request.

        Bit i of `resident`: input i is in the arena, not in the cache. Bit i of `kept`: output i stays in the cache.
        """
        cached = {index for index in self.inputs if not resident >> index & 1}
        cached.update(index for index in self.outputs if kept >> index & 1)
        arena_buffers = [buffer for buffer in self.arena_buffers if buffer.index not in cached]
        return lay_apart(arena_buffers) if self.apart else lay_out(arena_buffers, self.order)

    def parameter_blocks(self, partition: SmPartition | None = None) -> list[ParameterBlock]:
        """Return the parameters of each launch, in new host memory, with zeros in the places of patches.

        partition: of the device, which runs the kernels; None: the whole device.
        """
        return [ParameterBlock(*each, partition) for each in zip(self.launches, self.parameters, strict=True)]

    @property
    def private_mask(self) -> int:
        """The `resident` of `layout` if all possible inputs come from the cache."""
        return sum(1 << index for index in self.private)


def arena_bytes(task: KTask, cached: Collection[Buffer]) -> int:
    """Return the bytes of a request's arena, without a device.

    `cached` are the inputs that come from the cache, such as a function's constants; all others lie in the arena.
    """
    index = {buffer: number for number, buffer in enumerate(task.buffers)}
    pointers = (table for kernel in task.kernels for argument in kernel.args for table in _tables(argument))
    tables = dict.fromkeys(_entries(table, index) for table in pointers)
    away = {index[buffer] for buffer in set(cached) - set(task.private_inputs)}
    arena_buffers = (buffer for buffer in _arena_buffers(task, index, tables) if buffer.index not in away)
    return lay_out(arena_buffers, HappensBefore(len(task.kernels), task.edges)).nbytes


def make_plan(
    task: KTask, kernels: LoadedKernels, limits: LaunchLimits, capacity_bytes: int, device: str, *, apart: bool = False
) -> Plan:
    """Check a kTask against its code and the device, and prepare it. Nothing runs, and no device memory is taken.

    If `apart`, buffers share no memory, for a device that checks the accesses of kernels.

    Raises:
        CorruptImage, UnsupportedCode, Unprovided, UnknownSymbol, ArgumentMismatch: the code.
        LaunchLimit: a grid, a block, shared or local memory beyond the limits of the device or the kernel.
        RequestTooLarge: the kTask needs more memory than the device has, without its objects: those may be elsewhere.
    """
    functions = [kernels.get(kernel.library, kernel.symbol) for kernel in task.kernels]
    launches = tuple(
        KernelNode(f, k.grid, k.block, k.shared_bytes) for k, f in zip(task.kernels, functions, strict=True)
    )
    for kernel, launch in zip(task.kernels, launches, strict=True):
        _check_arguments(kernel, launch.function)
        _check_types(kernel, (kernels.image(kernel.library), *kernel.library.images))
        _check_limits(kernel, launch, limits, device)
    for launch in launches:
        if launch.shared_bytes + launch.function.static_shared_bytes > limits.shared_bytes:
            launch.function.allow_dynamic_shared(launch.shared_bytes)

    builder = _Parameters(task)
    parameters = [builder.build(number, kernel, functions[number]) for number, kernel in enumerate(task.kernels)]
    index = builder.buffers
    plan = Plan(
        task=task,
        launches=launches,
        parameters=tuple(parameters),
        buffers=tuple(index),
        nbytes=tuple(buffer.nbytes for buffer in index),
        tables=tuple(builder.tables),
        scalars=tuple(builder.scalars),
        address_patches=tuple(map(tuple, (*builder.accesses, *builder.tables.values()))),
        scalar_patches=tuple(map(tuple, builder.scalars.values())),
        arena_buffers=tuple(_arena_buffers(task, index, builder.tables)),
        order=HappensBefore(len(task.kernels), task.edges),
        inputs=tuple(index[buffer] for buffer in task.inputs),
        private=frozenset(index[buffer] for buffer in task.private_inputs),
        often_read=frozenset(
            index[buffer]
            for buffer in task.inputs
            if buffer.nbytes <= OFTEN_BYTES and len(builder.accesses[index[buffer]]) >= OFTEN_READS
        ),
        outputs=tuple(index[buffer] for buffer in task.outputs),
        zeroed=tuple(index[buffer] for buffer in _zeroed(task)),
        input_names=frozenset(buffer.name for buffer in task.inputs),
        globals=kernels.globals_of(task.libraries),
        prints=any(_prints(kernels.image(library)) for library in task.libraries),
        local_bytes=max(map(limits.local_bytes_of, launches)),
        apart=apart,
    )
    check_size(plan, capacity_bytes, device)
    return plan


def _prints(image: Image) -> bool:
    """Return False if the code surely prints nothing, which only PTX shows."""
    return image.kind != "ptx" or any(call in image.data for call in (b"vprintf", b"__assertfail"))


def _zeroed(task: KTask) -> tuple[Buffer, ...]:
    """Return the buffers that start as zeros in each request, before the first iteration."""
    inputs, outputs = set(task.inputs), set(task.outputs)
    return tuple(b for b in task.buffers if b.init == "zero" or (b in outputs and b not in inputs))


def _arena_buffers(task: KTask, buffers: Mapping[Buffer, int], tables: Iterable[Table]) -> Iterator[ArenaBuffer]:
    users: dict[Buffer, list[int]] = {buffer: [] for buffer in buffers}
    for number, kernel in enumerate(task.kernels):
        for buffer in dict.fromkeys(access.buffer for access in kernel.accesses):
            users[buffer].append(number)
    inputs, outputs, zeroed = set(task.inputs), set(task.outputs), set(_zeroed(task))
    for buffer, index in buffers.items():
        # A buffer that carries data to the next iteration must stay until the end.
        carried = task.iterations != 1 and buffer in task.kernels[users[buffer][0]].reads
        from_start = buffer in inputs or buffer in zeroed
        yield ArenaBuffer(index, buffer.nbytes, frozenset(users[buffer]), from_start, buffer in outputs or carried)
    for number, table in enumerate(tables, start=len(buffers)):
        yield ArenaBuffer(number, POINTER_BYTES * len(table), frozenset(), from_start=True, to_end=True)


class _Parameters:
    """Collects, kernel by kernel, the parameters' fixed bytes and the patches."""

    def __init__(self, task: KTask) -> None:
        self.buffers: Mapping[Buffer, int] = {buffer: index for index, buffer in enumerate(task.buffers)}
        self.tables: dict[Table, list[Patch]] = {}
        self.scalars: dict[str, list[Patch]] = {name: [] for name in task.scalars}
        self.accesses: list[list[Patch]] = [[] for _ in self.buffers]

    def build(self, launch: int, kernel: Kernel, function: LoadedKernel) -> bytes:
        """Return the parameters of one launch, and note its patches."""
        memory = bytearray(max((offset + nbytes for offset, nbytes in function.params), default=0))
        for argument, (at, _) in zip(kernel.args, function.params, strict=True):
            match argument:
                case Literal():
                    memory[at : at + len(argument.data)] = argument.data
                case Scalar():
                    self.scalars[argument.name].append(Patch(launch, at))
                case Struct():
                    memory[at : at + len(argument.blob)] = argument.blob
                    for offset, target in argument.pointers:
                        self._pointer(launch, at + offset, target)
                    for offset, scalar in argument.scalars:
                        self.scalars[scalar.name].append(Patch(launch, at + offset))
                case _:
                    self._pointer(launch, at, argument)
        return bytes(memory)

    def _pointer(self, launch: int, at: int, target: Access | Pointers) -> None:
        if isinstance(target, Access):
            self.accesses[self.buffers[target.buffer]].append(Patch(launch, at, target.offset_bytes))
        else:
            self.tables.setdefault(_entries(target, self.buffers), []).append(Patch(launch, at))


def _entries(table: Pointers, buffers: Mapping[Buffer, int]) -> Table:
    return tuple((buffers[entry.buffer], entry.offset_bytes) for entry in table.entries)


def _tables(argument: Argument) -> Iterator[Pointers]:
    """Yield every table of pointers in an argument."""
    match argument:
        case Pointers():
            yield argument
        case Struct():
            yield from (target for _, target in argument.pointers if isinstance(target, Pointers))


# --- checks


def _shown(kernel: Kernel) -> str:
    return f"kernel {shown_name(kernel.library.entries, kernel.symbol)!r}"


def _check_arguments(kernel: Kernel, function: LoadedKernel) -> None:
    names = {"library": kernel.library.hash, "symbol": kernel.symbol, "kernel": kernel.symbol}
    expected, given = len(function.params), len(kernel.args)
    if expected != given:
        raise ArgumentMismatch(
            f"{_shown(kernel)} takes {expected} arguments, not {given}",
            expected_count=expected,
            given_count=given,
            **names,
        )
    for position, (argument, (_, nbytes)) in enumerate(zip(kernel.args, function.params, strict=True)):
        if argument_bytes(argument) != nbytes:
            raise ArgumentMismatch(
                f"{_shown(kernel)}: argument {position} has {nbytes} bytes in the code, not "
                f"{argument_bytes(argument)} ({argument!r})",
                argument=position,
                expected_bytes=nbytes,
                given_bytes=argument_bytes(argument),
                **names,
            )


def _check_types(kernel: Kernel, images: tuple[Image, ...]) -> None:
    """Check arguments against the parameters in PTX. A cubin alone allows no check.

    Raises:
        ArgumentMismatch: a number where the code takes an address, or a number of another type than the parameter.
    """
    known = parameters_of(images, kernel.symbol) or ()
    for position, (argument, parameter) in enumerate(zip(kernel.args, known, strict=False)):
        wrong = _as_address(argument, parameter.pointers) or _of_type(argument, parameter.type)
        if wrong is not None:
            raise ArgumentMismatch(
                f"{_shown(kernel)}: argument {position}, {argument!r}, {wrong}",
                argument=position,
                library=kernel.library.hash,
                symbol=kernel.symbol,
                kernel=kernel.symbol,
            )


def _as_address(argument: Argument, pointers: frozenset[int]) -> str | None:
    """Return the mistake if the code takes addresses at these bytes and the argument has numbers there."""
    match argument:
        case Literal() | Scalar() if 0 in pointers and argument != Null:
            return "is a number where the code takes a pointer: give kaas.In, Out, InOut, Pointers or kaas.Null"
        case Struct():
            declared = {offset for offset, _ in argument.pointers}
            for at in sorted(pointers - declared):
                chosen = any(offset < at + POINTER_BYTES and at < offset + KIND_BYTES[scalar.kind]
                             for offset, scalar in argument.scalars)  # fmt: skip
                if chosen or any(argument.blob[at : at + POINTER_BYTES]):
                    return f"holds a number at byte {at}, where the code takes a pointer: list it under pointers"
    return None


def _of_type(argument: Argument, type_: str) -> str | None:
    """Return the mistake if a parameter of this PTX type takes no such argument. `.b` types take any."""
    if type_[0] in "us" and type_[1:].isdigit():
        if isinstance(argument, Literal | Scalar) and argument.kind in ("f32", "f64"):  # halves often travel as .u16
            return f"is no integer, and the parameter is .{type_}"
    elif type_ in ("f16", "f32", "f64") and not (
        (isinstance(argument, Literal | Scalar) and argument.kind == type_) or isinstance(argument, Struct)
    ):
        return f"is no {type_}, and the parameter is .{type_}"
    return None


def _check_limits(kernel: Kernel, launch: KernelNode, limits: LaunchLimits, device: str) -> None:
    function = launch.function
    bounds = [
        ("threads in a block", math.prod(kernel.block), min(limits.threads, function.max_threads)),
        *((f"block.{axis}", n, limit) for axis, n, limit in zip("xyz", kernel.block, limits.block, strict=True)),
        *((f"grid.{axis}", n, limit) for axis, n, limit in zip("xyz", kernel.grid, limits.grid, strict=True)),
        ("bytes of shared memory", function.static_shared_bytes + kernel.shared_bytes, limits.shared_optin_bytes),
        ("bytes of local memory at a time", limits.local_bytes_of(launch), limits.local_bytes),
    ]
    for what, given, limit in bounds:
        if given > limit:
            raise LaunchLimit(
                f"{_shown(kernel)}: {given} {what}; {device} allows {limit}",
                kernel=kernel.symbol,
                device=device,
                what=what,
                given=given,
                limit=limit,
            )


def check_size(plan: Plan, capacity_bytes: int, device: str, objects_bytes: int = 0) -> None:
    """Check that the arena fits, and so many bytes of objects.

    Raises:
        RequestTooLarge
    """
    needed_bytes = plan.layout(plan.private_mask).nbytes + objects_bytes
    if needed_bytes > capacity_bytes:
        raise too_large(plan.task, needed_bytes, capacity_bytes, device)


def largest_object_bytes(plan: Plan) -> int:
    """Return the bytes of the objects of a request at least: all inputs may be views of one object."""
    return max((plan.buffers[index].nbytes for index in plan.inputs if index not in plan.private), default=0)
