"""The attachments of a message to an executor, as the objects that they stand for."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

from kaas.wire.connections.shared_memory import part
from kaas.wire.messages import ExecutorAttachment, Filed, Framed, Named

Get = Callable[[Any, Mapping[bytes, Any]], Any]
"""Returns the object of a reference, for which it waits, or a value itself. Its second argument has outputs that were
computed anew, by key; it raises InputLost for a lost output that is not among them."""


def same(value: Any, made: Mapping[bytes, Any]) -> Any:  # noqa: ARG001 - it is a Get
    """Return a value as it is: for requests whose objects travel themselves."""
    return value


class ObjectParts(NamedTuple):
    """An object that came over the connection: its bytes or, of a tuple of constants, those of each entry.

    Fields:
        frames: all frames after the header; the items point into them.
    """

    items: Sequence[Framed | Filed]
    frames: Sequence[Any]


class Attachments:
    """The objects of one request, as `kaas.wire.packing` gets them.

    Fields:
        made: outputs that were computed anew for the request, by key.
    """

    __slots__ = ("_constants", "_frames", "_get", "_items", "_objects", "_supply", "made")

    def __init__(
        self,
        items: Sequence[ExecutorAttachment],
        frames: Sequence[Any],
        supply: Callable[[], Sequence[Any]],
        get: Get,
        constants: Container[int | None] = (),
    ) -> None:
        """
        Args:
            frames: those behind the header. supply: returns the objects of the items, one for each. constants:
                positions of those that are tuples of constants.
        """
        self._items = items
        self._frames = frames
        self._supply = supply
        self._get = get
        self._constants = constants
        self._objects: Sequence[Any] | None = None
        self.made: dict[bytes, Any] = {}

    def __call__(self, item: Any) -> Any:
        """Return the object of an item, or of a reference that is none of the items.

        Raises:
            InputLost; the error of fetching the object.
        """
        if isinstance(item, Framed | Filed):
            return _read(item, self._frames)
        if not isinstance(item, Named):
            return self._get(item, self.made)
        if self._objects is None:
            self._objects = self._supply()
        position = self._items.index(item)
        found = self._objects[position]
        if not isinstance(found, ObjectParts):
            return self._get(found, self.made)
        values = [_read(each, found.frames) for each in found.items]
        return values if position in self._constants else values[0]


def _read(item: Framed | Filed, frames: Sequence[Any]) -> Any:
    if isinstance(item, Framed):
        return frames[item.frame - 1]
    return part(frames[-1 - item.file], item.offset_bytes, item.nbytes)
