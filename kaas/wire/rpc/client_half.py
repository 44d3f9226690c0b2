"""The calls of one program: open calls, calls to be sent again after a pause, and calls that no caller waits for."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, Protocol, TypeVar


class CallState(Enum):
    """The state of a call."""

    OPEN = "sent, or to be sent as soon as there is a connection"
    RESTING = "the server was busy: to be sent again after a pause"
    ABANDONED = "no caller waits for a reply; the server may still read what the call holds"
    ENDED = "has its reply, or was given up"


class CallEvent(Enum):
    """An event of a call. The methods of `ClientHalf` have the same names in lower case."""

    REPLIED = "its reply has come"
    HELD = "its reply has come, and the server still reads what the call holds"
    PUT_OFF = "the server asks for it again later"
    REPEAT = "the pause is over"
    ABANDON = "its caller no longer waits"
    RELEASED = "the server no longer reads what the call holds"
    LOST = "the connection has ended"
    RENEWED = "there is another connection"
    FAILED = "there will be no other connection"


_S, _E = CallState, CallEvent
TRANSITIONS: dict[tuple[CallState, CallEvent], frozenset[CallState]] = {
    (_S.OPEN, _E.REPLIED): frozenset({_S.ENDED}),
    (_S.OPEN, _E.HELD): frozenset({_S.ABANDONED}),
    (_S.OPEN, _E.PUT_OFF): frozenset({_S.RESTING}),
    (_S.OPEN, _E.ABANDON): frozenset({_S.ABANDONED, _S.ENDED}),  # ENDED: it holds nothing
    (_S.OPEN, _E.LOST): frozenset({_S.OPEN, _S.ENDED}),  # ENDED: one that is not to be repeated
    (_S.OPEN, _E.RENEWED): frozenset({_S.OPEN}),  # sent again, under the same number
    (_S.RESTING, _E.REPEAT): frozenset({_S.OPEN}),  # under a new number: the old one has its reply
    (_S.RESTING, _E.ABANDON): frozenset({_S.ENDED}),
    (_S.ABANDONED, _E.REPLIED): frozenset({_S.ENDED}),
    (_S.ABANDONED, _E.HELD): frozenset({_S.ABANDONED}),
    (_S.ABANDONED, _E.RELEASED): frozenset({_S.ENDED}),
    (_S.ABANDONED, _E.RENEWED): frozenset({_S.ENDED}),
    (_S.OPEN, _E.FAILED): frozenset({_S.ENDED}),
    (_S.RESTING, _E.FAILED): frozenset({_S.ENDED}),
    (_S.ABANDONED, _E.FAILED): frozenset({_S.ENDED}),
}
"""(state, event) -> the states that may follow. Any other event leaves a call where it stands."""


class Repeatable(Protocol):
    """A call as this module reads it."""

    @property
    def repeatable(self) -> bool:
        """True if the call is sent again on the next connection; else it ends with the one that it was sent on."""
        ...


C = TypeVar("C", bound=Repeatable)
H = TypeVar("H")


class ClientHalf(Generic[C, H]):
    """Events in, calls to be sent or ended out. The adapter guards an object of this class by its lock.

    C is a call; H is what a call holds until the server's last word: bytes of credit, or leases of shared memory.

    Fields:
        open: OPEN calls by number, in the order in which they were begun. resting: RESTING calls by their first number.
        abandoned: what ABANDONED calls hold, by number.
    """

    __slots__ = ("abandoned", "open", "resting")

    def __init__(self) -> None:
        self.open: dict[int, C] = {}
        self.resting: dict[int, C] = {}
        self.abandoned: dict[int, H] = {}

    def state(self, number: int) -> CallState:
        """Return the state of the call that has, or first had, a number."""
        if number in self.open:
            return CallState.OPEN
        if number in self.resting:
            return CallState.RESTING
        return CallState.ABANDONED if number in self.abandoned else CallState.ENDED

    def calls(self) -> list[C]:
        """Return the calls that are open or rest."""
        return [*self.open.values(), *self.resting.values()]

    # --- one call

    def begin(self, number: int, call: C) -> None:
        """Open a call under a new number. The adapter sends it if there is a connection."""
        self.open[number] = call

    def replied(self, number: int) -> tuple[C | None, H | None]:
        """Return the call if it was open, and what it held if it was abandoned; (None, None) if it had a reply."""
        return self.open.pop(number, None), self.abandoned.pop(number, None)

    def held(self, number: int, holding: Callable[[C], H]) -> C | None:
        """Return the call if it was open, and keep what it holds, as `holding` returns it, until `released`."""
        call = self.open.pop(number, None)
        if call is not None:
            self.abandoned[number] = holding(call)
        return call

    def put_off(self, number: int, first: int) -> C | None:
        """Let an open call rest under its first number, and return it; None if it was not open."""
        call = self.open.pop(number, None)
        if call is not None:
            self.resting[first] = call
        return call

    def repeat(self, first: int, number: int) -> C | None:
        """Open a resting call again under a new number, and return it; None if it was abandoned meanwhile."""
        call = self.resting.pop(first, None)
        if call is not None:
            self.open[number] = call
        return call

    def abandon(self, number: int, first: int, holding: H | None) -> tuple[C | None, bool]:
        """Return the call if it had not ended, and True if the adapter has to send its cancellation."""
        call = self.open.pop(number, None)
        if call is None:
            return self.resting.pop(first, None), False
        if holding is not None:
            self.abandoned[number] = holding
        return call, True

    def released(self, number: int) -> H | None:
        """Return what the call held."""
        return self.abandoned.pop(number, None)

    # --- the connection

    def lost(self) -> list[C]:
        """Return the calls that end with the connection, since they are not repeatable."""
        ended = [number for number, call in self.open.items() if not call.repeatable]
        return [self.open.pop(number) for number in ended]

    def renewed(self) -> tuple[dict[int, H], list[C]]:
        """Return what abandoned calls held, by number, and the calls that are to be sent, in their order.

        The same server ends abandoned calls when they are cancelled once more; another server knows none of them.
        """
        abandoned, self.abandoned = self.abandoned, {}
        return abandoned, list(self.open.values())

    def failed(self) -> tuple[list[C], list[H]]:
        """Return all calls that had no reply, and what abandoned ones held: nothing is left."""
        calls, held = self.calls(), list(self.abandoned.values())
        self.open, self.resting, self.abandoned = {}, {}, {}
        return calls, held
