"""The payloads of calls and commands to executors. The core passes them on unread."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from kaas.pool.functions import RegisteredFunction
from kaas.wire import specs
from kaas.wire.outputs import Lost
from kaas.wire.packing import constant_key


class Payload(msgspec.Struct, frozen=True):
    """An invocation for an executor.

    Fields:
        frames: the encoded Invocation, then the frames of attachments.
        refs: the attachments, in the invocation's order: objects (with `binary()`), Framed or Block.
        keep: by position, the keys of the outputs that stay on the device.
        direct: the caller wants all outputs as frames.
    """

    function: RegisteredFunction
    frames: Sequence[Any]
    refs: Sequence[Any] = ()
    keep: Mapping[int, bytes] = {}
    direct: bool = False

    def keys(self) -> Collection[bytes]:
        """Return the keys of the objects that the run may load."""
        return {*self.function.places(specs.decode_invocation(self.frames[0]), self.refs), *self.keep.values()}

    def lost(self, key: bytes) -> Lost:
        """Return the invocation that makes a lost output again."""
        position = next(position for position, kept in self.keep.items() if kept == key)
        return Lost(specs.without_keep(self.frames[0]), self.refs, position, len(self.function.outputs))


@dataclass(frozen=True, slots=True)
class Survived:
    """The payload of an adopted run: the run goes on in a slot of a surviving executor."""


@dataclass(frozen=True, slots=True)
class OrderPayload:
    """A CacheCommandSpec for an executor. functions: those that it names."""

    functions: Sequence[RegisteredFunction]
    message: bytes
    refs: Sequence[Any]

    def keys(self) -> Collection[bytes]:
        """Return the keys of the objects that the command may load."""
        entries = {binding.entry for function in self.functions for binding in function.spec.bindings}
        constants = {constant_key(ref, entry) for ref in self.refs for entry in entries}
        return constants | {ref.binary() for ref in self.refs}
