"""Limits of messages that were not taken yet: how long an incomplete one may take, and how many bytes they may have.

ZeroMQ keeps an incomplete message until its end, on any number of connections, and shows none of it. Only the bytes of
each connection, and those of its taken messages, are known: the difference is of messages that wait, of incomplete
messages, and of heartbeats.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sized
from operator import itemgetter
from typing import TypeVar

import msgspec

C = TypeVar("C")

IDLE_BYTES, IDLE_BYTES_PER_S = 4 << 10, 128
"""The most bytes of heartbeats on a connection without an incomplete message."""
IDLE_MOST_BYTES = 256 << 10
"""A connection with more bytes of heartbeats ends, and its client connects again: they may be a very slow message."""
MESSAGE_S, LEAST_BYTES_PER_S = 30.0, 16 << 10
"""A message that takes longer than MESSAGE_S must come at this rate at least, or its connection ends."""

HANDSHAKE_BYTES = 4 << 10
LONG_BYTES, SHORT_HEAD, LONG_HEAD, SEALED_BYTES = 255, 2, 9, 33
"""A frame's head has two bytes, or nine if the frame is longer than 255. CURVE adds SEALED_BYTES to each frame."""


def wire_bytes(frames: Iterable[Sized], sealed: bool) -> int:
    """Return the bytes of a message on its connection. sealed: by CURVE."""
    seal, nbytes = SEALED_BYTES if sealed else 0, 0
    for frame in frames:
        size = len(frame) + seal
        nbytes += size + (LONG_HEAD if size > LONG_BYTES else SHORT_HEAD)
    return nbytes


class Progress(msgspec.Struct):
    """Progress of one connection since its last message.

    Fields:
        since_s: time of that message. marked_s, marked_bytes: time when the incomplete message last made progress, and
            its bytes then; None without an incomplete message.
    """

    since_s: float
    marked_s: float | None = None
    marked_bytes: int = 0

    def stalls(self, now_s: float, nbytes: int) -> bool:
        """Return True if `nbytes` are of an incomplete message that makes no progress."""
        if nbytes <= IDLE_BYTES + IDLE_BYTES_PER_S * (now_s - self.since_s):
            return nbytes > IDLE_MOST_BYTES
        if self.marked_s is None:
            self.marked_s, self.marked_bytes = now_s, nbytes
        elif now_s - self.marked_s >= MESSAGE_S:
            if nbytes - self.marked_bytes < LEAST_BYTES_PER_S * (now_s - self.marked_s):
                return True  # repeatedly, since a connection ends after two such checks
            self.marked_s, self.marked_bytes = now_s, nbytes
        return False


def over_budget(unfinished: Iterable[tuple[C, str, int]], most_each: int, most: int) -> list[C]:
    """Return the connections that must end, so that no client has more than most_each unfinished bytes, and all
    together have at most `most`: the largest ones of that client, or of the client with the most bytes.

    Args:
        unfinished: connection, client and bytes of each. most_each, most: limits in bytes.
    """
    clients: defaultdict[str, list[tuple[int, C]]] = defaultdict(list)
    for connection, client, nbytes in unfinished:
        if nbytes:
            clients[client].append((nbytes, connection))
    sums = {client: sum(nbytes for nbytes, _ in parts) for client, parts in clients.items()}
    total = sum(sums.values())
    for parts in clients.values():
        parts.sort(key=itemgetter(0))
    going = []
    while sums:
        client = max(sums, key=sums.__getitem__)
        if sums[client] <= most_each and total <= most:
            break
        nbytes, connection = clients[client].pop()
        going.append(connection)
        sums[client] -= nbytes
        total -= nbytes
        if not clients[client]:
            del sums[client]
    return going


def flooding(waiting: Iterable[tuple[C, str, int]], left_bytes: Mapping[str, int], most_each: int) -> list[C]:
    """Return the fullest connection of each client of which more than most_each bytes wait.

    Args:
        waiting: connection, client and bytes of each. left_bytes: of connections that have ended, by client. most_each:
            limit in bytes.
    """
    sums = Counter(left_bytes)
    fullest: dict[str, tuple[int, C]] = {}
    for connection, client, nbytes in waiting:
        sums[client] += nbytes
        if client not in fullest or nbytes > fullest[client][0]:
            fullest[client] = nbytes, connection
    return [connection for client, (_, connection) in fullest.items() if sums[client] > most_each]
