"""Messages between driver, pool and executor: msgspec Structs as one `bytes` each, the cheapest that Ray can send."""

from __future__ import annotations

import hashlib

import msgspec

from kaas.executor.stats import RunStats

INLINE_INPUT_BYTES = 64 << 10
"""By-value inputs up to this many bytes in all travel in the message; larger ones through Ray's object store."""
INLINE_OUTPUT_BYTES = 100_000
"""Outputs up to this many bytes in all come back through the pool; larger ones stay in Ray's object store."""


class Binding(msgspec.Struct, frozen=True, array_like=True):
    """A constant of a function: which entry of its tuple of constants, and from where on for a View."""

    buffer: str
    entry: int
    offset_bytes: int | None = None


class FunctionSpec(msgspec.Struct, frozen=True, array_like=True):
    """A kTask with the names of its constants; their values travel with each invocation, as one reference.

    owner: a remote client, whose function it is alone: what another one makes of the same kTask does not
    bring it into quarantine. "" for the programs that have a pool together.
    """

    task_key: str
    bindings: tuple[Binding, ...] = ()
    owner: str = ""

    @property
    def key(self) -> str:
        """SHA-256, hex; of a kTask without constants that has no owner, the kTask's own key."""
        if self.owner:
            return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()
        if not self.bindings:
            return self.task_key
        return hashlib.sha256(msgspec.msgpack.encode([self.task_key, self.bindings])).hexdigest()


class ObjectInput(msgspec.Struct, frozen=True, array_like=True):
    """An input by reference.

    ref: position among the references beside the message. shared: the object has a name, so caches may keep it; if not,
    it is a value that was too large for the message, and holds exactly the buffer's bytes.
    """

    buffer: str
    ref: int
    offset_bytes: int | None
    shared: bool


class Invocation(msgspec.Struct, frozen=True, array_like=True):
    """What `kaas.invoke` sends to the pool, and the pool, unchanged, to an executor."""

    function: str
    client: str
    deadline_s: float | None
    retries: int
    ready: bool
    """The driver knows that all references are complete."""
    scalars: dict[str, bytes]
    values: list[tuple[str, bytes]]
    objects: list[ObjectInput]
    constants: int | None
    """Position of the reference to the function's constants."""
    profile: bool = False
    """Run without the graph, and tell what each kernel takes."""
    keep: tuple[int, ...] = ()
    """Positions of the outputs that stay on the device."""
    session: str = ""
    """Of the program that sent it: its requests end with it. "" if they do not."""


class CacheCommandSpec(msgspec.Struct, frozen=True, array_like=True):
    """What a program wants of the caches of one device, or of all. Beside it travels the reference to the object or to
    a function's constants, if there is one, and then those that must be complete first.

    action: "prefetch", "pin", "unpin" or "flush". functions: their kTasks are meant and their constants, which they
    share; none with a reference: that object; none without: everything. objects: whether a reference is there.
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
    """What the policy wants of one device's cache: objects to load, and keys of objects to drop."""

    loads: list[KeyedObject]
    drops: list[bytes]


RunRecord = RunStats
"""What the executor measured, as the pool hears it."""


class ETaskSpec(msgspec.Struct, frozen=True, array_like=True):
    """A Python function or class as the pool knows it. path: where the program that defined it looks for modules."""

    key: str
    label: str
    path: tuple[str, ...] = ()


class ETaskCall(msgspec.Struct, frozen=True, array_like=True):
    """A call of an eTask, from the driver through the pool to a worker, unchanged.

    caller, number: which program calls, and how many calls it had made before.
    method: of the instance, "" to call the function or the instance itself. arguments: packed (`wire.etask_values`);
    if empty, behind the first of the references beside the message.
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
    """What was raised, for an error that is made where it can be understood. cause: the exception, pickled; empty if it
    cannot travel. by_input: it was raised by the task of an argument, and the function did not run."""

    message: str
    error_type: str
    traceback: str
    cause: bytes
    by_input: bool = False


class ETaskAnswer(msgspec.Struct, frozen=True, array_like=True):
    """What an eTask worker replies. value: packed; empty if it goes through the store, or there is none."""

    value: list[bytes]
    seconds: float
    failure: ETaskFailure | None = None


def without_keep(message: bytes) -> bytes:
    """An Invocation whose outputs all come back, from any sender."""
    return encode(msgspec.structs.replace(decode_invocation(message), keep=(), session=""))


encode = msgspec.msgpack.encode
decode_invocation = msgspec.msgpack.Decoder(Invocation).decode
decode_cache_command = msgspec.msgpack.Decoder(CacheCommandSpec).decode
decode_decided = msgspec.msgpack.Decoder(CacheDecisionSpec).decode
decode_function = msgspec.msgpack.Decoder(FunctionSpec).decode
decode_etask = msgspec.msgpack.Decoder(ETaskSpec).decode
decode_etask_call = msgspec.msgpack.Decoder(ETaskCall).decode
decode_etask_answer = msgspec.msgpack.Decoder(ETaskAnswer).decode
