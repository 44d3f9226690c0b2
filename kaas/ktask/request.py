"""The inputs and scalars of an invocation, checked against its kTask.

The program checks arrays and scalars before anything is sent; the executor checks the inputs that were references, with
the same functions.
"""

from __future__ import annotations

import difflib
import sys
from collections import namedtuple
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from kaas.errors import (
    InvalidLiteral,
    InvalidRequest,
    MissingInput,
    MissingScalar,
    NotContiguous,
    UnexpectedInput,
    WrongDtype,
    WrongScalar,
    WrongShape,
    WrongSize,
)
from kaas.ktask.arguments import Buffer, Scalar, integer
from kaas.ktask.dlpack import device_of, is_exporter, tensor_of
from kaas.ktask.dtypes import decode, dtype_name, encode
from kaas.ktask.graph import KTask

RETRIES = 3
"""How often a request runs again on another executor when its executor ended, by default."""
LONGEST_DEADLINE_S = 1e9
"""Deadlines lie below this, about thirty years."""


class Invocable(Protocol):
    """A kTask, or the description of a kTask that is elsewhere."""

    @property
    def label(self) -> str:
        """Its name for people."""

    @property
    def scalars(self) -> Mapping[str, str]:
        """Kinds of its scalars, by name."""

    @property
    def iterations(self) -> int | Scalar:
        """The number of times that the kernels run."""


@dataclass(frozen=True, slots=True)
class View:
    """A part of an object as an input: the bytes of `source` from `offset_bytes` on, as many as the buffer has.

    source is an ObjectRef, an array, by DLPack too, or anything with the buffer protocol. Several Views of one object
    share one copy of it on the device. Its element type and its shape do not matter.
    """

    source: Any
    offset_bytes: int = 0

    def __post_init__(self) -> None:
        offset_bytes = integer(self.offset_bytes)
        if offset_bytes is None or offset_bytes < 0:
            raise InvalidRequest(f"a View's offset is a non-negative number of bytes, not {self.offset_bytes!r}")
        object.__setattr__(self, "offset_bytes", offset_bytes)


def mapping(task: Invocable, what: str, values: Any) -> Mapping[str, Any]:
    """Return values that are given by name; an empty mapping for None.

    Raises:
        InvalidRequest: they are not given by name.
    """
    if type(values) is dict:  # nearly always, and the test for a Mapping takes longer
        return values
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidRequest(
            f"kTask {task.label!r}: {what} are given by name, in a dict, not as {type(values).__name__}",
            task=task.label,
        )
    return values


def check_deadline(deadline_s: Any) -> None:
    """Check a deadline in seconds from the request's arrival.

    Raises:
        InvalidRequest: not a number above 0, or beyond LONGEST_DEADLINE_S.
    """
    number = isinstance(deadline_s, int | float) and type(deadline_s) is not bool
    if not (number and 0 < deadline_s < LONGEST_DEADLINE_S):
        raise InvalidRequest(f"deadline_s is a positive number of seconds, not {deadline_s!r}")


def check_names(task: KTask, names: Iterable[str]) -> None:
    """Check that names are exactly the inputs of a kTask.

    Raises:
        MissingInput, UnexpectedInput
    """
    check_taken(f"kTask {task.label!r}", task.label, task.inputs, names, task.scalars)


def check_constants(task: KTask, names: Collection[str]) -> None:
    """Check that names are inputs of a kTask, to which constants can be bound.

    Raises:
        UnexpectedInput
    """
    known = {buffer.name for buffer in task.inputs}
    for name in names:
        if name in task.scalars and name not in known:
            raise UnexpectedInput(
                f"kTask {task.label!r}: {name!r} is a scalar, and no constant: each call gives it, {_way(name)}",
                task=task.label,
                buffer=name,
                near=(),
            )
    check_names(task, known.union(names))


def _way(scalar: str) -> str:
    """Return how a call gives a scalar, in words that fit all calls."""
    return f"as scalars={{{scalar!r}: ...}}, or as {scalar}=... in call() and remote() of a kaas.Function"


def check_taken(
    what: str, label: str, inputs: Iterable[Buffer], names: Iterable[str], scalars: Collection[str] = ()
) -> None:
    """Check names as `check_names` does, for the inputs of a kTask or of something else.

    `what` describes the owner of the inputs in messages, and `label` is its name.

    Raises:
        MissingInput, UnexpectedInput
    """
    taken = {buffer.name: buffer for buffer in inputs}
    given = set(names)
    for name in sorted(given - taken.keys(), key=str):
        near = tuple(difflib.get_close_matches(str(name), taken))
        hint = f"; did you mean {near[0]!r}?" if near else f"; its inputs are {', '.join(sorted(taken)) or 'none'}"
        if name in scalars:
            hint = f": that is a scalar, which is given {_way(name)}"
        elif name == "scalars" and scalars:
            hint = f"; give scalars by name: {', '.join(f'{scalar}=...' for scalar in sorted(scalars))}"
        raise UnexpectedInput(f"{what} has no input {name!r}{hint}", task=label, buffer=str(name), near=near)
    for buffer in taken.values():
        if buffer.name not in given:
            raise MissingInput(
                f"{what}: input {buffer.name!r} ({buffer.nbytes} bytes) was not given", task=label, buffer=buffer.name
            )


