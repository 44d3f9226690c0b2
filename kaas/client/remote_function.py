"""Functions and objects at a server, and the checked inputs of an invocation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import numpy as np

from kaas.errors import InvalidRequest
from kaas.executor.device.host_arrays import on_host
from kaas.futures import MakeResult
from kaas.ktask.arguments import Buffer, Scalar, is_text
from kaas.ktask.dtypes import numpy_dtype
from kaas.ktask.request import View, check_taken, input_bytes, outputs_type, raw_bytes
from kaas.ktask.variant import by_position, choose, of_shapes
from kaas.wire import protocol
from kaas.wire.held_ref import HeldRef
from kaas.wire.outputs import array_of, outputs_from

if TYPE_CHECKING:
    from kaas.futures import Future


def check_object_name(name: Any) -> None:
    """Check the name of an object.

    Raises:
        InvalidRequest: the name is not text, is empty or has a NUL.
    """
    if not is_text(name) or not name or "\0" in name:
        raise InvalidRequest(f"an object's name is non-empty text without NUL, not {name!r}")


class RemoteObject(HeldRef):
    """A value at the server under a name: an input for any number of calls."""

    __slots__ = ("name",)

    dtype: str
    shape: tuple[int, ...]

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        check_object_name(name)
        super().__init__(name.encode(), Buffer(name, shape, dtype).nbytes, dtype, shape)
        self.name = name

    def __reduce__(self) -> Any:
        return RemoteObject, (self.name, self.dtype, self.shape)

    def __repr__(self) -> str:
        return f"<RemoteObject {self.name!r}, {self.dtype}{list(self.shape)}>"


@dataclass(frozen=True, slots=True, eq=False)
class RemoteTask:
    """One kTask at the server, with the layouts of its inputs and outputs.

    Fields:
        key: the server's key of the function.
        given: the inputs that are sent. taken: the inputs that callers give, in order: those of `given`, and a model's
            inputs that no kernel reads. layouts: NumPy dtypes and shapes of `given`.
        output_bytes: of each output. reply_bytes: of all outputs together.
        make: returns a call's value for the frames of its reply.
        before: a step at the server makes the kTask's inputs, so that callers give the step's inputs instead.
        after: a step at the server makes the outputs, which come with their names.
    """

    key: str
    label: str
    given: Mapping[str, Buffer] = field(repr=False)
    taken: Mapping[str, Buffer] = field(repr=False)
    outputs: tuple[Buffer, ...] = field(repr=False)
    scalars: Mapping[str, str] = field(repr=False)
    iterations: int | Scalar = field(repr=False)
    layouts: Mapping[str, tuple[Any, tuple[int, ...]]] = field(repr=False)
    output_bytes: Mapping[str, int] = field(repr=False)
    reply_bytes: int = field(repr=False)
    make: MakeResult = field(repr=False)
    before: bool
    after: bool

    @classmethod
    def of(
        cls,
        registered: protocol.Registered,
        label: str,
        iterations: int | Scalar = 1,
        inputs: Sequence[Buffer] | None = None,
        around: tuple[str, str] = ("", ""),
    ) -> RemoteTask:
        """Return a registered kTask. inputs: of a model's variant, all inputs of callers. around: its steps."""
        before, after = map(bool, around)
        described = {} if before else registered.inputs
        given = {name: Buffer(name, shape, dtype) for name, (dtype, shape) in described.items()}
        outputs = tuple(Buffer(name, shape, dtype) for name, (dtype, shape) in registered.outputs.items())
        return cls(
            registered.function,
            label,
            given,
            given if inputs is None else {buffer.name: buffer for buffer in inputs},
            outputs,
            registered.scalars,
            iterations,
            {name: (numpy_dtype(buffer.dtype), buffer.shape) for name, buffer in given.items()},
            {buffer.name: buffer.nbytes for buffer in outputs},
            sum(buffer.nbytes for buffer in outputs),
            _by_name if after else outputs_from(outputs),
            before,
            after,
        )

    def making(self, store: Mapping[str, str]) -> MakeResult:
        """Return a function that makes a call's value of the frames of its reply.

        store has, by output, the name of the object that the output becomes at the server.

        Raises:
            InvalidRequest: there is no such output.
        """
        if not store or self.after:  # only the server knows the outputs of a step
            return self.make
        for name in store.keys() - self.output_bytes.keys():
            raise InvalidRequest(
                f"{self.label!r} has no output {name!r} to store; its outputs are {', '.join(self.output_bytes)}",
                task=self.label,
                buffer=name,
            )

        def make(frames: Sequence[Any]) -> Any:
            arrived = iter(frames)
            values = [
                RemoteObject(store[buffer.name], buffer.dtype, buffer.shape)
                if buffer.name in store
                else array_of(next(arrived), buffer.dtype, buffer.shape)
                for buffer in self.outputs
            ]
            return values[0] if len(values) == 1 else outputs_type(tuple(self.output_bytes))(*values)

        return make


