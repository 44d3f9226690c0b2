"""Replies that outlive the server: to requests with a key that must not run again.

A kTask is pure, and may run once more when its reply was lost with the server. Named objects are not pure: a request
that replaces an object that it has read would have its effect twice. An eTask is not pure either.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kaas.errors import KaasError
from kaas.server.binding import InvocationDigest
from kaas.server.state.state_folder import State

ANSWERS = "answers"
_log = logging.getLogger(__name__)


class DurableReply(msgspec.Struct, frozen=True, array_like=True):
    """A stored reply. function: its name in the request. label: the function's label. outputs: names of the frames.
    request, charge: as in `kaas.server.binding.InvocationDigest`; "" if they were not stored. earlier: the digest of
    versions that hashed requests otherwise, which is compared with none."""

    client: str
    key: str
    function: str
    label: str
    outputs: tuple[str, ...]
    frames: Sequence[bytes]
    earlier: str = ""
    charge: str = ""
    request: str = ""


class DurableReplies:
    """The stored replies of all clients."""

    def __init__(self, state: State) -> None:
        self._state = state

    def read(self) -> Iterable[DurableReply]:
        """Return the replies of earlier epochs, in the order in which they were stored."""
        return self._state.read(ANSWERS, _decode)

    def remove(self, client: str, key: str) -> None:
        """Remove a reply. A failure is logged only."""
        try:
            self._state.remove(ANSWERS, client, key)
        except KaasError as error:  # the next run loads it, and forgets it when it is old
            _log.warning("a reply of %s stays: %s", client, error.message)

    def purge(self, client: str) -> None:
        """Remove all replies of a client.

        Raises:
            KaasError
        """
        self._state.remove_all(ANSWERS, client)


def entry(
    client: str,
    key: str,
    function: str,
    label: str,
    outputs: tuple[str, ...],
    frames: Sequence[Any],
    bound: InvocationDigest,
) -> bytes:
    """Return a reply as an entry of the state."""
    sent = [bytes(frame) for frame in frames]
    return msgspec.msgpack.encode(
        DurableReply(client, key, function, label, outputs, sent, charge=bound.charge, request=bound.request)
    )


_decode = msgspec.msgpack.Decoder(DurableReply).decode
