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
    """Return the hash of a message. The order of its frames does not count: inputs are sorted by name.

    Each frame is hashed once, however many inputs name it: so a message takes time in proportion to its bytes. It may
    have any inputs, as it is compared with an earlier request and not with a function.
    """
    inputs = sorted(message.inputs.items())
    used = {item.frame for _, item in inputs if 0 < item.frame < len(frames)}
    values = {frame: hashlib.sha256(frames[frame]).digest() for frame in used}
    given = [(name, item.object, item.offset, values.get(item.frame, b"")) for name, item in inputs]
    scalars, store = sorted(message.scalars.items()), sorted(message.store.items())
    return hashlib.sha256(msgspec.msgpack.encode((given, scalars, store)))


def _hex(digest: Any) -> str:
    return str(digest.hexdigest()[: 2 * DIGEST_BYTES])