class CallingClient(Protocol):
    """A client, blocking or not."""

    def call(
        self, function: Any, inputs: Mapping[str, Any] | None = None, *, scalars: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function, as `Client.call` does."""


class RemoteFunction:
    """A function at the server: a kTask with its constants bound, or the variants of a model. See `Client.register`.

    Each call of a model runs the variant for the shapes of its inputs.
    """

    def __init__(self, client: CallingClient, name: str, tasks: tuple[RemoteTask, ...]) -> None:
        self._client = client
        self.name = name
        self.tasks = tasks

    @property
    def keys(self) -> tuple[str, ...]:
        """The server's key of each variant."""
        return tuple(task.key for task in self.tasks)

    def call(self, /, *arrays: Any, **inputs: Any) -> Future:
        """Call the function, as `Client.call` does, with inputs by name or in order. Scalars are given by name."""
        first = self.tasks[0]
        among = [name for name in inputs if name in first.scalars and name not in first.taken]
        scalars = {name: inputs.pop(name) for name in among}
        if arrays and first.before:
            raise InvalidRequest(f"{self.name!r}: inputs of a step are given by name", task=self.name)
        given = by_position(self.name, first.taken, arrays, inputs) if arrays else inputs
        future: Future = self._client.call(self, given, scalars=scalars or None)
        return future

    def __call__(self, /, *_: Any, **__: Any) -> NoReturn:
        """Raise InvalidRequest: `call` calls the function."""
        raise InvalidRequest(f"{self.name!r} is at a server: .call(...) calls it", task=self.name)

    @property
    def remote(self) -> NoReturn:
        """Raise AttributeError: without Ray, `call` calls the function."""
        raise AttributeError(f"{self.name!r} is a client's function, without Ray: .call(...) calls it")

    def variant(self, /, **shapes: int | Sequence[int]) -> RemoteFunction:
        """Return the variant of this function for inputs of these shapes, by name.

        Raises:
            UnexpectedInput: no such input. NoVariant: no variant has these shapes. UndecidedVariant: several have.
        """
        number = of_shapes(self.name, [task.taken for task in self.tasks], shapes)
        return RemoteFunction(self._client, self.name, (self.tasks[number],))

    def chosen(self, inputs: Mapping[str, Any]) -> tuple[RemoteTask, Mapping[str, Any]]:
        """Return the variant for these inputs, and those of the inputs that it reads.

        Raises:
            InvalidRequest: no variant takes these inputs.
        """
        first = self.tasks[0]
        if len(self.tasks) == 1 and first.taken is first.given:
            return first, inputs
        task = self.tasks[choose(self.name, [task.taken for task in self.tasks], inputs, _is_object)]
        for name in inputs.keys() - task.given.keys():
            if not _is_object(inputs[name]):
                input_bytes(task.taken[name], on_host(name, inputs[name]))
        return task, {name: value for name, value in inputs.items() if name in task.given}

    def __repr__(self) -> str:
        variants = f", {len(self.tasks)} variants" if len(self.tasks) > 1 else ""
        return f"<kaas.RemoteFunction {self.name!r}{variants}>"


# --- an invocation


def packed(task: RemoteTask, inputs: Mapping[str, Any]) -> tuple[dict[str, protocol.Input], list[bytes]]:
    """Return the inputs of an Invoke and its frames: copies of the values, so that callers may change their arrays.

    Raises:
        InvalidRequest: an input is missing, is unknown or does not fit.
    """
    if task.before:
        return _for_step(inputs)
    if inputs.keys() != task.given.keys():
        check_taken(repr(task.label), task.label, task.given.values(), inputs, task.scalars)
    named: dict[str, protocol.Input] = {}
    frames: list[bytes] = []
    for name, value in inputs.items():
        dtype, shape = task.layouts[name]
        if type(value) is np.ndarray and value.dtype == dtype and value.shape == shape and value.flags.c_contiguous:
            frames.append(value.tobytes())  # the usual case: nothing more to check
            named[name] = protocol.Input(len(frames))
            continue
        buffer = task.given[name]
        source, offset = (value.source, value.offset_bytes) if isinstance(value, View) else (value, None)
        if isinstance(source, RemoteObject):
            source.check_fit(buffer, offset)
            named[name] = protocol.Input(object=source.name, offset=offset or 0)
        else:
            frames.append(bytes(input_bytes(buffer, on_host(name, value))))
            named[name] = protocol.Input(len(frames))
    return named, frames


def _for_step(values: Mapping[str, Any]) -> tuple[dict[str, protocol.Input], list[bytes]]:
    for name, value in values.items():
        if _is_object(value) or not isinstance(name, str):
            raise InvalidRequest(f"inputs of a step are values by name, not {value!r} as {name!r}")
    frames = [bytes(raw_bytes(Buffer(name, ()), on_host(name, value)).data) for name, value in values.items()]
    return {name: protocol.Input(frame) for frame, name in enumerate(values, 1)}, frames


def _by_name(frames: Sequence[Any]) -> dict[str, bytes]:
    """Return the outputs of a step, by name. The first frame has the names."""
    names, *values = frames
    return dict(zip(names, map(bytes, values), strict=True))


def _is_object(value: Any) -> bool:
    return isinstance(value, RemoteObject)