def input_bytes(buffer: Buffer, value: Any) -> memoryview:
    """Return the bytes of an input, without a copy: flat, as unsigned bytes, exactly as many as the buffer has.

    value is an array of the buffer's dtype and shape in host memory, NumPy's or by DLPack, any other object with the
    buffer protocol (a plain byte string fits every dtype), or a View of one of these. `check_fit` lists all that fits.

    Raises:
        NotContiguous, WrongDtype, WrongSize, WrongShape
    """
    offset = None
    if isinstance(value, View):
        value, offset = value.source, value.offset_bytes
    flat, dtype, shape = raw_bytes(buffer, value)
    check_fit(buffer, len(flat), dtype, offset, shape)
    return flat if offset is None else flat[offset : offset + buffer.nbytes]


def check_fit(
    buffer: Buffer,
    given_bytes: int,
    dtype: str | None,
    offset_bytes: int | None,
    shape: tuple[int, ...] | None = None,
) -> None:
    """Check that an object fits as an input, by its size, dtype and shape alone.

    An array has the buffer's shape, but for extents of 1. A flat array of the right size fits every shape, and every
    array of the right size a flat buffer. Of a View, and of other elements in a "uint8" buffer, only bytes count.

    Args:
        buffer: the buffer that the object is to fill.
        given_bytes: bytes of the whole object.
        dtype: the dtype of the object; None fits every buffer.
        offset_bytes: where a View of the object begins; None if all of it is the input.
        shape: the shape of the object; None fits every buffer.

    Raises:
        WrongDtype, WrongSize, WrongShape
    """
    if offset_bytes is not None:
        if not 0 <= offset_bytes <= given_bytes - buffer.nbytes:
            raise _wrong_size(buffer, given_bytes - offset_bytes, f" from offset {offset_bytes}")
        return
    if buffer.dtype != "uint8" and dtype not in (None, buffer.dtype):
        raise WrongDtype(
            f"input {buffer.name!r} takes {buffer.dtype}, not {dtype}; convert it, as x.astype({buffer.dtype!r})",
            buffer=buffer.name,
            expected=buffer.dtype,
            given=dtype,
        )
    if given_bytes != buffer.nbytes:
        raise _wrong_size(buffer, given_bytes, "" if shape is None else f" ({dtype}{list(shape)})")
    if shape is not None and shape != buffer.shape and dtype in (None, buffer.dtype):
        _check_shape(buffer, shape)


def _check_shape(buffer: Buffer, shape: tuple[int, ...]) -> None:
    """Check that an array has a buffer's shape, but for extents of 1.

    Raises:
        WrongShape: the array has another shape.
    """
    expected, given = ([extent for extent in each if extent != 1] for each in (buffer.shape, shape))
    if expected != given and len(expected) > 1 and len(given) > 1:
        raise WrongShape(
            f"input {buffer.name!r} has the shape {list(buffer.shape)}, given: {list(shape)}. If its elements are "
            "meant in the order in which they lie, give a flat array, x.reshape(-1), or kaas.View(x)",
            buffer=buffer.name,
            expected_bytes=buffer.nbytes,
            given_bytes=buffer.nbytes,
            expected_shape=buffer.shape,
            given_shape=shape,
        )


def _wrong_size(buffer: Buffer, given: int, where: str) -> WrongSize:
    return WrongSize(
        f"input {buffer.name!r} has {buffer.nbytes} bytes ({buffer.dtype}{list(buffer.shape)}), given: {given}{where}",
        buffer=buffer.name,
        expected_bytes=buffer.nbytes,
        given_bytes=given,
    )


class RawBytes(NamedTuple):
    """All bytes of an object, flat, with the dtype's name and the shape; None for both of plain bytes."""

    data: memoryview
    dtype: str | None
    shape: tuple[int, ...] | None


