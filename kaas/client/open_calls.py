"""A client's open requests to its server: the message, the message of a further attempt, and the deadline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import monotonic
from typing import Any

from msgspec.structs import replace

from kaas.errors import DeadlineExceeded, KaasError, RequestTooLarge
from kaas.futures import MakeResult, PendingReply, ReplySource
from kaas.wire import protocol

JITTER = 0.25
"""A client waits up to this share longer than the server asks, so that clients do not all return at once."""


class TryAgain(Exception):
    """A request failed, and may be sent again after retry_s seconds. error: the reason."""

    def __init__(self, error: KaasError, retry_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error, self.retry_s = error, retry_s


class OpenCall(PendingReply):
    """An Invoke without a reply.

    Fields:
        invoke, frames_out: the message. nbytes: credit that the call takes.
        make: returns the call's value for the frames of the reply. named: the frames begin with their names.
        begun_s: time of the first attempt. expires_s: time of the deadline.
        traceparent: of the server's span; comes with the reply.
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
        make: MakeResult,
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

    def renumber(self, number: int) -> None:
        """Prepare the message for another attempt, or a late one: with this number, and the time that is left."""
        left_s = None if self.expires_s is None else max(1e-3, self.expires_s - monotonic())
        self.invoke = replace(self.invoke, number=number, deadline_s=left_s)

    def retry_pause_s(self, failure: protocol.Failure, patience_s: float) -> float | None:
        """Return the seconds until the call is sent again after a failure, or None if it is not sent again."""
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
                f"an input of {most} bytes exceeds the server's limit of one message, {limits.frame_bytes} bytes: "
                "put it there first, with Client.put",
                needed_bytes=most,
                capacity_bytes=limits.frame_bytes,
                excess_bytes=most - limits.frame_bytes,
                task=self.label,
            )

    def expired(self) -> DeadlineExceeded:
        """Return the error of a call whose deadline has passed."""
        return DeadlineExceeded(
            f"no reply from the server within {self.deadline_s} s",
            deadline_s=self.deadline_s,
            task=self.invoke.function,
        )


class OpenQuestion(PendingReply):
    """A request other than an Invoke."""

    repeatable = False  # it ends with its connection, by `TryAgain`

    __slots__ = ("frames_out", "header")

    def __init__(self, source: ReplySource, header: Any, frames: Sequence[Any]) -> None:
        super().__init__(source, header.number)
        self.header, self.frames_out = header, frames


def too_large(nbytes: int, limits: protocol.Limits | None) -> RequestTooLarge:
    """Return the error of a request that needs more credit than the client has in total."""
    most = 0 if limits is None or not limits.requests else limits.credit_bytes
    return RequestTooLarge(
        f"a request with {nbytes} bytes of inputs and outputs exceeds this client's limit of open requests, {most}: "
        "put its inputs there first, with Client.put, and store its outputs there, with store=...",
        needed_bytes=nbytes,
        capacity_bytes=most,
        excess_bytes=nbytes - most,
    )
