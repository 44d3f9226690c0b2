"""The reply to a call with a deadline, which ends also if the pool says nothing."""

from __future__ import annotations

import weakref
from time import monotonic
from typing import Any

from kaas.errors import DeadlineExceeded
from kaas.futures import PendingReply, ReplySource
from kaas.wire.connections.reply_reader import ReplyReader
from kaas.wire.connections.timer_thread import TimerThread

GRACE_S = 1.0
"""The pool ends a call at its deadline, with a better message. A call without that ends so much later."""


class TimedReply(PendingReply):
    """The reply to a call with a deadline. label: of its function, for people."""

    __slots__ = ("_deadline_s", "_ends_s", "_label")

    def __init__(self, source: ReplySource, number: int, deadline_s: float, label: str) -> None:
        super().__init__(source, number)
        self._deadline_s, self._label = deadline_s, label
        self._ends_s = monotonic() + deadline_s + GRACE_S

    def wait(self, receiver: ReplyReader[Any], timeout_s: float | None) -> None:
        """Wait for the reply, timeout_s at most."""
        left_s = self._left_s()
        if timeout_s is not None and timeout_s < left_s:
            receiver.wait(self, timeout_s)
        else:
            receiver.wait(self, left_s)
            self.expire()

    def _left_s(self) -> float:
        return max(0.0, self._ends_s - monotonic())

    def expire(self) -> None:
        """End the call, unless it has ended."""
        message = f"{self._label!r}: no reply from the pool within {self._deadline_s:g} s"
        if self.end(error=DeadlineExceeded(message, task=self._label, deadline_s=self._deadline_s)):
            self.source.forget(self)

    def expire_by(self, timer: TimerThread) -> None:
        """Let a thread end the call, since no other waits for its reply."""
        watched = weakref.ref(self)  # weak: a call with a reply may be freed before its deadline
        timer.after(self._left_s(), lambda: _expire(watched))


def _expire(watched: weakref.ref[TimedReply]) -> None:
    reply = watched()
    if reply is not None:
        reply.expire()
