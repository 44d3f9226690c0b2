"""What a client has open at its server, as far as it knows: calls, questions, credit."""

from __future__ import annotations

from collections.abc import Sequence

from kaas.client.credit import Credit
from kaas.client.open_calls import OpenCall, OpenQuestion
from kaas.futures import PendingReply
from kaas.wire.protocol import Failure, Limits


class InFlight:
    """Numbers in, numbers out; whoever uses it guards it.

    Fields:
        open: calls that were sent, or are to be as soon as there is a connection, by their newest number. questions:
            the same of other kinds. resting: calls that are to be asked again, by their first number. cancelled: calls
            that nobody waits for, and the bytes of credit that they take until they are answered.
    """

    def __init__(self) -> None:
        self.credit = Credit()
        self.open: dict[int, OpenCall] = {}
        self.questions: dict[int, OpenQuestion] = {}
        self.resting: dict[int, OpenCall] = {}
        self.cancelled: dict[int, int] = {}

    def answered(self, number: int, failure: Failure | None, patience_s: float) -> tuple[OpenCall | None, float | None]:
        """An answer has come: to which call, if somebody waits for it, and after which time that is to be asked again,
        if it is."""
        call = self.open.pop(number, None)
        if call is None:
            if number in self.cancelled:
                self.credit.give(self.cancelled.pop(number))
            return None, None
        if failure is not None:
            pause_s = call.again_s(failure, patience_s)
            if pause_s is not None:
                self.resting[call.number] = call
                return call, pause_s
        self.credit.give(call.nbytes)
        return call, None

    def forget(self, pending: PendingReply) -> bool:
        """Nobody waits for it any more. Whether the server is to be told."""
        if not isinstance(pending, OpenCall):
            self.credit.leave(pending)
        elif self.resting.pop(pending.number, None) is not None:
            self.credit.give(pending.nbytes)
        elif self.open.pop(pending.invoke.number, None) is not None:
            self.cancelled[pending.invoke.number] = pending.nbytes
            return True
        return False

    def expired(self, now_s: float) -> list[OpenCall]:
        return [call for call in self.open.values() if call.expires_s is not None and call.expires_s < now_s]

    # --- connections

    def lost(self) -> tuple[list[OpenQuestion], bool]:
        """The connection is gone: what ends with it, and whether another one is wanted at once."""
        ended, self.questions = list(self.questions.values()), {}
        return ended, bool(self.open or self.credit.waiting)

    def renewed(self, limits: Limits) -> tuple[Sequence[int], Sequence[OpenCall], Sequence[OpenQuestion]]:
        """There is another one: numbers of what was cancelled meanwhile, and what is to be sent on it."""
        self.credit.limits = limits
        self.credit.forget_answered()  # what the server still keeps it sends again
        cancelled, self.cancelled = self.cancelled, {}
        for nbytes in cancelled.values():
            self.credit.give(nbytes)
        return list(cancelled), list(self.open.values()), list(self.questions.values())

    def failed(self) -> list[PendingReply]:
        """There is none to be had: all that waited."""
        calls = [*self.open.values(), *self.resting.values()]
        for nbytes in (*(call.nbytes for call in calls), *self.cancelled.values()):
            self.credit.give(nbytes)
        pending = [*calls, *self.questions.values(), *(room for room, _ in self.credit.waiting)]
        self.open, self.resting, self.questions, self.cancelled = {}, {}, {}, {}
        self.credit.waiting.clear()
        return pending
