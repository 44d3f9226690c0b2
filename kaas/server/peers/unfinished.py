"""Messages that have begun to come and have not ended: how long each may take, and how much of them all there may be.

ZeroMQ keeps what has come of a message until its end, however many connections there are, and shows none of it. All
that is known is how many bytes have come over each connection, and how many of them its messages had: the rest is of
messages whose ends have not come, and heartbeats.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sized

import msgspec

IDLE_BYTES, IDLE_BYTES_PER_S = 4 << 10, 128
"""So much of heartbeats may have come over a connection on which no message is on its way."""
IDLE_MOST_BYTES = 256 << 10
"""Over a connection with so much of them another one is made: it might be a message that comes very slowly."""
MESSAGE_S, LEAST_BYTES_PER_S = 30.0, 16 << 10
"""A message that takes longer than this comes with at least so many bytes a second, or its connection ends."""

HANDSHAKE_BYTES = 4 << 10
LONG_BYTES, SHORT_HEAD, LONG_HEAD, SEALED_BYTES = 255, 2, 9, 33
"""A frame's head has two bytes, or nine if the frame is longer than 255. CURVE seals each with so many bytes more."""


def wire_bytes(frames: Iterable[Sized], sealed: bool) -> int:
    """The bytes of a message on its connection. sealed: by CURVE."""
    seal = SEALED_BYTES if sealed else 0
    sizes = (len(frame) + seal for frame in frames)
    return sum(size + (LONG_HEAD if size > LONG_BYTES else SHORT_HEAD) for size in sizes)


class Progress(msgspec.Struct):
    """Of one connection since its last message.

    Fields:
        since_s: when that was. marked_s, marked_bytes: when the message that now comes was last seen to make progress,
            and how much of it had come; None while none is on its way.
    """

    since_s: float
    marked_s: float | None = None
    marked_bytes: int = 0

    def stalls(self, now_s: float, nbytes: int) -> bool:
        """Whether what has come, so many bytes, is a message that makes no progress."""
        if nbytes <= IDLE_BYTES + IDLE_BYTES_PER_S * (now_s - self.since_s):
            return nbytes > IDLE_MOST_BYTES
        if self.marked_s is None:
            self.marked_s, self.marked_bytes = now_s, nbytes
        elif now_s - self.marked_s >= MESSAGE_S:
            if nbytes - self.marked_bytes < LEAST_BYTES_PER_S * (now_s - self.marked_s):
                return True  # and again, as long as that is so: its connection is seen twice before it ends
            self.marked_s, self.marked_bytes = now_s, nbytes
        return False


def over_budget(unfinished: Iterable[tuple[int, str, int]], most_each: int, most: int) -> list[int]:
    """The connections that end, so that no client has more than most_each bytes unfinished, and all together not more
    than most: the largest of that client, or of the client with the most.

    Args:
        unfinished: connection, client and bytes of each.
    """
    clients: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for connection, client, nbytes in unfinished:
        if nbytes:
            clients[client].append((nbytes, connection))
    sums = {client: sum(nbytes for nbytes, _ in parts) for client, parts in clients.items()}
    total = sum(sums.values())
    for parts in clients.values():
        parts.sort()
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
