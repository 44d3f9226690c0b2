"""Digests of requests with an idempotency key: of function, inputs, scalars and names of stored outputs."""

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
        request: of the message; objects are in it by their names. charge: of the same with the key and the contents of
            the function and the objects: a client that gives a name another content pays for the run with it.
    """

    request: str
    charge: str


def bound(message: Invoke, frames: Sequence[Any], function: str, content_of: Callable[[str], str]) -> InvocationDigest:
    """Return the digests. frames: with the header. function: its key. content_of: maps an object's name to its hash."""
    digest = _digest(message, frames)
    request = _hex(digest)
    objects = [content_of(item.object) for _, item in sorted(message.inputs.items()) if item.object]
    digest.update(msgspec.msgpack.encode((message.key, function, objects)))
    return InvocationDigest(request, _hex(digest))


def request_digest(message: Invoke, frames: Sequence[Any]) -> str:
    """Return the digest of a message alone, as in `InvocationDigest.request`."""
    return _hex(_digest(message, frames))


def _digest(message: Invoke, frames: Sequence[Any]) -> Any:
    """Return the hash of a message. The order of its frames does not count: inputs are sorted by name."""
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
