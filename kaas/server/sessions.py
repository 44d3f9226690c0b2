"""The state that a server keeps of clients, their programs, and the requests for which these wait."""

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
from kaas.server.building.invocable_function import InvocableFunction
from kaas.wire import protocol
from kaas.wire.rpc.server_half import KeyOwner, Run, WaitingSession

ENTRY_BYTES, OUTPUT_BYTES, FAILURE_BYTES = 1 << 10, 64, 32 << 10
"""Bytes counted for a kept reply and for each of its outputs, besides their data; for a kept failure in all."""
LONGEST_NAME = 64
"""The longest session id and the longest idempotency key, in bytes."""


class ReplyChannel(Protocol):
    """The connection to one program; hashable. user: the name of its key."""

    @property
    def user(self) -> str: ...

    @property
    def leaving_bytes(self) -> int:
        """Bytes of large replies, on all channels of its user, that the user has not taken yet."""
        ...

    @property
    def leaving_result_bytes(self) -> int:
        """Bytes of results' large frames, likewise."""
        ...

    def send(self, header: protocol.FromServer, frames: Sequence[Any] = ()) -> bool:
        """Send without waiting. Return False if the connection has ended or ends now, as its peer does not read."""
        ...

    def drop(self) -> None:
        """Ignore all further messages of the program."""
        ...


class ClientRun(Run):
    """A request. Several programs may wait for a request with a key, also one after the other.

    Fields:
        client: the owner. key: the idempotency key, "" for none. function: the function's name in the request. label:
            the function's label.
        outputs: names of the outputs in the reply. nbytes: of all outputs; once there is a reply, of those in it.
            input_bytes: of the sent inputs.
        request: the pool's request, until there is a reply. frames: of the reply; failure: instead of a result.
            trace: the traceparent, if the first caller sent one.
        store: names under which outputs are stored instead of sent. remote: the function, if work follows its run.
            task: the work before the run. ends_s: the deadline on the loop's clock, for the work before and after.
        committed: its outputs or its durable reply are being stored. durable: the reply outlives the server.
        stored_bytes: of outputs that are stored instead of sent.
        bound: digest of the request, once it is known; only with a key. binding: the task that computes it for large
            inputs.
        moved_bytes: of the kTask's inputs, sent or made by a step, and of its outputs.
        cancelled: its callers were told so, and a request with its key is charged by itself.
        begun_s: arrival, on the loop's clock. steps_s: seconds of the steps around it, by stage.
    """

    client: ConnectedClient
    key: str
    function: str
    label: str
    outputs: tuple[str, ...]
    input_bytes: int
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
    cancelled: bool = False

    @property
    def final(self) -> bool:
        """True if a repeat gets the same reply; a failure with `retry_s` may run again."""
        return self.failure is None or self.failure.retry_s is None

    @property
    def kept_bytes(self) -> int:
        """Bytes that the kept reply counts."""
        if self.failure is not None:
            return FAILURE_BYTES
        return ENTRY_BYTES + OUTPUT_BYTES * len(self.frames) + self.nbytes

    @property
    def charge_key(self) -> str:
        """The key of its charge in the usage; "" for none."""
        return "" if self.bound is None or self.cancelled else self.bound.charge


@dataclass(slots=True, eq=False)
class ClientSession(WaitingSession):
    """A program of a client.

    Fields:
        tasks: running work on its other messages, by number. lost_s: when its connection ended, on the monotonic clock.
    """

    client: ConnectedClient
    channel: ReplyChannel
    id: str
    tasks: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    lost_s: float = 0.0

    @property
    def idle(self) -> bool:
        """True if the program waits for nothing."""
        return not (self.waits or self.tasks)


@dataclass(slots=True, eq=False)
class OpenCounts:
    """Number and bytes of a client's open requests of one kind.

    Fields:
        what: the kind, in words. alone: a single request may take any number of bytes.
    """

    what: str
    alone: bool = False
    count: int = 0
    nbytes: int = 0

    def check(self, client: ConnectedClient, nbytes: int) -> None:
        """Raise if the client may not open one more request of `nbytes`.

        Raises:
            QueueFull: it must wait. InvalidRequest: it is too large at any time.
        """
        limits = client.limits
        if self.count < limits.requests and self.nbytes + nbytes <= limits.credit_bytes:
            return
        if nbytes > limits.credit_bytes and not self.alone:
            message = f"this takes {nbytes} bytes, and client {client.name!r} may have {limits.credit_bytes} open"
            raise InvalidRequest(f"{message}: put large inputs as objects, and store outputs")
        if self.count or not self.alone:
            message = (
                f"client {client.name!r} has {self.count} {self.what} open, with {self.nbytes} bytes: it may have "
                f"{limits.requests} with {limits.credit_bytes} bytes, and this takes {nbytes}"
            )
            raise QueueFull(message, client=client.name, limit=limits.requests, queued=self.count)

    def take(self, nbytes: int) -> None:
        """Count one more open request."""
        self.count += 1
        self.nbytes += nbytes

    def give_back(self, nbytes: int) -> None:
        """Count one open request less."""
        self.count -= 1
        self.nbytes -= nbytes


@dataclass(slots=True, eq=False)
class ConnectedClient(KeyOwner[ClientRun]):
    """The owner of a key: all its programs together, and their open requests.

    Fields:
        finished: ended requests with a key. runs: those in flight, by key.
        requests: those whose reply is not received yet, with their inputs and outputs. storing: those whose outputs
            are being stored as objects. questions: other messages that take a while, with their frames; and inputs of
            requests with a known key, while they are hashed.
        sessions: by id, in the order of their last Hello.
    """

    name: str
    limits: protocol.Limits
    requests: OpenCounts = field(
        default_factory=lambda: OpenCounts("requests, unanswered or not received,"), kw_only=True
    )
    storing: OpenCounts = field(default_factory=lambda: OpenCounts("requests with outputs to be stored", alone=True))
    questions: OpenCounts = field(default_factory=lambda: OpenCounts("questions", alone=True))
    sessions: OrderedDict[str, ClientSession] = field(default_factory=OrderedDict)

    def check_replies_read(self, channel: ReplyChannel) -> None:
        """Raise if the client has not taken large replies yet: a client that does not read gets no more of them.

        Results have credit until they are received, but a client may say so too early. Twice the credit: results of a
        connection that broke may wait there while they are sent again.

        Raises:
            QueueFull
        """
        limits, replies_bytes, results_bytes = self.limits, channel.leaving_bytes, channel.leaving_result_bytes
        if replies_bytes > limits.credit_bytes or results_bytes > 2 * limits.credit_bytes:
            left_bytes = replies_bytes + results_bytes
            message = f"client {self.name!r} does not take its replies: {left_bytes} bytes of them are not sent yet"
            raise QueueFull(message, client=self.name, limit=limits.requests, queued=self.requests.count)
