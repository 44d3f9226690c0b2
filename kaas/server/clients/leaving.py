"""The bytes of replies that wait in ZeroMQ until their clients read them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

LEAVING_BYTES, LEAVING_FAILURE_BYTES = 4 << 10, 512
"""Replies without credit, and failures, count from so many bytes on, while they wait."""


class _LeavingPart:
    """A part on its way: the object lives until ZeroMQ has sent it. gone: gets the number of its bytes then."""

    gone: deque[int] | None = None

    def __del__(self) -> None:
        if self.gone is not None:
            self.gone.append(len(self))  # type: ignore[arg-type]  # the other base class has a length


class LeavingBytes(bytearray, _LeavingPart):
    """A reply."""


class LeavingView(np.ndarray[Any, Any], _LeavingPart):
    """A view of a result's frame, whose bytes are not copied."""

    @classmethod
    def of(cls, frame: Any) -> LeavingView:
        """Return a view of a frame, which supports the buffer protocol."""
        return np.frombuffer(frame, np.uint8).view(cls)


class Leaving:
    """The sum of bytes on their way to one user. ZeroMQ's thread may end a part at any time."""

    def __init__(self) -> None:
        self._nbytes = 0
        self._gone: deque[int] = deque()

    def add(self, part: LeavingBytes | LeavingView) -> None:
        """Count a part until it is sent."""
        if part.gone is None:
            part.gone = self._gone
            self._nbytes += len(part)

    @property
    def nbytes(self) -> int:
        """The bytes that are not sent yet."""
        while self._gone:
            self._nbytes -= self._gone.popleft()
        return self._nbytes


class UserLeaving:
    """The parts on their way to one user, on all connections.

    Fields:
        replies: those that take no credit. results: large frames of results, which are not copied.
    """

    def __init__(self) -> None:
        self.replies, self.results = Leaving(), Leaving()

    def count(self, part: Any) -> LeavingBytes | LeavingView:
        """Count a reply, or a large frame of a result, until it is sent. Return what is to be sent in its place."""
        if type(part) is LeavingBytes:
            self.replies.add(part)
            return part
        view = LeavingView.of(part)
        self.results.add(view)
        return view
