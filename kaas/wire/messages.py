"""Messages between a pool and its peers: the first frame is a header, the frames after it hold its values.

A peer (a process of a client, or an executor) sends PeerHello first. The pool replies with PoolWelcome or Refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kaas.wire.specs import RunRecord

VERSION = 1
"""Of these messages; a peer that speaks another is refused."""


class Address(msgspec.Struct, frozen=True):
    """Where a pool can be reached in one of its lives, and the keys for it.

    Fields:
        life: a new one for each process of the pool. node: where it runs. path: of its socket, for who is there too.
        tcp: for all others; "" if nobody comes from other nodes. server_key: the pool's CURVE key, public. public_key,
            secret_key: the pair that lets a peer in; it is given only to who may come.
    """

    epoch: str
    node: str
    path: str
    tcp: str = ""
    server_key: bytes = b""
    public_key: bytes = b""
    secret_key: bytes = b""


# --- what stands beside an invocation, in the order in which it names them


class Named(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """An object by its identity, which caches know it by: 28 bytes of an ObjectRef, or those that a pool gave it."""

    key: bytes

    def binary(self) -> bytes:
        return self.key


class Framed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A value in one of the frames behind the header. frame: its position among all frames, that of the header is 0."""

    frame: int


class Block(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A value in shared memory (`wire.connections.shared_memory`): part of a file that process pid has open as fd."""

    pid: int
    fd: int
    offset_bytes: int
    nbytes: int


class Filed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A value in memory whose file came with the message, as one of its last frames. file: 0 for the last frame, 1 for
    the one before."""

    file: int
    offset_bytes: int
    nbytes: int


Attachment = Named | Framed | Block
ExecutorAttachment = Named | Framed | Filed
"""The same in messages to an executor."""


# --- greetings


class PeerHello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """From a peer. role: "client" or "executor". name: a session's id, or a worker's number as text.

    incarnation: which of its lines this is: what an earlier one of the same name sent or is sent counts no more.
    probe: memory of its own with what stands in the second frame: whether the pool can read it.
    """

    version: int
    role: str
    name: str
    incarnation: str
    pid: int
    probe: Block | None = None


class PoolWelcome(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """life: the pool's, as in its Address. shares: the pool can read this peer's Blocks."""

    epoch: str
    shares: bool


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The pool wants nothing of this peer. Frame: the error (`kaas.wire.error_codec`)."""


# --- client to pool


class AnnounceFunction(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """Frames: an encoded FunctionSpec, and its kTask's bytes. Needs no answer; once more changes nothing."""


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Run an invocation. number: the client's own, a new one for each; sent once more (after the pool's end, say) it is
    the same request. Frames: the encoded Invocation, then those that `attached` points to. The answer is CallResult or
    CallFailure."""

    number: int
    attached: Sequence[Attachment] = ()


class CancelCall(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Nobody waits for this Submit or PoolQuery any more. There is no answer, but for Release."""

    number: int


class PoolQuery(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Anything else of the pool. what: "status", "stats", "pardon", "upkeep", "stop" (the frame b"0" answers that it
    goes on, as its server keeps it) or "hold". Frames: depend on it
    (`kaas.pool.clients`). The answer is CallResult or CallFailure."""

    number: int
    what: str
    attached: Sequence[Attachment] = ()


class Drop(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """This session names these objects no more. No answer."""

    keys: Sequence[bytes]


# --- pool to client


class CallResult(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Frames: of a Submit one for each output, in declared order."""

    number: int


class CallFailure(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """Frame: the error (`kaas.wire.error_codec`). held: the request still runs: its Blocks must stay until Release."""

    number: int
    held: bool = False


class Release(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A request that was answered with held, or cancelled, has ended."""

    number: int


# --- pool to executor; numbers are the pool's, one for each thing that is asked


class RegisterFunction(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """A function that the executor will be asked about. Frames: an encoded FunctionSpec, and its kTask's bytes."""


class RunInvocation(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """keep: keys of outputs that stay on the device, as the Invocation lists them. parcel: outputs do not come in
    frames but as a parcel, which is collected. Frames: the encoded Invocation, then those that `attached` points to."""

    number: int
    slot: int
    keep: Sequence[bytes] = ()
    deferred: bool = False
    attached: Sequence[ExecutorAttachment] = ()


class CacheCommand(msgspec.Struct, frozen=True, array_like=True, tag=32):
    """Frames: an encoded wire.CacheCommandSpec, then those that `attached` points to."""

    number: int
    attached: Sequence[ExecutorAttachment] = ()


class CacheDecision(msgspec.Struct, frozen=True, array_like=True, tag=33):
    """Frames: an encoded wire.Decided, then those that `attached` points to."""

    number: int
    attached: Sequence[ExecutorAttachment] = ()


class WriteBackOutput(msgspec.Struct, frozen=True, array_like=True, tag=34):
    """Have kept outputs come back: each is announced by Written before the ExecutorReply."""

    number: int
    keys: Sequence[bytes]


class Discard(msgspec.Struct, frozen=True, array_like=True, tag=35):
    """Forget kept outputs."""

    number: int
    keys: Sequence[bytes]


class ProvideObjects(msgspec.Struct, frozen=True, array_like=True, tag=36):
    """The answer to Need where objects do not travel by Ray. objects: for each thing beside the request its values, one
    for each entry if it is a tuple of constants. Frames: those that objects points to. error: instead, it cannot be
    had; the second frame is why."""

    number: int
    objects: Sequence[Sequence[Framed | Filed]] = ()
    error: bool = False


class ForgetFunction(msgspec.Struct, frozen=True, array_like=True, tag=37):
    """A function of which the executor will not be asked any more, unless it meets it again."""

    key: str


# --- executor to pool


class ExecutorReply(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """What came of something that was asked. lost: why the device is lost, "" if it is not. failed: the frame is an
    error. parcel: under which number outputs wait to be collected, None if they are the frames, in declared order but
    for those that stay on the device."""

    number: int
    record: RunRecord | None = None
    lost: str = ""
    failed: bool = False
    deferred: int | None = None


class RequestObjects(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """The cache lacks objects that this request names: send all that it names, by Ray or by Supply."""

    number: int


class WrittenBack(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """A kept output has come back. parcel: under which number its array waits to be collected."""

    key: bytes
    deferred: int


class Orphaned(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """What ran in a slot when this life of the pool began has ended. record: None if it failed."""

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
)

encode = msgspec.msgpack.Encoder().encode
decode_from_peer = msgspec.msgpack.Decoder(FromPeer).decode
decode_to_peer = msgspec.msgpack.Decoder(ToPeer).decode
