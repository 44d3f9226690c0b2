"""What a key of idempotency stands for: one function with its inputs, scalars and names of stored outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from kaas.wire.protocol import Invoke

DIGEST_BYTES = 16


class InvocationDigest(msgspec.Struct, frozen=True):
    """Digests, in hex.

    Fields:
        request: of what was sent; objects are in it by their names. charge: of the same with the key, the content of
            the function and that of the objects: a client that gives a name another content pays for what is run then.
    """

    request: str
    charge: str


def bound(message: Invoke, frames: Sequence[Any], function: str, content_of: Callable[[str], str]) -> InvocationDigest:
    """frames: with the header. function: its key. content_of: gives the hash of an object's content by its name."""
    digest = _digest(message, frames)
    request = _hex(digest)
    objects = [content_of(item.object) for _, item in sorted(message.inputs.items()) if item.object]
    digest.update(msgspec.msgpack.encode((message.key, function, objects)))
    return InvocationDigest(request, _hex(digest))


def request_digest(message: Invoke, frames: Sequence[Any]) -> str:
    return _hex(_digest(message, frames))


def _digest(message: Invoke, frames: Sequence[Any]) -> Any:
    """Wherever in the message the frames stand, they count by the names of their inputs."""
    inputs = sorted(message.inputs.items())
    given = [frames[item.frame] if 0 < item.frame < len(frames) else b"" for _, item in inputs]
    head = (
        [(name, item.object, item.offset, len(data)) for (name, item), data in zip(inputs, given, strict=True)],
        sorted(message.scalars.items()),
        sorted(message.store.items()),
    )
    digest = hashlib.sha256(msgspec.msgpack.encode(head))
    for data in given:
        digest.update(data)
    return digest


def _hex(digest: Any) -> str:
    return str(digest.hexdigest()[: 2 * DIGEST_BYTES])
