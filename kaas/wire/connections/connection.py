"""A peer's line to the pool: over a Unix socket on the pool's machine, over ZeroMQ from another one."""

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
stay as it is until the answer; a receiver has a read-only view of what came in."""

PROBE_BYTES = 32
"""Of a secret in a process's memory, by which the pool knows that memory again."""

ENDED = "the pool's process has ended"
CLOSED = "this line is closed"

Frames = list[Any]
"""Of a message, behind its header: bytes, or from LARGE_BYTES on a read-only memoryview."""

Sent = TypeVar("Sent")
Got = TypeVar("Got")
"""The headers of messages, there and back."""
T = TypeVar("T")


class ConnectionLost(Exception):
    """Nothing comes over this line any more."""


class AnyConnection(ABC, Generic[Sent, Got]):
    """Whatever is said on it. Anybody sends; one thread at a time receives, the others wait for their turn."""

    @abstractmethod
    def send(self, header: Sent, frames: Sequence[Any] = ()) -> None:
        """From any thread; waits for nobody.

        Raises:
            LineLost: it is closed, here or at its other end
        """

    @abstractmethod
    def receive(self, timeout_s: float | None = None) -> tuple[Got, Frames] | None:
        """The next message, or None if there is none in time, or after `wake`.

        Raises:
            LineLost: it is closed, here or at its other end; all that came before was received
        """

    @abstractmethod
    def wake(self) -> None:
        """From any thread: who waits in `receive` gets None, and if nobody does, the next who has to wait."""

    @abstractmethod
    def close(self) -> None:
        """From any thread; once more changes nothing. Who waits in `receive` gets LineLost. What was not sent yet is
        not sent."""


class Connection(AnyConnection[FromPeer, ToPeer]):
    """To the pool; made by `kaas.wire.connections.connect`.

    Fields:
        shares: the pool can read Blocks of this process.
    """

    def __init__(self) -> None:
        self.shares = False
        self._early: deque[tuple[ToPeer, Frames]] = deque()
        self._serving = Lock()

    def serve(self, take: Callable[[ToPeer, Frames], T | None]) -> Iterator[T]:
        """Have messages taken, in their order and one at a time, by any number of threads that do this: what comes of
        one of them is its thread's, and the others go on with the next.

        Raises:
            LineLost: as `receive` does
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
        """Say PeerHello and wait for PoolWelcome. here: the pool is on this machine, and may be able to read Blocks.

        Raises:
            LineLost: there is no answer in time
            KaasError: the pool wants nothing of this peer
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
                        return
                    case (Refused(), [error]):
                        raise decode_error(error)
                    case None:
                        raise ConnectionLost(f"no answer from the pool within {timeout_s:g} s")
                    case message:
                        early.append(message)
        finally:
            probe.release()
