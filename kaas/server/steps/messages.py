"""What a server and a process of its steps say to each other: a header behind its length, then bytes as they are."""

from __future__ import annotations

from struct import Struct

import msgspec

LENGTH = Struct("<Q")
BEGUN = b"+"
"""What a process says at once to what it is asked: one that ends without it has done nothing of that."""


class StepCall(msgspec.Struct, frozen=True):
    """sizes: of the values behind this, by name."""

    step: str
    sizes: dict[str, int]


class Gave(msgspec.Struct, frozen=True, tag=True):
    """made: dtype, shape and size of each value behind this; plain bytes have neither dtype nor shape."""

    made: dict[str, tuple[str | None, tuple[int, ...] | None, int]]


class Raised(msgspec.Struct, frozen=True, tag=True):
    """What a step raised: exceptions may hold what cannot travel. traceback: for the operator."""

    kind: str
    text: str
    traceback: str = ""


def head(said: StepCall | Gave | Raised) -> bytes:
    encoded = msgspec.msgpack.encode(said)
    return LENGTH.pack(len(encoded)) + encoded
