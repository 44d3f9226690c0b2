"""What a gateway remembers of clients, of their programs, and of what these wait for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from kaas.errors import InvalidRequest, QueueFull
from kaas.pool.core.requests import Request
from kaas.pool.executors.transport import WorkerCall
from kaas.server.binding import InvocationDigest
from kaas.server.building.remote_function import InvocableFunction
from kaas.wire import protocol
from kaas.wire.rpc.server_half import Caller, Run, WaitingSession

ENTRY_BYTES, OUTPUT_BYTES, FAILURE_BYTES = 1 << 10, 64, 32 << 10
"""What a reply that is kept takes beside its bytes, and each of its outputs does; a failure in all."""
LONGEST_NAME = 64
"""Bytes of a session's id, and of a key of idempotency."""


class ReplyChannel(Protocol):
    """The way to one program; hashable. user: the name of its key."""

    @property
    def user(self) -> str: ...

    @property
    def leaving_bytes(self) -> int:
        """Of what its user, on all channels, was answered and has not taken yet; little answers do not count."""
        ...

    def send(self, header: protocol.FromServer, frames: Sequence[Any] = ()) -> bool:
        """Waits for nobody. False: the connection has ended, or does now, since nobody reads."""
        ...

    def drop(self) -> None:
        """Nothing of what it sends is wanted any more."""
        ...


class ClientRun(Run):
    """A request, of whoever asked for it; of one with a key, there may be several, one after the other too.

    Fields:
        client: whose. key: "" for none. asked: the function, as it was named. label: of it.
        outputs: names of those that come. nbytes: of all, of those that come once there is an answer. input_bytes:
            that came.
        request: the pool's, until there is an answer. frames: of the answer; failure: instead. trace: the traceparent
            of it, if the first caller had one.
        store: names under which outputs are put instead of coming. remote: the function, if something is to be done
            after it. task: what is done before it. ends_s: its deadline, for what is done before and after.
        lasting: its answer is there in the next life of the server too.
        stored_bytes: of outputs that are put instead of coming.
        bound: what its key stands for, once that is known; only of one with a key. binding: finds it out, of one with
            large inputs.
        moved_bytes: of the kTask's inputs that came, or that a step made of what came, and of its outputs.
        begun_s: when it came, on the loop's clock. steps_s: seconds of the steps around it, by stage.
    """

    client: ConnectedClient
    key: str
    asked: str
    label: str
    outputs: tuple[str, ...]
    input_bytes: int
    nbytes: int
    request: Request | None = None
    failure: protocol.Failure | None = None
    frames: Sequence[Any] = ()
    trace: str = ""
    store: dict[str, str] = msgspec.field(default_factory=dict)
    remote: InvocableFunction | None = None
    task: asyncio.Task[WorkerCall] | None = None
    ends_s: float | None = None
    stored_bytes: int = 0
    moved_bytes: int = 0
    begun_s: float = 0.0
    steps_s: dict[str, float] = msgspec.field(default_factory=dict)
    bound: InvocationDigest | None = None
    binding: asyncio.Task[None] | None = None

    @property
    def caller(self) -> ConnectedClient:
        return self.client

    @property
    def idempotency_key(self) -> str:
        return self.key

    @property
    def final(self) -> bool:
        return self.failure is None or self.failure.retry_s is None

    @property
    def reply_bytes(self) -> int:
        return self.nbytes

    @property
    def kept_bytes(self) -> int:
        if self.failure is not None:
            return FAILURE_BYTES
        return ENTRY_BYTES + OUTPUT_BYTES * len(self.frames) + self.nbytes

    @property
    def charge_key(self) -> str:
        """By which the usage knows its charge; "" for none."""
        return "" if self.bound is None else self.bound.charge


@dataclass(slots=True, eq=False)
class ClientSession(WaitingSession):
    """A program.

    Fields:
        tasks: its questions of other kinds, which take a while. lost_s: since when it cannot be reached.
    """

    caller: ConnectedClient
    channel: ReplyChannel
    id: str
    tasks: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    lost_s: float = 0.0

    @property
    def client(self) -> ConnectedClient:
        return self.caller

    @property
    def idle(self) -> bool:
        return not self.waits and not self.tasks


@dataclass(slots=True, eq=False)
class OpenCounts:
    """What a client has open of one kind.

    Fields:
        what: it is, in words. alone: one may take any number of bytes, while there is no other.
    """

    what: str
    alone: bool = False
    count: int = 0
    nbytes: int = 0

    def check(self, client: ConnectedClient, nbytes: int) -> None:
        """Whether one more may be open that takes so many bytes.

        Raises:
            QueueFull; InvalidRequest: it never may.
        """
        limits = client.limits
        if self.count < limits.requests and self.nbytes + nbytes <= limits.credit_bytes:
            return
        if nbytes > limits.credit_bytes and not self.alone:
            message = f"this takes {nbytes} bytes, and client {client.name!r} may have {limits.credit_bytes} open"
            raise InvalidRequest(f"{message}: put what is large, and store outputs")
        if self.count or not self.alone:
            message = (
                f"client {client.name!r} has {self.count} {self.what} open, with {self.nbytes} bytes: it may have "
                f"{limits.requests} with {limits.credit_bytes} bytes, and this takes {nbytes}"
            )
            raise QueueFull(message, client=client.name, limit=limits.requests, queued=self.count)

    def take(self, nbytes: int) -> None:
        self.count += 1
        self.nbytes += nbytes

    def give_back(self, nbytes: int) -> None:
        self.count -= 1
        self.nbytes -= nbytes


@dataclass(slots=True, eq=False)
class ConnectedClient(Caller[ClientRun]):
    """A key's owner: all its programs together, and what they take.

    Fields:
        finished: requests with a key that have ended. runs: those in progress, by key.
        requests: what is not received yet, with its inputs and outputs. storing: those with outputs that are on their
            way into its objects. questions: of other kinds, that take a while, with what came with them.
        sessions: by id, the one that was greeted last at the end.
    """

    name: str
    limits: protocol.Limits
    requests: OpenCounts = field(
        default_factory=lambda: OpenCounts("requests, unanswered or not received,"), kw_only=True
    )
    storing: OpenCounts = field(default_factory=lambda: OpenCounts("requests with outputs to be stored", alone=True))
    questions: OpenCounts = field(default_factory=lambda: OpenCounts("questions", alone=True))
    sessions: OrderedDict[str, ClientSession] = field(default_factory=OrderedDict)

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
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.requests.count)
