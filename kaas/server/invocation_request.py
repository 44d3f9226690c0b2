"""Checks an Invoke message against its function and turns it into an invocation of the pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kaas.errors import InvalidRequest, MissingInput, MissingScalar, UnexpectedInput, WrongScalar, WrongSize
from kaas.ktask.dtypes import KIND_BYTES, decode
from kaas.ktask.request import RETRIES, check_deadline, check_fit
from kaas.pool.executors.payloads import Payload
from kaas.server.building.invocable_function import InvocableFunction
from kaas.server.state.object_store import ObjectStore
from kaas.server.steps.steps import Made
from kaas.wire import specs as pool_wire
from kaas.wire.messages import Framed
from kaas.wire.protocol import Invoke


def invocation_of(
    client: str, message: Invoke, frames: Sequence[Any], remote: InvocableFunction, objects: ObjectStore
) -> tuple[pool_wire.Invocation, Payload]:
    """Return the invocation for the pool, and its payload. frames: with the header.

    Raises:
        InvalidRequest
    """
    if message.deadline_s is not None:
        check_deadline(message.deadline_s)
    if remote.scalars or message.scalars:
        check_scalars(remote, message.scalars)
    function = remote.function
    sizes, given = function.input_bytes, remote.given
    if message.inputs.keys() != given.keys():
        raise _other_inputs(function.label, given, message.inputs)
    values: list[tuple[str, Any]] = []
    named: list[pool_wire.ObjectInput] = []
    refs: list[Any] = []
    sent: list[Any] = [b""]
    inline_bytes = 0
    for name, item in message.inputs.items():
        nbytes = sizes[name]
        if item.object:
            stored = objects.named(client, item.object)
            whole = not item.offset and stored.nbytes == nbytes
            check_fit(given[name], stored.nbytes, stored.dtype, None if whole else item.offset)
            named.append(pool_wire.ObjectInput(name, len(refs), None if whole else item.offset, True))
            refs.append(stored.ref)
            continue
        if not 0 < item.frame < len(frames):
            raise InvalidRequest(f"a message of {len(frames)} frames has no frame {item.frame} for input {name!r}")
        data = frames[item.frame]
        if len(data) != nbytes:
            raise _wrong_size(function.label, name, nbytes, len(data))
        if inline_bytes + nbytes <= pool_wire.INLINE_INPUT_BYTES:
            inline_bytes += nbytes
            values.append((name, data))
        else:
            named.append(pool_wire.ObjectInput(name, len(refs), None, False))
            sent.append(data)
            refs.append(Framed(len(sent)))
    position = None
    if remote.constants is not None:
        position = len(refs)
        refs.append(remote.constants)
    invocation = pool_wire.Invocation(
        function.key, client, message.deadline_s, RETRIES, True, message.scalars, values, named, position
    )
    sent[0] = pool_wire.encode(invocation)
    return invocation, Payload(function, sent, refs, direct=True)


def sent_bytes(message: Invoke, frames: Sequence[Any]) -> int:
    """Return the bytes that come with a message: of all its frames, and once more for each further input of a frame.

    frames: with the header.
    """
    nbytes = sum(map(len, frames)) - len(frames[0])
    used: set[int] = set()
    for item in message.inputs.values():
        if not item.object and 0 < item.frame < len(frames):
            if item.frame in used:
                nbytes += len(frames[item.frame])
            used.add(item.frame)
    return nbytes


def given_values(message: Invoke, frames: Sequence[Any]) -> dict[str, Any]:
    """Return the values that a message carries for the step before a function, by name.

    Raises:
        InvalidRequest
    """
    for name, item in message.inputs.items():
        if item.object or not 0 < item.frame < len(frames):
            raise InvalidRequest(f"the values for a step must be frames of the message: {name!r} is not", buffer=name)
    return {name: frames[item.frame] for name, item in message.inputs.items()}


def check_made(remote: InvocableFunction, made: Mapping[str, Made]) -> None:
    """Check the values that the step before a function made, like a client's inputs.

    Raises:
        MissingInput, UnexpectedInput, WrongSize, WrongShape, WrongDtype
    """
    try:
        if made.keys() != remote.given.keys():
            raise _other_inputs(remote.function.label, remote.given, made)
        for name, each in made.items():
            check_fit(remote.given[name], len(each.data), each.dtype, None, each.shape)
    except InvalidRequest as error:
        fields = {**error.fields, "task": remote.function.label}
        raise type(error)(f"the values of step {remote.before!r} do not fit: {error.message}", **fields) from error


def check_scalars(remote: InvocableFunction, scalars: dict[str, bytes]) -> None:
    """Check the scalars of a request against its function.

    Raises:
        MissingScalar, WrongScalar
    """
    label = remote.function.label
    for name, kind in remote.scalars.items():
        data = scalars.get(name)
        if data is None:
            raise MissingScalar(f"function {label!r}: scalar {name!r} ({kind}) was not given", task=label, scalar=name)
        if len(data) != KIND_BYTES[kind]:
            message = f"function {label!r}: scalar {name!r} has {len(data)} bytes, and {kind} has {KIND_BYTES[kind]}"
            raise WrongScalar(message, task=label, scalar=name, kind=kind)
        if name == remote.iterations and decode(kind, data) < 1:
            message = f"function {label!r}: {name!r} is the number of iterations, at least 1"
            raise WrongScalar(message, task=label, scalar=name, kind=kind)
    if len(scalars) != len(remote.scalars):
        unknown = next(name for name in scalars if name not in remote.scalars)
        raise WrongScalar(f"function {label!r} has no scalar {unknown!r}", task=label, scalar=unknown)


def _other_inputs(label: str, wanted: Collection[str], given: Collection[str]) -> InvalidRequest:
    for name in given:
        if name not in wanted:
            return UnexpectedInput(f"function {label!r} takes no input {name!r}", task=label, buffer=name, near=())
    missing = next(name for name in wanted if name not in given)
    return MissingInput(f"function {label!r}: input {missing!r} was not given", task=label, buffer=missing)


def _wrong_size(label: str, name: str, expected: int, given: int) -> WrongSize:
    message = f"input {name!r} of function {label!r} has {expected} bytes, not {given}"
    return WrongSize(message, task=label, buffer=name, expected_bytes=expected, given_bytes=given)
