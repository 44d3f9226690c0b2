"""An invocation as one message with attached references: packed by the program, unpacked by the executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from kaas.errors import InputFailed, InvalidRequest, UnexpectedInput
from kaas.executor.device.host_arrays import on_host
from kaas.executor.inputs import InputSource
from kaas.ktask.arguments import Buffer
from kaas.ktask.dtypes import numpy_dtype
from kaas.ktask.graph import KTask
from kaas.ktask.request import View, check_constants, check_names, encode_scalars, input_bytes, mapping
from kaas.ktask.variant import Variant, by_position, choose
from kaas.wire import specs as wire
from kaas.wire.held_ref import HeldRef
from kaas.wire.messages import Named


class ObjectSink(Protocol):
    """The store of objects, as packing uses it."""

    def is_ref(self, value: Any) -> bool: ...

    def put(self, value: Any) -> Any: ...

    def complete(self, refs: Sequence[Any]) -> bool:
        """Return True if all objects are known to exist already; do not wait."""
        ...


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The client of an invocation, and its conditions."""

    client: str
    deadline_s: float | None = None
    retries: int = 3
    profile: bool = False
    keep: bool | tuple[str, ...] = False
    session: str = ""


@dataclass(frozen=True, slots=True)
class FunctionSignature:
    """A kTask of a function as its callers see it: the inputs to give, and the constants that are bound.

    Fields:
        given: the inputs that are sent. layouts: their NumPy dtypes and shapes.
        taken: the inputs that callers give, in order: `given`, and a model's inputs that no kernel reads.
        variant: the kTask is a model's, for inputs of exactly these shapes.
    """

    task: KTask
    spec: wire.FunctionSpec
    key: str
    given: Mapping[str, Buffer] = field(repr=False)
    taken: Mapping[str, Buffer] = field(repr=False)
    variant: bool = False
    layouts: Mapping[str, tuple[Any, tuple[int, ...]]] = field(repr=False, default_factory=dict)

    @classmethod
    def of(
        cls, task: KTask, bindings: Sequence[wire.Binding] = (), inputs: Sequence[Buffer] | None = None
    ) -> FunctionSignature:
        """inputs: of a model's variant, all inputs that callers give; None for a kTask that is no variant."""
        spec = wire.FunctionSpec(task.key, tuple(bindings))
        bound = {binding.buffer for binding in bindings}
        given = {buffer.name: buffer for buffer in task.inputs if buffer.name not in bound}
        taken = given if inputs is None else {buffer.name: buffer for buffer in inputs}
        layouts = {name: (numpy_dtype(buffer.dtype), buffer.shape) for name, buffer in given.items()}
        return cls(task, spec, spec.key, given, taken, inputs is not None, layouts)

    @property
    def inputs(self) -> tuple[Buffer, ...] | None:
        """Return the argument `inputs` of `of`."""
        return tuple(self.taken.values()) if self.variant else None

    def check_names(self, names: Sequence[str]) -> None:
        """Check the names of given inputs.

        Raises:
            MissingInput, UnexpectedInput
        """
        bound = [binding.buffer for binding in self.spec.bindings]
        for name in names:
            if name in bound:
                raise UnexpectedInput(
                    f"input {name!r} of kTask {self.task.label!r} is bound to a constant",
                    task=self.task.label,
                    buffer=name,
                    near=(),
                )
        check_names(self.task, [*names, *bound])


def bind(
    task: KTask, constants: Mapping[str, Any] | None, store: ObjectSink
) -> tuple[FunctionSignature, tuple[Any, ...]]:
    """Return the signature of a kTask with constants, and the tuple of their objects, each object once.

    Raises:
        InvalidRequest, UnexpectedInput, WrongSize, WrongDtype, NotContiguous
    """
    constants = mapping(task, "constants", constants)
    check_constants(task, constants)
    bindings, objects = _bind(task.inputs, constants, store)
    return FunctionSignature.of(task, bindings), objects


def bind_variants(
    variants: Sequence[Variant], constants: Mapping[str, Any], store: ObjectSink
) -> tuple[tuple[FunctionSignature, ...], tuple[Any, ...]]:
    """Return the signatures of a model's variants, and the tuple of objects that has the constants of all of them.

    Raises:
        InvalidRequest, WrongSize, WrongDtype, NotContiguous
    """
    read = {buffer.name: buffer for variant in variants for buffer in variant.constants}
    bindings, objects = _bind(tuple(read.values()), constants, store)
    by_name = {binding.buffer: binding for binding in bindings}
    return tuple(
        FunctionSignature.of(variant.task, [by_name[buffer.name] for buffer in variant.constants], variant.inputs)
        for variant in variants
    ), objects


