"""What a client asks its server, one thing at a time: as it is sent, as it is sent again, and until when."""

from __future__ import annotations

import random
from collections.abc import Sequence
from time import monotonic
from typing import Any

from msgspec.structs import replace

from kaas.errors import DeadlineExceeded, KaasError, RequestTooLarge
from kaas.futures import Pending, Source
from kaas.remote import wire

JITTER = 0.25
"""Of the time that a server wants a client to wait, by which it may be more: not all come back at once."""


class TryAgain(Exception):
    """What came of a question that may be asked again."""

    def __init__(self, error: KaasError, retry_s: float = 0.0) -> None:
        super().__init__(error.message)
        self.error, self.retry_s = error, retry_s


class Call(Pending):
    """An Invoke. invoke, frames: as it was sent, and is sent again. nbytes: its part of the credit. expires_s: when its
    deadline is over. tried_until_s: until when it is asked again."""

    __slots__ = ("deadline_s", "expires_s", "frames_out", "invoke", "nbytes", "tried_until_s")

    def __init__(
        self, source: Source, invoke: wire.Invoke, frames: Sequence[Any], nbytes: int, patience_s: float
    ) -> None:
        super().__init__(source, invoke.number)
        self.invoke, self.frames_out, self.nbytes = invoke, frames, nbytes
        now_s = monotonic()
        self.deadline_s = deadline_s = invoke.deadline_s
        self.expires_s = None if deadline_s is None else now_s + deadline_s
        self.tried_until_s = now_s + (patience_s if deadline_s is None else deadline_s)

    def again(self, number: int) -> None:
        """It is sent once more, with the time that is left."""
        left_s = None if self.expires_s is None else max(1e-3, self.expires_s - monotonic())
        self.invoke = replace(self.invoke, number=number, deadline_s=left_s)

    def expired(self) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"no answer from the server within {self.deadline_s} s",
            deadline_s=self.deadline_s,
            task=self.invoke.function,
        )


class Question(Pending):
    """Anything else."""

    __slots__ = ("frames_out", "header")

    def __init__(self, source: Source, header: Any, frames: Sequence[Any]) -> None:
        super().__init__(source, header.number)
        self.header, self.frames_out = header, frames


def again_s(failure: wire.Failure, call: Call) -> float | None:
    """After which time a call is asked again."""
    if failure.retry_s is None:
        return None
    pause_s = failure.retry_s * random.uniform(1, 1 + JITTER)
    return pause_s if monotonic() + pause_s < call.tried_until_s else None


def too_large(nbytes: int, limits: wire.Limits | None) -> RequestTooLarge:
    most = 0 if limits is None or not limits.requests else limits.credit_bytes
    return RequestTooLarge(
        f"a request with {nbytes} bytes of inputs and outputs is more than this client may have open at the server, "
        f"{most}: put its inputs there first, and store its outputs there",
        needed_bytes=nbytes,
        capacity_bytes=most,
        excess_bytes=nbytes - most,
    )
