"""Python values on their way to and from eTasks: small ones as bytes, which are cheap, all others as objects of Ray."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray.actor import ActorHandle

SMALL_BYTES = 64 << 10
"""Values up to this many bytes, pickled, travel inside messages."""


@dataclass(frozen=True, slots=True)
class AttachedArgument:
    """Stands for an argument that was given by reference: its position among the references attached to the call."""

    position: int


class _NotSmall(Exception):
    """The value has too many bytes, or an object in it that only Ray may carry."""


class _Limited(io.BytesIO):
    """Raises _NotSmall beyond SMALL_BYTES, so that a large value is not pickled whole to find out its size."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > SMALL_BYTES:
            raise _NotSmall
        return super().write(data)


_RayPickler: Any = cloudpickle.Pickler  # has no types


class _Pickler(_RayPickler):  # type: ignore[misc]
    """References and handles count as not small: outside of Ray's own messages they would be held for ever."""

    def persistent_id(self, value: Any) -> None:
        if isinstance(value, ray.ObjectRef | ActorHandle):
            raise _NotSmall


def packed(value: Any) -> list[bytes]:
    """Return the pickle of a small value and its arrays' buffers, for `kaas.wire.outputs.unpacked`; [] of a larger one.

    Raises:
        The errors of pickling the value.
    """
    buffers: list[bytes] = []
    room = SMALL_BYTES

    def keep_buffer(buffer: pickle.PickleBuffer) -> bool:
        nonlocal room
        raw = buffer.raw()
        room -= raw.nbytes
        if room < 0:
            raise _NotSmall
        buffers.append(raw.tobytes())
        return False

    written = _Limited()
    try:
        _Pickler(written, protocol=5, buffer_callback=keep_buffer).dump(value)
    except _NotSmall:
        return []
    return [written.getvalue(), *buffers]


def pickled(value: Any) -> bytes:
    """Return a value's pickle, with the code of functions and classes that no module holds.

    Raises:
        The errors of pickling the value.
    """
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def stored(value: Any) -> Any:
    """Put a value into Ray's store; return its reference."""
    return ray.put(value)


def split(args: Sequence[Any], kwargs: Mapping[str, Any], first: int) -> tuple[Any, list[Any]]:
    """Return the arguments with an AttachedArgument in place of each reference, and the references.

    first: the number of other references that go before them.
    """
    refs: list[Any] = []

    def take(value: Any) -> Any:
        if not isinstance(value, ray.ObjectRef):
            return value
        refs.append(value)
        return AttachedArgument(first + len(refs) - 1)

    return ([take(value) for value in args], {name: take(value) for name, value in kwargs.items()}), refs