def _bind(
    buffers: Sequence[Buffer], constants: Mapping[str, Any], store: ObjectSink
) -> tuple[list[wire.Binding], tuple[Any, ...]]:
    known = {buffer.name: buffer for buffer in buffers}
    entries: dict[int, int] = {}
    objects: list[Any] = []
    bindings: list[wire.Binding] = []
    for name, value in constants.items():
        source, offset = (value.source, value.offset_bytes) if isinstance(value, View) else (value, None)
        entry = entries.setdefault(id(source), len(objects))
        if entry == len(objects):
            objects.append(on_host(name, source))
        if isinstance(source, HeldRef):
            source.check_fit(known[name], offset)
        elif not store.is_ref(source):
            kept = objects[entry]
            input_bytes(known[name], kept if offset is None else View(kept, offset))
        bindings.append(wire.Binding(name, entry, offset))
    return bindings, tuple(objects)


def choose_signature(
    label: str,
    signatures: Sequence[FunctionSignature],
    positional: Sequence[Any],
    named: Mapping[str, Any],
    store: ObjectSink,
) -> tuple[FunctionSignature, Mapping[str, Any]]:
    """Return the signature of a function that is for these inputs, and the inputs that it reads, by name.

    Raises:
        InvalidRequest, MissingInput, UnexpectedInput, NoVariant, UndecidedVariant, NotContiguous
    """
    first = signatures[0]
    if not first.variant:
        return first, by_position(label, first.taken, positional, named) if positional else named
    inputs = by_position(label, first.taken, positional, mapping(first.task, "inputs", named))
    taken = [signature.taken for signature in signatures]
    signature = signatures[choose(label, taken, inputs, store.is_ref)]
    for name in inputs.keys() - signature.given.keys():
        if not store.is_ref(inputs[name]):
            input_bytes(signature.taken[name], on_host(name, inputs[name]))
    return signature, {name: value for name, value in inputs.items() if name in signature.given}


def pack(
    signature: FunctionSignature,
    inputs: Mapping[str, Any],
    scalars: Mapping[str, Any] | None,
    caller: CallOptions,
    store: ObjectSink,
    constants: Any = None,
    awaited: Sequence[Any] = (),
) -> tuple[bytes, list[Any]]:
    """Return the message of an invocation and the references attached to it.

    constants: the reference to the function's constants; awaited: further references that must be complete first.

    Raises:
        InvalidRequest: any error that can be seen without the referenced objects.
    """
    inputs = mapping(signature.task, "inputs", inputs)
    if inputs.keys() != signature.given.keys():
        signature.check_names(list(inputs))
    encoded = encode_scalars(signature.task, scalars) if scalars or signature.task.scalars else {}
    packing = Packing(store)
    for name, value in inputs.items():
        packing.add(signature.given[name], signature.layouts[name], value)
    keep = kept(signature.task, caller.keep) if caller.keep else ()
    ready = not (packing.named or awaited) or store.complete([*packing.named, *awaited])
    position = None
    if constants is not None:
        position = len(packing.refs)
        packing.refs.append(constants)
    message = wire.Invocation(
        signature.key,
        caller.client,
        caller.deadline_s,
        caller.retries,
        ready,
        encoded,
        packing.values,
        packing.objects,
        position,
        caller.profile,
        keep,
        caller.session,
    )
    return wire.encode(message), [*packing.refs, *(() if ready else awaited)]


