"""What the calls and orders of executors carry, which the core passes on without looking."""

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
        frames: the encoded Invocation, then those that refs points to. refs: what stands beside it, in its order:
            something that names an object (it has `binary()`), Framed or Block. keep: the keys of the outputs that stay
            on the device, by their positions. direct: all outputs are wanted as the frames that they come in.
    """

    function: RegisteredFunction
    frames: Sequence[Any]
    refs: Sequence[Any] = ()
    keep: Mapping[int, bytes] = {}
    direct: bool = False

    def lost(self, key: bytes) -> Lost:
        """How to make an output anew that was kept."""
        position = next(position for position, kept in self.keep.items() if kept == key)
        return Lost(specs.without_keep(self.frames[0]), self.refs, position, len(self.function.outputs))


@dataclass(frozen=True, slots=True)
class Survived:
    """Instead of an invocation: the run that a survivor has in this slot is waited for."""


@dataclass(frozen=True, slots=True)
class OrderPayload:
    """A CacheCommandSpec on its way; functions: those that it names."""

    functions: Sequence[RegisteredFunction]
    message: bytes
    refs: Sequence[Any]
