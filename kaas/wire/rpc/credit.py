"""The requests and bytes that a client may have open at its server, as far as the client knows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kaas.wire.protocol import Limits

PART = 8
"""Replies are acknowledged before the next request when they are one of so many parts of the limits."""


W = TypeVar("W")


@dataclass(slots=True)
class Credit(Generic[W]):
    """The requests and bytes in use, and the calls that wait for room. W stands for a waiting call. The adapter guards
    an object of this class by its lock.

    Fields:
        limits: None until the server has sent them. requests, nbytes: in use. waiting: calls without room, in order.
        promised: the bytes of calls that waited, have room now and are not open yet.
    """

    limits: Limits | None = None
    requests: int = 0
    nbytes: int = 0
    waiting: deque[tuple[W, int]] = field(default_factory=deque)
    promised: dict[W, int] = field(default_factory=dict)
    _replied: list[int] = field(default_factory=list)
    _replied_bytes: int = 0

    def fits(self, nbytes: int) -> bool:
        """Return True if there is room for one more request."""
        limits = self.limits
        return limits is not None and self.requests < limits.requests and self.nbytes + nbytes <= limits.credit_bytes

    def take(self, nbytes: int) -> bool:
        """Take room for a request; return True if there was room. No call overtakes those that wait."""
        if self.waiting or not self.fits(nbytes):
            return False
        self.requests += 1
        self.nbytes += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """Give back the room of a request that has ended."""
        self.requests -= 1
        self.nbytes -= nbytes

    def granted(self) -> list[tuple[W, int]]:
        """Take room for requests that waited; return those that have room now."""
        granted = []
        while self.waiting and self.fits(self.waiting[0][1]):
            room, nbytes = self.waiting[0]
            self.requests += 1
            self.nbytes += nbytes
            self.promised[room] = nbytes
            self.waiting.popleft()  # last: an interrupted thread loses no room
            granted.append((room, nbytes))
        return granted

    def recount(self, others: Sequence[int]) -> None:
        """Count what is in use again: promised room, and the bytes of each of the other requests."""
        self.requests = len(others) + len(self.promised)
        self.nbytes = sum(others) + sum(self.promised.values())

    def hopeless(self) -> list[tuple[W, int]]:
        """Remove waiting requests that are larger than the limit; return them."""
        limits = self.limits
        hopeless = [] if limits is None else [entry for entry in self.waiting if entry[1] > limits.credit_bytes]
        for entry in hopeless:
            self.waiting.remove(entry)
        return hopeless

    def leave(self, room: W) -> None:
        """Remove a waiting request, or give back the room that was promised to it."""
        nbytes = self.promised.pop(room, None)
        if nbytes is not None:
            self.give(nbytes)
        self.waiting = deque(entry for entry in self.waiting if entry[0] is not room)

    def renew(self, limits: Limits) -> None:
        """Take the limits of a server that was connected to. Replies that the server still keeps it sends again."""
        self.limits = limits
        self._forget_replied()

    # --- acknowledging

    def replied(self, number: int, nbytes: int = 0) -> bool:
        """Note a reply, which the server keeps until it is acknowledged; return True if it is the only such reply."""
        self._replied.append(number)
        self._replied_bytes += nbytes
        return len(self._replied) == 1

    def due(self) -> tuple[int, ...]:
        """Return the replies to be acknowledged before the next request, if it is time."""
        replied, limits = len(self._replied), self.limits
        if not replied or limits is None:
            return ()
        if (
            replied * PART < limits.requests
            and self._replied_bytes * PART < limits.credit_bytes
            and self.requests + replied <= limits.requests
            and self.nbytes + self._replied_bytes <= limits.credit_bytes
        ):
            return ()
        return self.all_due()

    def all_due(self) -> tuple[int, ...]:
        """Return all replies to be acknowledged, and forget them."""
        numbers = tuple(self._replied)
        self._forget_replied()
        return numbers

    def _forget_replied(self) -> None:
        self._replied.clear()
        self._replied_bytes = 0
