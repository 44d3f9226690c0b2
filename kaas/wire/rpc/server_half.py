"""The waits of sessions for runs: each call has one run, each run one reply, and each wait gets that reply once.

A *run* is the work of a call. Calls with the same idempotency key share a run, also after its end, as long as its reply
is kept. A *wait* is one session's call, from its arrival until the session has acknowledged the reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from kaas.wire.rpc.idempotency_cache import IdempotencyCache


class WaitState(Enum):
    """The state of a session's wait for a reply."""

    RUNNING = "there is no reply yet"
    READY = "there is a reply, which is to be sent on the session's next connection"
    SENT = "the reply was sent on the session's newest connection, and is not acknowledged"
    CLOSED = "acknowledged, or the session gets no reply on this number"


class WaitEvent(Enum):
    """An event of a wait. The methods of `ServerHalf` have the same names in lower case."""

    ENDED = "its run has a reply"
    CANCEL = "its session cancels it: the reply says so"
    RECEIVED = "its session has acknowledged the reply"
    GREETED = "its session has another connection"
    LOST = "its session has no connection"
    FORGET = "its session has ended"
    WITHDRAW = "another run replies to its call, or the call is refused: no reply comes on this wait"


_S, _E = WaitState, WaitEvent
TRANSITIONS: dict[tuple[WaitState, WaitEvent], frozenset[WaitState]] = {
    (_S.RUNNING, _E.ENDED): frozenset({_S.SENT, _S.READY, _S.CLOSED}),  # CLOSED: found again by its key
    (_S.RUNNING, _E.CANCEL): frozenset({_S.SENT, _S.READY, _S.RUNNING}),  # RUNNING: its run is committed
    (_S.RUNNING, _E.FORGET): frozenset({_S.CLOSED}),
    (_S.RUNNING, _E.WITHDRAW): frozenset({_S.CLOSED}),
    (_S.READY, _E.GREETED): frozenset({_S.SENT, _S.READY}),  # READY: the connection has ended already
    (_S.READY, _E.RECEIVED): frozenset({_S.CLOSED}),  # it came through before the connection ended
    (_S.READY, _E.FORGET): frozenset({_S.CLOSED}),
    (_S.READY, _E.LOST): frozenset({_S.READY, _S.CLOSED}),  # CLOSED: found again by its key
    (_S.SENT, _E.GREETED): frozenset({_S.SENT, _S.READY}),  # sent again
    (_S.SENT, _E.RECEIVED): frozenset({_S.CLOSED}),
    (_S.SENT, _E.LOST): frozenset({_S.READY, _S.CLOSED}),
    (_S.SENT, _E.FORGET): frozenset({_S.CLOSED}),
}
"""(state, event) -> the states that may follow. Any other event leaves a wait where it stands."""


