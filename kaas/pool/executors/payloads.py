"""The payloads of calls and orders to executors, which the core passes on without looking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kaas.pool.functions import RegisteredFunction
from kaas.wire import specs
from kaas.wire.outputs import Lost


class Payload(msgspec.Struct, frozen=True):
    """An invocation on its way.

    Fields:
        frames: the encoded Invocation, then those that refs point to. refs: the attachments, in its order: objects
        (with
            `binary()`), Framed or Block. keep: the keys of the outputs that stay on the device, by position. direct:
            all outputs are wanted as the frames that they come in.
    """

    function: RegisteredFunction
    frames: Sequence[Any]
    refs: Sequence[Any] = ()
    keep: Mapping[int, bytes] = {}
    direct: bool = False

    def lost(self, key: bytes) -> Lost:
        """Return the invocation that makes a kept output anew."""
        position = next(position for position, kept in self.keep.items() if kept == key)
        return Lost(specs.without_keep(self.frames[0]), self.refs, position, len(self.function.outputs))


@dataclass(frozen=True, slots=True)
class Survived:
    """The payload of an adopted run: the pool waits for the run that a survivor has in this slot."""


@dataclass(frozen=True, slots=True)
class OrderPayload:
    """A CacheCommandSpec on its way; functions: those that it names."""

    functions: Sequence[RegisteredFunction]
    message: bytes
    refs: Sequence[Any]
