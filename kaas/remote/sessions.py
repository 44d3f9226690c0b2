"""What a gateway remembers of clients, of their programs, and of what these wait for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from kaas.errors import InvalidRequest, QueueFull
from kaas.pool.records import Request
from kaas.pool.transport import Call
from kaas.remote import wire
from kaas.remote.finished import Finished
from kaas.remote.making import RemoteFunction

LONGEST_NAME = 64
"""Bytes of a session's id, and of a key of idempotency."""


class Channel(Protocol):
    """The way to one program; hashable. user: the name of its key."""

    @property
    def user(self) -> str: ...

    @property
    def leaving_bytes(self) -> int:
        """Of what its user, on all channels, was answered and has not taken yet; little answers do not count."""
        ...

    def send(self, header: wire.FromServer, frames: Sequence[Any] = ()) -> bool:
        """Waits for nobody. False: the connection has ended, or does now, since nobody reads."""
        ...

    def drop(self) -> None:
        """Nothing of what it sends is wanted any more."""
        ...


class Run(msgspec.Struct, eq=False):
    """A request, of whoever asked for it; of one with a key, there may be several, one after the other too.

    Fields:
        client: whose. key: "" for none. asked: the function, as it was named. label: of it.
        outputs: names of those that come. nbytes: of all, of those that come once there is an answer. input_bytes:
            that came.
        request: the pool's, until there is an answer. waits: who has none yet. done: there is one: frames, or failure
            instead. trace: the traceparent of it, if who asked first had one.
        store: names under which outputs are put instead of coming. remote: the function, if something is to be done
            after it. task: what is done before it. ends_s: its deadline, for what is done before and after.
        lasting: its answer is there in the next life of the server too.
        stored_bytes: of outputs that are put instead of coming.
        moved_bytes: of the kTask's inputs that came, or that a step made of what came, and of its outputs.
    """

    client: Client
    key: str
    asked: str
    label: str
    outputs: tuple[str, ...]
    input_bytes: int
    nbytes: int
    request: Request | None = None
    waits: list[Wait] = []
    done: bool = False
    failure: wire.Failure | None = None
    frames: Sequence[Any] = ()
    trace: str = ""
    store: dict[str, str] = {}
    remote: RemoteFunction | None = None
    task: asyncio.Task[Call] | None = None
    ends_s: float | None = None
    stored_bytes: int = 0
    lasting: bool = False
    moved_bytes: int = 0


class Wait(msgspec.Struct, eq=False):
    """What a program has asked for and not yet received. nbytes: of its client's credit that it takes. sent: on which
    channel its answer was sent last."""

    session: Session
    number: int
    run: Run
    nbytes: int
    sent: Channel | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A program. channel: its newest one. tasks: questions of other kinds that take a while.

    Fields:
        lost_s: since when it cannot be reached, None if it can.
    """

    id: str
    client: Client
    channel: Channel
    waits: dict[int, Wait] = field(default_factory=dict)
    tasks: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    lost_s: float | None = None

    @property
    def idle(self) -> bool:
        return not self.waits and not self.tasks


@dataclass(slots=True, eq=False)
class Client:
    """A key's owner: all its programs together, and what they take.

    Fields:
        finished: requests with a key that have ended. runs: those in progress, by key.
        open: what is not received yet. held_bytes: of inputs and outputs. storing_bytes: of outputs that are to be
            stored. asked, asked_bytes: questions of other kinds, and what came with them.
        sessions: by id, the one that was greeted last at the end.
    """

    name: str
    limits: wire.Limits
    finished: Finished[Run]
    runs: dict[str, Run] = field(default_factory=dict)
    open: int = 0
    held_bytes: int = 0
    storing_bytes: int = 0
    asked: int = 0
    asked_bytes: int = 0
    sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)

    def check(self, nbytes: int) -> None:
        """Whether one more request may be open that takes so many bytes.

        Raises:
            QueueFull; InvalidRequest: it never may.
        """
        limits = self.limits
        if self.open >= limits.requests:
            message = (
                f"client {self.name!r} has {self.open} requests open, unanswered or not received: no more than it may"
            )
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.open)
        if nbytes > limits.credit_bytes:
            message = f"this request takes {nbytes} bytes, and client {self.name!r} may have {limits.credit_bytes} open"
            raise InvalidRequest(f"{message}: put what is large, and store outputs")
        if self.held_bytes + nbytes > limits.credit_bytes:
            message = (
                f"client {self.name!r} may have {limits.credit_bytes} bytes of inputs and outputs open: it has "
                f"{self.held_bytes}, and this request takes {nbytes}"
            )
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.open)

    def check_asked(self, nbytes: int) -> None:
        """Whether one more question that takes a while may be open, with so many bytes.

        Raises:
            QueueFull
        """
        limits = self.limits
        if self.asked >= limits.requests or (self.asked and self.asked_bytes + nbytes > limits.credit_bytes):
            message = f"client {self.name!r} has {self.asked} questions open, with {self.asked_bytes} bytes"
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.asked)

    def check_storing(self, nbytes: int) -> None:
        """Whether so many bytes more may be on their way into its objects: as many as take credit, or one's alone.

        Raises:
            QueueFull
        """
        limits = self.limits
        if self.storing_bytes and self.storing_bytes + nbytes > limits.credit_bytes:
            message = f"client {self.name!r} has {self.storing_bytes} bytes of outputs on their way to be stored"
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.open)

    def check_taken(self, leaving_bytes: int) -> None:
        """Whether it may have answers that are large: who asks and does not read gets no more.

        Raises:
            QueueFull
        """
        limits = self.limits
        if leaving_bytes > limits.credit_bytes:
            message = (
                f"{leaving_bytes} bytes that client {self.name!r} has asked for are not sent yet: it does not take them"
            )
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.open)

    def take(self, nbytes: int) -> None:
        self.open += 1
        self.held_bytes += nbytes

    def give_back(self, nbytes: int) -> None:
        self.open -= 1
        self.held_bytes -= nbytes
