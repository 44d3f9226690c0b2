"""Messages between a pool and its peers: the first frame is a header, the frames after it hold its values.

A peer (a program, or an executor) sends PeerHello first. The pool replies with PoolWelcome or Refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from kaas.wire.specs import RunRecord

VERSION = 1
"""The version of these messages; a peer of another version is refused."""


class Address(msgspec.Struct, frozen=True):
    """The address of a pool in one of its epochs, and the keys for it.

    Fields:
        epoch: a new one for each process of the pool. node: where the pool runs. path: of its socket, for peers on that
            node. tcp: for all other peers; "" if no peer comes from other nodes. server_key: the pool's CURVE key,
            public. public_key, secret_key: the pair that lets a peer in; only peers that may come get it.
    """

    epoch: str
    node: str
    path: str
    tcp: str = ""
    server_key: bytes = b""
    public_key: bytes = b""
    secret_key: bytes = b""


# --- the attachments of an invocation, in the order in which it names them


class Named(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """An object by its key in caches: 28 bytes of an ObjectRef, or bytes that a pool gave it."""

    key: bytes

    def binary(self) -> bytes:
        return self.key


class Framed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A value in one of the frames after the header. frame: its position among all frames; the header's is 0."""

    frame: int


class Block(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A value in shared memory (`wire.connections.shared_memory`): part of a file that process pid has open as fd."""

    pid: int
    fd: int
    offset_bytes: int
    nbytes: int


class Filed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A value in memory whose file came with the message, as one of its last frames.

    Fields:
        file: 0 for the last frame, 1 for the one before.
    """

    file: int
    offset_bytes: int
    nbytes: int


class DeviceFiled(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A value in device memory that the pool holds, whose file came with the message, as of `Filed`.

    Fields:
        whole_bytes: of the memory.
    """

    file: int
    offset_bytes: int
    nbytes: int
    whole_bytes: int


Attachment = Named | Framed | Block
ExecutorAttachment = Named | Framed | Filed | DeviceFiled
"""An attachment of a message to an executor."""


class ObjectParts(NamedTuple):
    """An object that came over the connection: its value or, of a tuple of constants, that of each entry.

    Fields:
        frames: all frames after the header; the items point into them.
    """

    items: Sequence[Framed | Filed | DeviceFiled]
    frames: Sequence[Any]


# --- greetings


class PeerHello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first message of a peer. role: "client" (a program) or "executor". name: a session's id, or a worker's number
    as text.

    Fields:
        incarnation: names this connection of the peer; messages of an earlier one of the same name are ignored.
        pid: the peer's number of itself, which another PID namespace does not know.
        probe: memory of the peer with the content of the second frame, by which the pool sees that it can read it.
    """

    version: int
    role: str
    name: str
    incarnation: str
    pid: int
    probe: Block | None = None


class PoolWelcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """epoch: the pool's, as in its Address. shares: the pool can read this peer's Blocks."""

    epoch: str
    shares: bool


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The pool refuses this peer. Frame: the error (`kaas.wire.error_codec`)."""


# --- program to pool


class AnnounceFunction(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Frames: an encoded FunctionSpec, and its kTask's bytes. There is no reply; a second one changes nothing."""


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Run an invocation. Frames: the encoded Invocation, then those that `attached` points to.

    `number` is the program's own, a new one for each; sent once more (after the pool's end, say) it is the same
    request. The reply is CallResult or CallFailure.
    """

    number: int
    attached: Sequence[Attachment] = ()


class CancelCall(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """No caller waits for this Submit or PoolQuery any more. The only reply is Release."""

    number: int


class PoolQuery(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Any other call of the pool. Frames: depend on it (`kaas.pool.program_sessions`). The reply is CallResult or
    CallFailure.

    `what` is "status", "stats", "trace", "pardon", "share", "upkeep" (a cache command), "stop" (the frame b"0" replies
    that the pool goes on, since it is a server's) or "hold".
    """

    number: int
    what: str
    attached: Sequence[Attachment] = ()


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """This session no longer names these objects. There is no reply."""

    keys: Sequence[bytes]


# --- pool to program


class CallResult(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Frames: of a Submit one for each output, in declared order. best_effort: as of `Future.best_effort`."""

    number: int
    best_effort: bool = False


class CallFailure(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Frame: the error (`kaas.wire.error_codec`).

    `held` says that the request still runs: its Blocks must stay until Release.
    """

    number: int
    held: bool = False


class Release(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A request that ended with `held`, or that was cancelled, no longer runs."""

    number: int


# --- pool to executor; numbers are the pool's, a new one for each request


class RegisterFunction(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """A function that later messages name. Frames: an encoded FunctionSpec, and its kTask's bytes."""


class RunInvocation(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Run an invocation. Frames: the encoded Invocation, then those that `attached` points to.

    `keep` has keys of outputs that stay on the device, as the Invocation lists them. With `deferred` the outputs do not
    come in frames but as a deferred result, which is collected. `victims` has keys of objects that leave the device
    first, as far as the invocation needs room. Its kernels run on `sms` SMs, 0 for all: those of `share`.
    """

    number: int
    slot: int
    keep: Sequence[bytes] = ()
    deferred: bool = False
    attached: Sequence[ExecutorAttachment] = ()
    victims: Sequence[bytes] = ()
    share: str = ""
    sms: int = 0


class CacheCommand(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """Frames: an encoded CacheCommandSpec, then those that `attached` points to."""

    number: int
    attached: Sequence[ExecutorAttachment] = ()


class CacheDecision(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """Frames: an encoded CacheDecisionSpec, then those that `attached` points to."""

    number: int
    attached: Sequence[ExecutorAttachment] = ()


class WriteBackOutput(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """Write kept outputs back. WrittenBack announces each of them before the ExecutorReply."""

    number: int
    keys: Sequence[bytes]


class Discard(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """Forget kept outputs."""

    number: int
    keys: Sequence[bytes]


class ProvideObjects(msgspec.Struct, frozen=True, array_like=True, tag=36):
    """The reply to RequestObjects where objects do not travel by Ray. Frames: those that objects point to.

    Fields:
        objects: for each attachment of the request its values, one for each entry if it is a tuple of constants.
        error: the objects cannot be had; the second frame is the error.
    """

    number: int
    objects: Sequence[Sequence[Framed | Filed | DeviceFiled]] = ()
    error: bool = False


class ForgetFunction(msgspec.Struct, frozen=True, array_like=True, tag=37):
    """A function that later messages do not name, unless it is registered again."""

    key: str


class ForgetClient(msgspec.Struct, frozen=True, array_like=True, tag=38):
    """A client whose name another owner gets: later messages with the name are of a client without a past."""

    client: str


# --- executor to pool


class ExecutorReply(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """The reply to a run, a cache command or any other request of the pool.

    Fields:
        lost: why the device is lost, "" if it is not. failed: the frame is an error. deferred: the number under which
            the outputs wait to be collected; None if the frames are the outputs, in declared order but for those that
            stay on the device.
    """

    number: int
    record: RunRecord | None = None
    lost: str = ""
    failed: bool = False
    deferred: int | None = None


class RequestObjects(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """The cache lacks objects that a request names: the pool sends all that it names, by Ray or by ProvideObjects."""

    number: int


class WrittenBack(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """A kept output was written back. deferred: the number under which its array waits to be collected."""

    key: bytes
    deferred: int


class Orphaned(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """A run that was in a slot when this epoch of the pool began has ended. record: None if it failed."""

    slot: int
    record: RunRecord | None = None


FromPeer = (
    PeerHello
    | AnnounceFunction
    | Submit
    | CancelCall
    | PoolQuery
    | Drop
    | ExecutorReply
    | RequestObjects
    | WrittenBack
    | Orphaned
)
ToPeer = (
    PoolWelcome
    | Refused
    | CallResult
    | CallFailure
    | Release
    | RegisterFunction
    | RunInvocation
    | CacheCommand
    | CacheDecision
    | WriteBackOutput
    | Discard
    | ProvideObjects
    | ForgetFunction
    | ForgetClient
)

encode = msgspec.msgpack.Encoder().encode
decode_from_peer = msgspec.msgpack.Decoder(FromPeer).decode
decode_to_peer = msgspec.msgpack.Decoder(ToPeer).decode
