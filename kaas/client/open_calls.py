"""What a client asks its server, one thing at a time: as it is sent, as it is sent again, and until when."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from msgspec.structs import replace

from kaas.errors import DeadlineExceeded, KaasError, RequestTooLarge
from kaas.futures import PendingReply, ReplySource
from kaas.wire import protocol

JITTER = 0.25
"""Of the time that a server wants a client to wait, by which it may be more: not all come back at once."""


class TryAgain(Exception):
    """What came of a question that may be asked again."""

    def __init__(self, error: KaasError, retry_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error, self.retry_s = error, retry_s


class OpenCall(PendingReply):
    """An Invoke without a reply.

    Fields:
        invoke, frames: as the message was sent, and is sent again. nbytes: its part of the credit. make: makes its
        value
            of the frames that come, with their names before them if named. begun_s: since when it is tried. expires_s:
            when its deadline is over. traceparent: of the server's span, with the reply.
    """

    repeatable = True  # on the next connection

    __slots__ = (
        "begun_s",
        "deadline_s",
        "expires_s",
        "frames_out",
        "invoke",
        "label",
        "make",
        "named",
        "nbytes",
        "traceparent",
    )

    def __init__(
        self,
        source: ReplySource,
        invoke: protocol.Invoke,
        frames: Sequence[bytes],
        nbytes: int,
        make: Callable[[Sequence[Any]], Any],
        label: str,
        named: bool = False,
    ) -> None:
        super().__init__(source, invoke.number)
        self.invoke, self.frames_out, self.nbytes, self.make, self.label = invoke, frames, nbytes, make, label
        self.named = named
        self.traceparent = ""
        self.begun_s = now_s = monotonic()
        self.deadline_s = deadline_s = invoke.deadline_s
        self.expires_s = None if deadline_s is None else now_s + deadline_s

    def again(self, number: int) -> None:
        """It is sent once more, or late, with the time that is left."""
        left_s = None if self.expires_s is None else max(1e-3, self.expires_s - monotonic())
        self.invoke = replace(self.invoke, number=number, deadline_s=left_s)

    def again_s(self, failure: protocol.Failure, patience_s: float) -> float | None:
        """After which time it is asked again; None: not any more."""
        if failure.retry_s is None:
            return None
        pause_s = failure.retry_s * random.uniform(1, 1 + JITTER)
        until_s = self.begun_s + patience_s if self.expires_s is None else self.expires_s
        return pause_s if monotonic() + pause_s < until_s else None

    def check(self, limits: protocol.Limits) -> None:
        """Check the call against the server's limits.

        Raises:
            RequestTooLarge: an input is more than one message may carry.
        """
        most = max(map(len, self.frames_out), default=0)
        if most > limits.frame_bytes:
            raise RequestTooLarge(
                f"an input of {most} bytes is more than one message to the server may carry, {limits.frame_bytes}: "
                "put it there first",
                needed_bytes=most,
                capacity_bytes=limits.frame_bytes,
                excess_bytes=most - limits.frame_bytes,
                task=self.label,
            )

    def expired(self) -> DeadlineExceeded:
        """Return the error of a call whose deadline is over."""
        return DeadlineExceeded(
            f"no answer from the server within {self.deadline_s} s",
            deadline_s=self.deadline_s,
            task=self.invoke.function,
        )


class OpenQuestion(PendingReply):
    """Anything else."""

    repeatable = False  # it ends with its connection, as `TryAgain`

    __slots__ = ("frames_out", "header")

    def __init__(self, source: ReplySource, header: Any, frames: Sequence[Any]) -> None:
        super().__init__(source, header.number)
        self.header, self.frames_out = header, frames


def too_large(nbytes: int, limits: protocol.Limits | None) -> RequestTooLarge:
    """Return the error of a request of more bytes than the client may have open."""
    most = 0 if limits is None or not limits.requests else limits.credit_bytes
    return RequestTooLarge(
        f"a request with {nbytes} bytes of inputs and outputs is more than this client may have open at the server, "
        f"{most}: put its inputs there first, and store its outputs there",
        needed_bytes=nbytes,
        capacity_bytes=most,
        excess_bytes=nbytes - most,
    )
