"""Answers that outlive the server: to requests with a key that are not to be run again.

A kTask is pure, and may run once more when its answer was lost with the server. What it reads by a name is not: a
request that replaces what it has read would be done twice. Nor is an eTask pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kaas.errors import KaasError
from kaas.server.binding import InvocationDigest
from kaas.server.state.state import State

ANSWERS = "answers"
_log = logging.getLogger(__name__)


class DurableReply(msgspec.Struct, frozen=True, array_like=True):
    """asked: the function, as it was named. label: of it. outputs: names of those that came, as frames. request,
    charge: what its key stands for, as in `kaas.server.binding.InvocationDigest`; "" if that was not written down."""

    client: str
    key: str
    asked: str
    label: str
    outputs: tuple[str, ...]
    frames: Sequence[bytes]
    request: str = ""
    charge: str = ""


class DurableReplies:
    def __init__(self, state: State) -> None:
        self._state = state

    def read(self) -> Iterable[DurableReply]:
        """Of earlier lives, in the order in which they came."""
        return self._state.read(ANSWERS, _decode)

    def remove(self, client: str, key: str) -> None:
        try:
            self._state.remove(ANSWERS, client, key)
        except KaasError as error:  # the next life finds it, and forgets it when it is old
            _log.warning("an answer of %s stays: %s", client, error.message)

    def purge(self, client: str) -> None:
        """
        Raises:
            KaasError
        """
        self._state.remove_all(ANSWERS, client)


def entry(
    client: str,
    key: str,
    asked: str,
    label: str,
    outputs: tuple[str, ...],
    frames: Sequence[Any],
    bound: InvocationDigest,
) -> bytes:
    sent = [bytes(frame) for frame in frames]
    return msgspec.msgpack.encode(DurableReply(client, key, asked, label, outputs, sent, bound.request, bound.charge))


_decode = msgspec.msgpack.Decoder(DurableReply).decode