def kept(task: KTask, keep: bool | tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of the outputs that stay on the device: all, none, or those of these names.

    Raises:
        InvalidRequest
    """
    names = [buffer.name for buffer in task.outputs]
    if isinstance(keep, bool):
        return tuple(range(len(names))) if keep else ()
    for name in keep:
        if name not in names:
            raise InvalidRequest(
                f"kTask {task.label!r} has no output {name!r} to keep; its outputs are {', '.join(names)}",
                task=task.label,
                buffer=str(name),
            )
    return tuple(position for position, name in enumerate(names) if name in keep)


class Packing:
    """Inputs sorted into values in the message and references attached to it."""

    def __init__(self, store: ObjectSink) -> None:
        self._store = store
        self._positions: dict[Any, int] = {}
        self._inline_bytes = 0
        self.values: list[tuple[str, bytes]] = []
        self.objects: list[wire.ObjectInput] = []
        self.refs: list[Any] = []
        self.named: list[Any] = []

    def add(self, buffer: Buffer, layout: tuple[Any, tuple[int, ...]], value: Any) -> None:
        dtype, shape = layout
        fits = type(value) is np.ndarray and value.dtype == dtype and value.shape == shape
        if fits and value.flags.c_contiguous and self._inline_bytes + value.nbytes <= wire.INLINE_INPUT_BYTES:
            self._inline_bytes += value.nbytes  # nearly always: nothing is left to check
            self.values.append((buffer.name, value.tobytes()))
            return
        self._add(buffer, value)

    def _add(self, buffer: Buffer, value: Any) -> None:
        source, offset = (value.source, value.offset_bytes) if isinstance(value, View) else (value, None)
        if self._store.is_ref(source):
            if isinstance(source, HeldRef):
                source.check_fit(buffer, offset)
            position = self._positions.setdefault(source, len(self.refs))
            if position == len(self.refs):
                self.refs.append(source)
                self.named.append(source)
            self.objects.append(wire.ObjectInput(buffer.name, position, offset, True))
            return
        data = input_bytes(buffer, on_host(buffer.name, value))
        if self._inline_bytes + len(data) <= wire.INLINE_INPUT_BYTES:
            self._inline_bytes += len(data)
            self.values.append((buffer.name, bytes(data)))
        else:
            self.objects.append(wire.ObjectInput(buffer.name, len(self.refs), None, False))
            self.refs.append(self._store.put(np.frombuffer(data, np.uint8)))


def unpack(
    invocation: wire.Invocation, spec: wire.FunctionSpec, refs: Sequence[Any], get: Callable[[Any], Any]
) -> dict[str, InputSource]:
    """Return the sources of an invocation's inputs, as the executor takes them.

    get: returns the object of a reference, and waits for it.

    Raises:
        InputFailed: an attached value could not be had.
    """
    sources = {name: InputSource(value=data) for name, data in invocation.values}
    for item in invocation.objects:
        ref = refs[item.ref]
        if item.shared:
            sources[item.buffer] = InputSource(
                key=ref.binary(), fetch=_ObjectFetch(get, ref), offset_bytes=item.offset_bytes
            )
        else:
            sources[item.buffer] = InputSource(value=_by_value(item.buffer, ref, get))
    if invocation.constants is not None:
        constants = _Constants(get, refs[invocation.constants])
        for binding in spec.bindings:
            sources[binding.buffer] = InputSource(
                key=constant_key(constants.ref, binding.entry),
                fetch=constants.entry(binding.entry),
                offset_bytes=binding.offset_bytes,
                constants=constants.key,
            )
    return sources


def _by_value(buffer: str, ref: Any, get: Callable[[Any], Any]) -> memoryview:
    try:
        return memoryview(get(ref))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputFailed(f"input {buffer!r} could not be had: {reason}", buffer=buffer, reason=reason) from error


def unpack_objects(
    command: wire.CacheCommandSpec, specs: Sequence[wire.FunctionSpec], refs: Sequence[Any], get: Callable[[Any], Any]
) -> list[InputSource]:
    """Return the sources of the objects that a cache command is about."""
    if not command.objects:
        return []
    if not specs:
        return [InputSource(key=refs[0].binary(), fetch=_ObjectFetch(get, refs[0]))]
    constants = _Constants(get, refs[0])
    entries = dict.fromkeys(binding.entry for spec in specs for binding in spec.bindings)
    return [
        InputSource(key=constant_key(constants.ref, entry), fetch=constants.entry(entry), constants=constants.key)
        for entry in entries
    ]


def unpack_keyed(
    loads: Sequence[wire.KeyedObject], refs: Sequence[Any], get: Callable[[Any], Any]
) -> list[InputSource]:
    """Return the sources of the objects that a policy wants loaded."""
    constants = {item.ref: _Constants(get, refs[item.ref]) for item in loads if item.entry is not None}
    return [
        InputSource(key=item.key, fetch=_ObjectFetch(get, refs[item.ref]))
        if item.entry is None
        else InputSource(key=item.key, fetch=constants[item.ref].entry(item.entry), constants=constants[item.ref].key)
        for item in loads
    ]


def constant_key(ref: Any, entry: int) -> bytes:
    """Return the key of one of a function's constants in caches."""
    key = ref.key if type(ref) is Named else ref.binary()
    return bytes(key) + entry.to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class _ObjectFetch:
    get: Callable[[Any], Any]
    ref: Any

    def __call__(self) -> Any:
        return self.get(self.ref)


class _Constants:
    """The tuple of a function's constants, fetched at most once in a request and only when the cache lacks an entry."""

    def __init__(self, get: Callable[[Any], Any], ref: Any) -> None:
        self.ref = ref
        self.key = bytes(ref.key if type(ref) is Named else ref.binary())
        self._get = get
        self._tuple: tuple[Any, ...] | None = None

    def entry(self, position: int) -> Callable[[], Any]:
        def fetch() -> Any:
            if self._tuple is None:
                self._tuple = self._get(self.ref)
            return self._get(self._tuple[position])

        return fetch