def raw_bytes(buffer: Buffer, value: Any) -> RawBytes:
    """Return all bytes of an object.

    Raises:
        NotContiguous: gaps, another order than C, or no bytes at all.
    """
    import numpy as np

    plain = False
    masked = sys.modules.get("numpy.ma")  # loaded where a masked array exists; importing takes 40 ms
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise NotContiguous(f"input {buffer.name!r} is a masked array; pass its filled() values", buffer=buffer.name)
    if isinstance(value, np.ndarray):
        array = np.asarray(value)
    elif is_exporter(value):
        return _exported_bytes(buffer, value)
    else:
        try:
            view = memoryview(value)
        except (TypeError, ValueError) as error:
            raise _no_array(buffer, value) from error
        plain = view.format == "B"
        array = np.asarray(view)
    if array.dtype.hasobject:
        raise NotContiguous(f"input {buffer.name!r} is an array of Python objects, not of numbers", buffer=buffer.name)
    if not array.flags.c_contiguous:
        raise NotContiguous(
            f"input {buffer.name!r} is not contiguous (shape {array.shape}, strides {array.strides}): it is transposed "
            "or a slice with gaps; pass numpy.ascontiguousarray(x)",
            buffer=buffer.name,
        )
    flat = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
    if plain:
        return RawBytes(flat.data, None, None)
    return RawBytes(flat.data, dtype_name(array.dtype) or str(array.dtype), array.shape)


def _no_array(buffer: Buffer, value: Any) -> NotContiguous:
    """Return the error of an input that has no bytes, with a hint at an input that would do."""
    wanted = f"takes an array of {buffer.dtype}{list(buffer.shape)}"
    like = f"numpy.asarray(x, {buffer.dtype!r})"
    match value:
        case None:
            given = "None was given: a call before may have returned nothing"
        case str():
            given = "a str was given; encode text to bytes, as text.encode()"
        case Buffer():
            given = "a kaas.Buffer was given, which only describes an array"
        case list() | tuple() | bool() | int() | float() | complex():
            given = f"a Python {type(value).__name__} was given; make an array of it, as {like}"
        case _:
            given = f"{type(value).__name__} is no array: it has neither the buffer protocol nor DLPack"
    return NotContiguous(f"input {buffer.name!r} {wanted}; {given}", buffer=buffer.name)


def _exported_bytes(buffer: Buffer, value: Any) -> RawBytes:
    if device_of(buffer.name, value) is not None:
        raise NotContiguous(
            f"input {buffer.name!r}: {type(value).__name__} lies on a device; copy it to the host", buffer=buffer.name
        )
    tensor = tensor_of(buffer.name, value)
    return RawBytes(tensor.host_bytes().data, tensor.dtype, tensor.shape)


def encode_scalars(task: Invocable, scalars: Mapping[str, Any] | None) -> dict[str, bytes]:
    """Return the scalars of an invocation as the kernels receive them.

    Raises:
        MissingScalar, WrongScalar: not exactly the kTask's scalars, a value that is not of its kind, no iterations.
    """
    given = mapping(task, "scalars", scalars)
    for name in given.keys() - task.scalars.keys() if given.keys() != task.scalars.keys() else ():
        known = ", ".join(task.scalars) or "none"
        raise WrongScalar(
            f"kTask {task.label!r} has no scalar {name!r}; its scalars are {known}", task=task.label, scalar=str(name)
        )
    return {name: _encode_scalar(task, name, kind, given) for name, kind in task.scalars.items()}


def _encode_scalar(task: Invocable, name: str, kind: str, given: Mapping[str, Any]) -> bytes:
    if name not in given:
        raise MissingScalar(
            f"kTask {task.label!r}: scalar {name!r} ({kind}) was not given: give it {_way(name)}",
            task=task.label,
            scalar=name,
        )
    value = given[name]
    try:
        data = encode(kind, value)
    except InvalidLiteral as error:
        raise WrongScalar(
            f"kTask {task.label!r}: scalar {name!r}: {error}", task=task.label, scalar=name, kind=kind, value=value
        ) from error
    if isinstance(task.iterations, Scalar) and task.iterations.name == name and decode(kind, data) < 1:
        raise WrongScalar(
            f"kTask {task.label!r}: {name!r} is the number of iterations, at least 1, not {value!r}",
            task=task.label,
            scalar=name,
            kind=kind,
            value=value,
        )
    return data


def iterations_of(task: KTask, scalars: Mapping[str, bytes]) -> int:
    """Return how often the kernels run, given the encoded scalars of an invocation."""
    if isinstance(task.iterations, Scalar):
        return int(decode(task.iterations.kind, scalars[task.iterations.name]))
    return task.iterations


@lru_cache(maxsize=1024)
def outputs_type(names: tuple[str, ...]) -> Callable[..., Any]:
    """Return the type of the named tuple in which several outputs come back."""
    return namedtuple("Outputs", names, rename=True)
