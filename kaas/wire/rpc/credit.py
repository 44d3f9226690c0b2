"""How much a client may have open at its server, as far as the client itself knows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kaas.futures import PendingReply
from kaas.wire.protocol import Limits

PART = 8
"""Answers are acknowledged before the next request when they are this part of what may be open."""


@dataclass(slots=True)
class Credit:
    """Numbers in, numbers out; the user of an object guards it.

    Fields:
        limits: None until the server has said them. requests, nbytes: of what is open. waiting: for room, in order.
    """

    limits: Limits | None = None
    requests: int = 0
    nbytes: int = 0
    waiting: deque[tuple[PendingReply, int]] = field(default_factory=deque)
    _answered: list[int] = field(default_factory=list)
    _answered_bytes: int = 0

    def fits(self, nbytes: int) -> bool:
        limits = self.limits
        return limits is not None and self.requests < limits.requests and self.nbytes + nbytes <= limits.credit_bytes

    def take(self, nbytes: int) -> bool:
        """Whether it had room; then that is taken. No call overtakes those that wait."""
        if self.waiting or not self.fits(nbytes):
            return False
        self.requests += 1
        self.nbytes += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """Of one that is open no more."""
        self.requests -= 1
        self.nbytes -= nbytes

    def granted(self) -> list[tuple[PendingReply, int]]:
        """Those that waited and have room now, which is taken."""
        granted = []
        while self.waiting and self.fits(self.waiting[0][1]):
            room, nbytes = self.waiting.popleft()
            self.requests += 1
            self.nbytes += nbytes
            granted.append((room, nbytes))
        return granted

    def hopeless(self) -> list[tuple[PendingReply, int]]:
        """Those that waited for more than there will ever be, and wait no more."""
        limits = self.limits
        hopeless = [] if limits is None else [entry for entry in self.waiting if entry[1] > limits.credit_bytes]
        for entry in hopeless:
            self.waiting.remove(entry)
        return hopeless

    def leave(self, room: PendingReply) -> None:
        """It waits no more."""
        self.waiting = deque(entry for entry in self.waiting if entry[0] is not room)

    def renew(self, limits: Limits) -> None:
        """A server that was met (again) grants so much. What it still keeps it sends again."""
        self.limits = limits
        self.forget_answered()

    # --- acknowledging

    def answered(self, number: int, nbytes: int = 0) -> bool:
        """An answer has come, which the server keeps until it hears so. Whether it is the first that it has not."""
        self._answered.append(number)
        self._answered_bytes += nbytes
        return len(self._answered) == 1

    def due(self) -> tuple[int, ...]:
        """The answers to be acknowledged before the next request, if it is time."""
        answered, limits = len(self._answered), self.limits
        if not answered or limits is None:
            return ()
        if (
            answered * PART < limits.requests
            and self._answered_bytes * PART < limits.credit_bytes
            and self.requests + answered <= limits.requests
            and self.nbytes + self._answered_bytes <= limits.credit_bytes
        ):
            return ()
        return self.all_answered()

    def all_answered(self) -> tuple[int, ...]:
        numbers = tuple(self._answered)
        self.forget_answered()
        return numbers

    def forget_answered(self) -> None:
        self._answered.clear()
        self._answered_bytes = 0
