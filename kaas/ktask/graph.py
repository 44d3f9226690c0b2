"""The kTask: a graph of kernel launches with its buffers, as an immutable value.

Nothing here touches a device; `executor/plan` makes a plan of a KTask. The parts of a KTask are in `arguments.py` and
`library.py`; its encoded forms and its content hash, the key of caches and plans, are in `codec.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from kaas.errors import DuplicateBuffer, InvalidGraph, OutputNotWritten, ScalarConflict
from kaas.ktask import codec, draw
from kaas.ktask.arguments import Buffer, Scalar, check_name, integer, items
from kaas.ktask.dtypes import is_integer_kind
from kaas.ktask.library import Kernel, Library
from kaas.ktask.symbols import source_name


@dataclass(frozen=True, slots=True, init=False, eq=False)
class KTask:
    """A graph of kernels, which a user submits and which is the key of every cache and plan.

    The kernels' order and what they read and write make the graph: `edges` holds the pairs that must not change places;
    kernels without a path between them may run at the same time. Roles follow: a buffer read before any kernel wrote it
    is an input (never one that starts as zeros), one listed in `outputs` is an output, all others are temporaries.

    Args:
        kernels: in an order that is right when they run one after the other.
        outputs: buffers that come back, in this order, or their names.
        iterations: how often the whole list runs; a kaas.Scalar of an integer kind leaves it to each invocation.
        name: for people; part of the content hash, as all other fields are.

    Fields:
        label: the name, or the first kernel's function with the first digits of the hash.
    """

    kernels: tuple[Kernel, ...]
    outputs: tuple[Buffer, ...]
    iterations: int | Scalar
    name: str | None
    inputs: tuple[Buffer, ...] = field(repr=False)
    temporaries: tuple[Buffer, ...] = field(repr=False)
    edges: tuple[tuple[int, int], ...] = field(repr=False)
    scalars: Mapping[str, str] = field(repr=False)
    key: str = field(repr=False)
    label: str = field(repr=False)

    def __init__(
        self,
        kernels: Iterable[Kernel],
        outputs: Iterable[Buffer | str],
        iterations: int | Scalar = 1,
        name: str | None = None,
    ) -> None:
        kernels = items("KTask", kernels)
        if name is not None:
            check_name("a kTask's name", name)
        label = name or (source_name(kernels[0].symbol) if kernels and isinstance(kernels[0], Kernel) else "?")
        if not kernels or not all(isinstance(kernel, Kernel) for kernel in kernels):
            raise InvalidGraph(f"kTask {label!r}: kernels is one or more kaas.Kernel", task=label)
        buffers = _buffers_by_name(kernels)
        object.__setattr__(self, "kernels", kernels)
        object.__setattr__(self, "outputs", _outputs(label, kernels, buffers, outputs))
        object.__setattr__(self, "iterations", _iterations(label, iterations))
        object.__setattr__(self, "name", name)
        inputs = _inputs(kernels)
        object.__setattr__(self, "inputs", inputs)
        given = {*inputs, *self.outputs}
        temporaries = tuple(b for b in buffers.values() if b not in given)
        object.__setattr__(self, "temporaries", temporaries)
        object.__setattr__(self, "edges", _edges(kernels))
        object.__setattr__(self, "scalars", MappingProxyType(_scalars(kernels, self.iterations)))
        key = codec.content_hash(self)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "label", name or f"{source_name(kernels[0].symbol)}-{key[:8]}")

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers, in the order in which kernels first name them."""
        return tuple(_buffers_by_name(self.kernels).values())

    @property
    def largest_buffer(self) -> Buffer:
        """The buffer with the most bytes."""
        return max(self.buffers, key=lambda buffer: buffer.nbytes)

    @property
    def libraries(self) -> tuple[Library, ...]:
        """The libraries of its kernels, each once, in the order of first use."""
        return tuple(dict.fromkeys(kernel.library for kernel in self.kernels))

    @property
    def private_inputs(self) -> tuple[Buffer, ...]:
        """Inputs that some kernel writes: each request works on its own copy of them."""
        written = {buffer for kernel in self.kernels for buffer in kernel.writes}
        return tuple(buffer for buffer in self.inputs if buffer in written)

    def to_dict(self) -> dict[str, Any]:
        """Return the kTask as plain dicts, lists, strings, numbers and bytes; `from_dict` is the inverse."""
        return codec.to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> KTask:
        """Return the kTask of a dict that `to_dict` gave.

        Raises:
            InvalidGraph: data of another shape than `to_dict` gives. All other errors of KTask.
        """
        return cls(*codec.from_dict(data))

    def to_json(self) -> str:
        """Return the kTask as JSON, code images in base64."""
        return codec.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> KTask:
        """Return the kTask of a JSON text; raise as `from_dict` does."""
        return cls(*codec.from_json(text))

    def to_msgpack(self) -> bytes:
        """Return the kTask as msgpack, code images included."""
        return codec.to_msgpack(self)

    @classmethod
    def from_msgpack(cls, data: bytes) -> KTask:
        """Return the kTask of msgpack bytes; raise as `from_dict` does."""
        return cls(*codec.from_msgpack(data))

    def __reduce__(self) -> tuple[Any, ...]:
        return KTask.from_msgpack, (self.to_msgpack(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KTask) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def _repr_html_(self) -> str:
        return draw.html(self)


def _buffers_by_name(kernels: tuple[Kernel, ...]) -> dict[str, Buffer]:
    buffers: dict[str, Buffer] = {}
    for kernel in kernels:
        for access in kernel.accesses:
            known = buffers.setdefault(access.buffer.name, access.buffer)
            if known != access.buffer:
                raise DuplicateBuffer(
                    f"two buffers named {known.name!r}: {known} and {access.buffer}", buffer=known.name
                )
    return buffers


def _outputs(
    label: str, kernels: tuple[Kernel, ...], buffers: Mapping[str, Buffer], outputs: Iterable[Buffer | str]
) -> tuple[Buffer, ...]:
    if isinstance(outputs, Buffer | str):
        outputs = (outputs,)
    written = {buffer for kernel in kernels for buffer in kernel.writes}
    listed: list[Buffer] = []
    for output in items("outputs", outputs):
        if not isinstance(output, Buffer | str):
            raise InvalidGraph(f"kTask {label!r}: outputs are buffers or their names, not {output!r}", task=label)
        name = output.name if isinstance(output, Buffer) else output
        known = buffers.get(name)
        if isinstance(output, Buffer) and known is not None and known != output:
            raise DuplicateBuffer(f"two buffers named {name!r}: {known} and {output}", task=label, buffer=name)
        if known is None or known not in written:
            raise OutputNotWritten(f"kTask {label!r}: no kernel writes output {name!r}", task=label, buffer=name)
        if known in listed:
            raise InvalidGraph(f"kTask {label!r}: output {name!r} is listed twice", task=label, buffer=name)
        listed.append(known)
    if not listed:
        raise InvalidGraph(f"kTask {label!r} lists no outputs", task=label)
    return tuple(listed)


def _iterations(label: str, iterations: int | Scalar) -> int | Scalar:
    if isinstance(iterations, Scalar) and is_integer_kind(iterations.kind):
        return iterations
    number = integer(iterations)
    if number is not None and number >= 1:
        return number
    raise InvalidGraph(
        f"kTask {label!r}: iterations is a positive integer or a Scalar of an integer kind, not {iterations!r}",
        task=label,
    )


def _inputs(kernels: tuple[Kernel, ...]) -> tuple[Buffer, ...]:
    inputs: dict[Buffer, None] = {}
    written: set[Buffer] = set()
    for kernel in kernels:
        inputs |= dict.fromkeys(b for b in kernel.reads if b not in written and b.init is None)
        written.update(kernel.writes)
    return tuple(inputs)


def _edges(kernels: tuple[Kernel, ...]) -> tuple[tuple[int, int], ...]:
    """Return the nearest pairs (earlier, later) of kernels that share a buffer which one of them writes."""
    edges: set[tuple[int, int]] = set()
    writer: dict[Buffer, int] = {}
    readers: dict[Buffer, list[int]] = {}
    for later, kernel in enumerate(kernels):
        for buffer in kernel.reads:
            if buffer in writer:
                edges.add((writer[buffer], later))
        for buffer in kernel.writes:
            before = readers.get(buffer) or ([writer[buffer]] if buffer in writer else [])
            edges.update((earlier, later) for earlier in before)
        for buffer in kernel.reads:
            readers.setdefault(buffer, []).append(later)
        for buffer in kernel.writes:
            writer[buffer] = later
            readers[buffer] = []
    return tuple(sorted(edges))


def _scalars(kernels: tuple[Kernel, ...], iterations: int | Scalar) -> dict[str, str]:
    kinds: dict[str, str] = {}
    found = [scalar for kernel in kernels for scalar in kernel.scalars]
    for scalar in found + ([iterations] if isinstance(iterations, Scalar) else []):
        if kinds.setdefault(scalar.name, scalar.kind) != scalar.kind:
            both = (kinds[scalar.name], scalar.kind)
            raise ScalarConflict(
                f"scalar {scalar.name!r} is used as {both[0]} and as {both[1]}", scalar=scalar.name, kinds=both
            )
    return kinds
