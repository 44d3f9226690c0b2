"""Messages between program, pool and executor: msgspec Structs as one `bytes` each, the cheapest that Ray can send."""

from __future__ import annotations

import hashlib

import msgspec

from kaas.executor.run_stats import RunStats
from kaas.share import ProfilePoint

INLINE_INPUT_BYTES = 64 << 10
"""By-value inputs up to this many bytes in all travel in the message; larger ones through Ray's object store."""
INLINE_OUTPUT_BYTES = 100_000
"""Outputs up to this many bytes in all come back through the pool; larger ones stay in Ray's object store."""


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """A constant of a function: the entry of its tuple of constants, and for a View the offset in it."""

    buffer: str
    entry: int
    offset_bytes: int | None = None


class FunctionSpec(msgspec.Struct, frozen=True, array_like=True):
    """A kTask with the names of its constants; their values travel with each invocation, as one reference.

    owner: the remote client that alone owns the function: the quarantine of another client's function of the same
    kTask does not hold for it. "" for programs that share a pool.
    """

    task_key: str
    bindings: tuple[Binding, ...] = ()
    owner: str = ""

    @property
    def key(self) -> str:
        """Return a SHA-256, hex; of a kTask without constants and owner the kTask's own key."""
        if self.owner:
            return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()
        if not self.bindings:
            return self.task_key
        return hashlib.sha256(msgspec.msgpack.encode([self.task_key, self.bindings])).hexdigest()


class ObjectInput(msgspec.Struct, frozen=True, array_like=True):
    """An input by reference.

    ref: position among the references attached to the message. shared: the object has a name, so caches may keep it. If
    False, it is a value that was too large for the message, and holds exactly the buffer's bytes.
    """

    buffer: str
    ref: int
    offset_bytes: int | None
    shared: bool


class Invocation(msgspec.Struct, frozen=True, array_like=True):
    """The message of `kaas.invoke` to the pool, and, unchanged, of the pool to an executor."""

    function: str
    client: str
    deadline_s: float | None
    retries: int
    ready: bool
    """The program knows that all references are complete."""
    scalars: dict[str, bytes]
    values: list[tuple[str, bytes]]
    objects: list[ObjectInput]
    constants: int | None
    """Position of the reference to the function's constants."""
    profile: bool = False
    """Run without the graph, and report the time of each kernel."""
    keep: tuple[int, ...] = ()
    """Positions of the outputs that stay on the device."""
    session: str = ""
    """The session of the program that sent it: the request ends with the session. "" if it does not."""


class ShareSpec(msgspec.Struct, frozen=True, array_like=True):
    """A program's wish for the share of a function or a client, or what it has measured of a function with shares.

    functions: the keys of the function's kTasks, those with constants as `key@constants`; empty for a client's share.
    label: the function's name for people. share: sms, the least and the most of the quota, and memory_bytes; None: no
    share, or the pool chooses it for a promise. slo_s: the latency that is promised. best_effort: of requests that
    would be late. points: what was measured; the share stays as it is. Empty in a wish.
    """

    functions: tuple[str, ...]
    client: str
    label: str
    share: tuple[float, float, float, int | None] | None
    slo_s: float | None = None
    best_effort: bool = True
    points: tuple[ProfilePoint, ...] = ()


class CacheCommandSpec(msgspec.Struct, frozen=True, array_like=True):
    """A program's command to the caches of one device, or of all devices.

    Attached are the reference to the object or to a function's constants, if there is one, and then references that
    must be complete first.

    action: "prefetch", "pin", "unpin" or "flush". functions: the command is about their kTasks and the constants that
    they share; if empty, about the object of the reference, or without one about everything. objects: True if a
    reference is attached.
    """

    action: str
    device: int | None
    functions: tuple[str, ...]
    objects: bool
    ready: bool
    client: str


class KeyedObject(msgspec.Struct, frozen=True, array_like=True):
    """An object by its key in caches. ref: position of the reference; entry: of the tuple of constants behind that."""

    key: bytes
    ref: int
    entry: int | None


class CacheDecisionSpec(msgspec.Struct, frozen=True, array_like=True):
    """A decision of the policy about one device's cache: objects to load, or keys of objects that leave.

    victims: keys of objects that leave first, as far as the loads need room. to_host: objects leave the device only if
    page-locked memory has them; else they leave both. client: the one whose requests read the loads.
    """

    loads: list[KeyedObject]
    leaving: list[bytes]
    victims: list[bytes] = []
    to_host: bool = False
    client: str = ""


RunRecord = RunStats
"""The executor's measurements, as the pool gets them."""


class ETaskSpec(msgspec.Struct, frozen=True, array_like=True):
    """A Python function or class as the pool knows it.

    path: of the modules of the program that defined it. sms: the part of its device's SMs that its worker may use.
    """

    key: str
    label: str
    path: tuple[str, ...] = ()
    sms: float = 1.0


class ETaskCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of an eTask, from the program through the pool to a worker, unchanged.

    caller, number: the calling program, and the number of calls that it had made before.
    method: of the instance, "" to call the function or the instance itself. arguments: packed (`wire.etask_values`);
    if empty, behind the first of the references attached to the message.
    """

    function: str
    client: str
    deadline_s: float | None
    retries: int
    ready: bool
    method: str
    arguments: list[bytes]
    caller: str
    number: int


class ETaskFailure(msgspec.Struct, frozen=True, array_like=True):
    """An exception of the function, of which the caller's process makes an error.

    cause: the exception, pickled; empty if it cannot be pickled. by_input: the task of an argument raised it, and the
    function did not run."""

    message: str
    error_type: str
    traceback: str
    cause: bytes
    by_input: bool = False


class ETaskReply(msgspec.Struct, frozen=True, array_like=True):
    """The reply of an eTask worker.

    value: packed; empty if it goes through the store, or there is none. load_s: the part of the seconds in which the
    worker loaded the code and made the instance.
    """

    value: list[bytes]
    seconds: float
    failure: ETaskFailure | None = None
    load_s: float = 0.0


def without_keep(message: bytes) -> bytes:
    """Return an Invocation without a session and without outputs to keep: all of them come back."""
    return encode(msgspec.structs.replace(decode_invocation(message), keep=(), session=""))


encode = msgspec.msgpack.encode
decode_invocation = msgspec.msgpack.Decoder(Invocation).decode
decode_cache_command = msgspec.msgpack.Decoder(CacheCommandSpec).decode
decode_share = msgspec.msgpack.Decoder(ShareSpec).decode
decode_decided = msgspec.msgpack.Decoder(CacheDecisionSpec).decode
decode_function = msgspec.msgpack.Decoder(FunctionSpec).decode
decode_etask = msgspec.msgpack.Decoder(ETaskSpec).decode
decode_etask_call = msgspec.msgpack.Decoder(ETaskCall).decode
decode_etask_reply = msgspec.msgpack.Decoder(ETaskReply).decode
