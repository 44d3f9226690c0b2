"""A peer's connection to the pool: a Unix socket on the pool's machine, ZeroMQ from another one."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

import msgspec

from kaas.wire.connections.shared_memory import Outbox
from kaas.wire.error_codec import decode_error
from kaas.wire.messages import FromPeer, PeerHello, PoolWelcome, Refused, ToPeer

LARGE_BYTES = 64 << 10
"""Frames from here on are not copied on their way through a process: the sender's memory goes out as it is, and must
stay as it is until the reply. A receiver has a read-only view of the memory that the frame came into."""

PROBE_BYTES = 32
"""Size of a secret in a process's memory. The pool recognizes that memory by the secret."""

ENDED = "the pool's process has ended"
CLOSED = "this connection is closed"
INTERRUPTED = "a thread was interrupted while it sent or received"

Frames = list[Any]
"""The frames of a message behind its header: bytes, or from LARGE_BYTES on a read-only memoryview; of a file that
cannot be mapped, the OSError. A message that its receiver has no memory for has one frame, OutOfHostMemory."""

Sent = TypeVar("Sent")
Got = TypeVar("Got")
"""The headers of messages in the two directions."""
T = TypeVar("T")


class ConnectionLost(Exception):
    """The connection has ended: no more messages come."""


class AnyConnection(ABC, Generic[Sent, Got]):
    """A connection for messages. Any thread sends; one thread at a time receives, the others wait for their turn.

    A thread that is interrupted in `send`, by Ctrl-C, may have sent half a message: the connection is then lost.

    Fields:
        in_hand: `receive` has begun to read a message, or has returned one. The receiver clears it once the message is
            taken; if the receiver is interrupted before that, the receiver has to give the connection up.
    """

    in_hand = False

    @abstractmethod
    def send(self, header: Sent, frames: Sequence[Any] = ()) -> None:
        """Send a message, from any thread and without waiting.

        Raises:
            ConnectionLost: the connection is closed, here or at its other end.
        """

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> tuple[Got, Frames] | None:
        """Return the next message, or None if there is none in time, or after `wake`.

        Raises:
            ConnectionLost: the connection is closed, here or at its other end; all messages before that were received.
        """

    @abstractmethod
    def wake(self) -> None:
        """Let the thread in `receive` return None, or the next one that has to wait. From any thread."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection, from any thread. A second call changes nothing.

        A thread in `receive` gets ConnectionLost. Messages that were not sent yet are not sent.
        """


class Connection(AnyConnection[FromPeer, ToPeer]):
    """A connection to the pool; made by `kaas.wire.connections.connect`.

    Fields:
        shares: the pool can read Blocks of this process.
    """

    def __init__(self) -> None:
        self.shares = False
        self._early: deque[tuple[ToPeer, Frames]] = deque()
        self._serving = Lock()

    def serve(self, take: Callable[[ToPeer, Frames], T | None]) -> Iterator[T]:
        """Have messages taken in their order and one at a time, by any number of threads that call this.

        The result of a message belongs to the thread that took the message; the others go on with the next.

        Raises:
            ConnectionLost: as `receive` does.
        """
        while True:
            yield self._served(take)

    def _served(self, take: Callable[[ToPeer, Frames], T | None]) -> T:
        while True:
            with self._serving:
                received = self.receive()
                given = None if received is None else take(*received)
            if given is not None:
                return given
            del received  # the next one may be long in coming

    @abstractmethod
    def _greet(self, hello: PeerHello, frames: Sequence[Any]) -> None:
        """Send the first message."""

    def introduce(self, hello: PeerHello, timeout_s: float, *, here: bool) -> None:
        """Send PeerHello and wait for PoolWelcome.

        Args:
            hello: the first message.
            timeout_s: how long to wait for the reply.
            here: the pool is on this machine, and may be able to read Blocks.

        Raises:
            ConnectionLost: there is no reply in time.
            KaasError: the pool refuses this peer.
        """
        deadline_s = time.monotonic() + timeout_s
        secret, early = secrets.token_bytes(PROBE_BYTES), list[tuple[ToPeer, Frames]]()
        probe = Outbox(limit_idle_bytes=0).put(secret)
        try:
            self._greet(msgspec.structs.replace(hello, probe=probe.block) if here else hello, [secret])
            while True:
                match self.receive(max(0.0, deadline_s - time.monotonic())):
                    case (PoolWelcome() as welcome, _):
                        self.shares = welcome.shares
                        self._early.extend(early)
                        self.in_hand = False
                        return
                    case (Refused(), [error]):
                        raise decode_error(error)
                    case None:
                        raise ConnectionLost(f"no reply from the pool within {timeout_s:g} s")
                    case message:
                        early.append(message)
        finally:
            probe.release()
