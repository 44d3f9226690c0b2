"""Calls that wait for credit: room at the server for their inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from kaas.client.open_calls import OpenCall, too_large
from kaas.errors import DeadlineExceeded, RequestTooLarge
from kaas.futures import PendingReply
from kaas.wire import protocol
from kaas.wire.connections.reply_reader import ReplyReader
from kaas.wire.connections.timer_thread import TimerThread
from kaas.wire.rpc.credit import Credit


class CreditQueue:
    """The calls of a client that wait for credit. Each waits for a `PendingReply` that ends once credit is taken.

    Any thread may call the methods.
    """

    def __init__(
        self,
        credit: Credit[PendingReply],
        receiver: ReplyReader[protocol.FromServer],
        timer: TimerThread,
        enter: Callable[[OpenCall, PendingReply], object],
        forget: Callable[[PendingReply], None],
    ) -> None:
        """Share the client's credit, which the receiver's lock guards.

        `enter` sends a call for which credit has been taken; `forget` has a call that no longer waits `Credit.leave`.
        """
        self._credit = credit
        self._receiver = receiver
        self._timer = timer
        self._enter = enter
        self._forget = forget

    def wait(self, room: PendingReply, deadline_s: float | None) -> None:
        """Wait until credit has been taken, for a call that is to be submitted then.

        Raises:
            DeadlineExceeded: no credit within deadline_s. Unreachable: the server does not reply.
            RequestTooLarge: the call needs more credit than the client has in total.
        """
        self._receiver.wait(room, deadline_s)
        if self._end(room):
            message = f"this client's open requests left no room within {deadline_s} s"
            raise DeadlineExceeded(message, deadline_s=deadline_s)
        if room.error is not None:
            raise room.error

    def submit_when(self, room: PendingReply, call: OpenCall) -> None:
        """Submit a call as soon as credit has been taken for it, and return at once."""
        call.when_ended(lambda: self._end(room))
        room.when_ended(lambda: self._has_room(room, call))
        if call.expires_s is not None:
            self._timer.after(max(0.0, call.expires_s - monotonic()), lambda: self._expire(room, call))

    def submit(self, room: PendingReply, call: OpenCall) -> None:
        """Send a call, now that credit has been taken for it.

        Raises:
            RequestTooLarge: an input exceeds the server's limit of one message.
        """
        limits = self._credit.limits
        if limits is not None:
            try:
                call.check(limits)
            except RequestTooLarge:
                self.leave(room)
                raise
        call.begun_s = monotonic()
        call.renumber(call.number)
        self._enter(call, room)

    def grant(self) -> None:
        """Take credit for the waiting calls in their order, as far as the credit suffices."""
        while self._credit.waiting or self._credit.promised:
            with self._receiver.lock:
                hopeless, _ = self._credit.hopeless(), self._credit.granted()
                promised = [*self._credit.promised]  # a thread that was interrupted here has not ended all of them
                for room in (*(room for room, _ in hopeless), *promised):
                    self._receiver.unwatch(room.number)
            for room, nbytes in hopeless:
                room.end(error=too_large(nbytes, self._credit.limits))
            for room in promised:
                room.end()
            declined = [room for room in promised if room.cancelled]
            if not declined:
                return
            with self._receiver.lock:
                for room in declined:
                    self._credit.leave(room)

    def leave(self, room: PendingReply) -> None:
        """End a wait for credit that no caller needs any more, and give back the credit if it was taken already."""
        room.end(cancelled=True)
        self._forget(room)

    def abandon(self, call: OpenCall) -> None:
        """Have a call that was interrupted wait for credit no more."""
        with self._receiver.lock:
            rooms = [*(room for room, _ in self._credit.waiting), *self._credit.promised]
        for room in rooms:
            if room.number == -call.number:
                self.leave(room)

    def _end(self, room: PendingReply) -> bool:
        """End a wait for credit. Return True if it had not ended before."""
        if room.ended or not room.end(cancelled=True):
            return False
        self._forget(room)
        return True

    def _has_room(self, room: PendingReply, call: OpenCall) -> None:
        if room.cancelled:
            return
        if room.error is not None:
            call.end(error=room.error)
        elif call.ended:
            self.leave(room)
        else:
            try:
                self.submit(room, call)
            except RequestTooLarge as error:
                call.end(error=error)

    def _expire(self, room: PendingReply, call: OpenCall) -> None:
        if self._end(room):
            call.end(error=call.expired())
