"""Messages between a server and a process of its steps: a header after its length, then raw bytes."""

from __future__ import annotations

from struct import Struct

import msgspec

LENGTH = Struct("<Q")
BEGUN = b"+"
"""A process's first reply to a call: if it ends without this reply, it has not begun the step."""


class StepCall(msgspec.Struct, frozen=True):
    """A call of a step. sizes: of the values after this header, by name."""

    step: str
    sizes: dict[str, int]


class Gave(msgspec.Struct, frozen=True, tag=True):
    """The result of a step. made: dtype, shape and size of each value after this header; plain bytes have neither dtype
    nor shape."""

    made: dict[str, tuple[str | None, tuple[int, ...] | None, int]]


class Raised(msgspec.Struct, frozen=True, tag=True):
    """The error of a step, as text since exceptions may hold unsendable objects. traceback: for the operator."""

    kind: str
    text: str
    traceback: str = ""


def head(header: StepCall | Gave | Raised) -> bytes:
    """Return the encoded header after its length."""
    encoded = msgspec.msgpack.encode(header)
    return LENGTH.pack(len(encoded)) + encoded