class Run(msgspec.Struct, eq=False, kw_only=True):
    """The run of one or several calls. An adapter's run is a subclass that has the work.

    Fields:
        client: the owner of the run and of its key. key: the idempotency key by which other calls find the run; "" if
            it has none. nbytes: once there is a reply, the bytes that its waits take of the credit.
        waits: of sessions that have no reply yet. done: there is a reply. durable: the reply is kept on disk too.
        committed: its effect is being kept, so that it is too late to cancel it: it goes on without a caller.
    """

    client: KeyOwner[Any]
    key: str = ""
    nbytes: int = 0
    waits: list[Wait] = []
    done: bool = False
    durable: bool = False
    committed: bool = False

    @property
    def final(self) -> bool:
        """Return True if later calls with the key get the same reply; False if they run again."""
        return True

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that the reply takes in the idempotency cache."""
        return 0


class Wait(msgspec.Struct, eq=False):
    """A session's call.

    Fields:
        nbytes: the part of its client's credit that it takes. sent: the channel on which its reply was sent last; None
            if the reply was not sent, or was lost with its channel.
    """

    session: WaitingSession
    number: int
    run: Any
    nbytes: int
    sent: Any = None

    @property
    def state(self) -> WaitState:
        if self.session.waits.get(self.number) is not self:
            return WaitState.CLOSED
        if not self.run.done:
            return WaitState.RUNNING
        return WaitState.SENT if self.sent is self.session.channel and not self.session.lost else WaitState.READY


class Account(Protocol):
    """The credit of a client."""

    nbytes: int

    def take(self, nbytes: int) -> None: ...

    def give_back(self, nbytes: int) -> None: ...


R = TypeVar("R", bound=Run)


@dataclass(slots=True, eq=False)
class KeyOwner(Generic[R]):
    """A client of the server, over all of its sessions: the owner of idempotency keys.

    Fields:
        finished: runs with a key that have ended. runs: those in progress, by key. requests: credit of the waits.
    """

    finished: IdempotencyCache[R] = field(kw_only=True)
    requests: Account = field(kw_only=True)
    runs: dict[str, R] = field(default_factory=dict, kw_only=True)

    def known(self, key: str) -> R | None:
        """Return the run of a key, in progress or ended; None if there is none, or no key."""
        return (self.runs.get(key) or self.finished.get(key)) if key else None


@dataclass(slots=True, eq=False)
class WaitingSession:
    """A program, over all of its connections.

    Fields:
        channel: its newest connection. waits: by its own numbers. lost: it has no connection at the moment.
    """

    client: KeyOwner[Any]
    channel: Any
    waits: dict[int, Wait] = field(default_factory=dict, kw_only=True)
    lost: bool = field(default=False, kw_only=True)


class ServerHalf(Generic[R]):
    """Take events; return waits whose reply is to be sent, and runs that are to be stopped. For one thread.

    The adapter calls `sent` for each reply that it has sent.
    """

    def wait(self, session: WaitingSession, number: int, run: R, nbytes: int) -> Wait | None:
        """Add a session's wait for a run, which takes nbytes of credit. Return the wait if the run has its reply."""
        wait = session.waits[number] = Wait(session, number, run, nbytes)
        session.client.requests.take(nbytes)
        if run.done:
            return wait
        run.waits.append(wait)
        return None

    def ended(self, run: R) -> list[Wait]:
        """End a run. Return the waits whose reply is to be sent; the adapter sends it, then calls `settle` for them."""
        run.done = True
        waits, run.waits = run.waits, []
        return waits

    def settle(self, run: R, waits: Sequence[Wait], now_s: float) -> None:
        """Keep the reply of an ended run if later calls may find it by its key, and charge each wait for the reply.

        Close the waits of sessions without a connection that find the reply by its key: they ask again.
        """
        client, key = run.client, run.key
        if client.runs.get(key) is run:
            del client.runs[key]
            if (waits or run.durable) and run.final:
                client.finished.add(key, run, run.kept_bytes, now_s)
        for wait in waits:
            client.requests.nbytes += run.nbytes - wait.nbytes
            wait.nbytes = run.nbytes
            if wait.session.lost and self.kept(run):
                self._close(wait)

    def sent(self, wait: Wait, *, through: bool) -> None:
        """Note that a reply was sent on its session's channel. through: False if the channel has ended."""
        wait.sent = wait.session.channel if through else None

    def greeted(self, session: WaitingSession, channel: Any) -> list[Wait]:
        """Give a session a connection, its first or another. Return the waits whose reply is to be sent on it."""
        session.channel, session.lost = channel, False
        return [wait for wait in session.waits.values() if wait.run.done and wait.sent is not channel]

    def received(self, session: WaitingSession, numbers: Iterable[int]) -> list[R]:
        """Close the waits whose replies a session acknowledges, and return their runs.

        A number that comes again, or that has no reply yet, changes nothing.
        """
        runs = []
        for number in numbers:
            wait = session.waits.get(number)
            if wait is not None and wait.run.done:
                runs.append(wait.run)
                self._close(wait)
        return runs

    def cancel(self, session: WaitingSession, number: int, cancelled: R) -> tuple[Wait | None, R | None]:
        """Cancel a session's call. cancelled: a run that has ended, with the reply that the session gets.

        Return the wait whose reply is to be sent, None if it has a reply already or its run is committed; and the run
        if no session waits for it any longer.
        """
        wait = session.waits.get(number)
        if wait is None or wait.run.done or wait.run.committed:
            return None, None
        run = wait.run
        run.waits.remove(wait)
        wait.run = cancelled
        session.client.requests.nbytes -= wait.nbytes
        wait.nbytes = 0
        return wait, None if run.waits else run

    def lost(self, session: WaitingSession) -> None:
        """Take a session's connection away. Close waits whose reply it finds again by a key; they take no credit."""
        session.lost = True
        for wait in [wait for wait in session.waits.values() if self.kept(wait.run)]:
            self._close(wait)

    def forget(self, session: WaitingSession) -> list[R]:
        """Close all waits of a session that has ended. Return the runs that no caller needs any longer."""
        return [run for wait in list(session.waits.values()) if (run := self._close(wait)) is not None]

    def withdraw(self, wait: Wait) -> bool:
        """Close a wait that has no reply. Return False if it has one, for example as it was cancelled, or is closed."""
        if wait.state is not WaitState.RUNNING:
            return False
        self._close(wait)
        return True

    def kept(self, run: R) -> bool:
        """Return True if a later call with the run's key finds its reply."""
        return run.client.finished.get(run.key) is run

    def _close(self, wait: Wait) -> R | None:
        """Remove a wait, and return its run if the run goes on, is not committed and has no other caller."""
        session, run = wait.session, wait.run
        del session.waits[wait.number]
        session.client.requests.give_back(wait.nbytes)
        if run.done:
            return None
        run.waits.remove(wait)
        return None if run.waits or run.committed else run
