"""What remote clients and a server say to each other: the first frame of each message is one of these, in msgpack.

A header is a map with an "op"; what it is about stands in the frames behind it, as raw bytes. A field that has its
default may be left out, and fields that a reader does not know mean nothing to it. docs/protocol.md specifies all this
for other languages.
"""

from __future__ import annotations

import builtins
from typing import Any

import msgspec

VERSION = 1
"""Of this protocol; a server refuses others."""
CHUNK_BYTES = 1 << 20
"""Of a large upload or download, in one message."""


class _Message(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower, omit_defaults=True):
    pass


# --- client to server. number: the client's own, a new one for each question; its answer has the same


class Hello(_Message, frozen=True):
    """The first message, and the first after each break of the connection. session: 32 hex digits, of this program as
    long as it lives: the server then knows its requests again."""

    version: int
    session: str


class Upload(_Message, frozen=True):
    """Begin, or go on with, an upload of bytes known by their content. hash: SHA-256, hex. kind: "library" (for each
    image `kind:size:`, in ASCII, then its data: the hash is the library's) or "value". signature: counts for nothing
    (it was of a library; kTasks are signed now, see Register). The answer is Uploaded, whose offset says from where
    on this client has not sent it yet."""

    number: int
    hash: str
    bytes: int
    kind: str
    signature: builtins.bytes = b""


class Chunk(_Message, frozen=True):
    """Frame: the bytes from offset on, of an upload that has begun. The answer is Uploaded."""

    number: int
    hash: str
    offset: int


class Register(_Message, frozen=True):
    """Frame: the kTask (`kaas.wire.sent_ktasks`), which names its libraries by hash. constants: names of this client's
    objects, by buffer. name: under which it can be invoked, instead of one of the same name; "" for none but its key.
    The answer is Registered."""

    number: int
    name: str = ""
    constants: dict[str, str] = {}
    before: str = ""
    """Of the server's cTasks: which one makes the inputs out of those that come."""
    after: str = ""
    """Which one makes the outputs out of the kTask's."""
    signature: bytes = b""
    """Ed25519 over b"kaas ktask " and the kTask's key, for servers that want one."""


class Functions(_Message, frozen=True):
    """What this client has registered. The answer is Listed."""

    number: int


class Unregister(_Message, frozen=True):
    """The answer is Done."""

    number: int
    function: str


class Put(_Message, frozen=True):
    """Give a value that was uploaded, or is the frame, a name among this client's objects, instead of one of the same
    name. The answer is Done."""

    number: int
    name: str
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    hash: str = ""


class Get(_Message, frozen=True):
    """The answer is Value. offset, bytes: which part."""

    number: int
    name: str
    offset: int = 0
    bytes: int = CHUNK_BYTES


class Delete(_Message, frozen=True):
    """The answer is Done."""

    number: int
    name: str


class Objects(_Message, frozen=True):
    """What this client has put. The answer is Listed."""

    number: int


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of: frame, its position among the message's frames (the header is 0); object, of this client, read from
    offset on."""

    frame: int = 0
    object: str = ""
    offset: int = 0


class Invoke(_Message, frozen=True):
    """Run a function. key: of idempotency, 1 to 64 bytes of text: a request with the same key is the same request, in
    this server's epoch and the next: it is not run again to the client's eyes, and all who ask get its answer. store:
    names under which outputs are put instead of coming, by output. trace: a W3C traceparent. The answer is Result or
    Failure; then the client has to say Received."""

    number: int
    function: str
    inputs: dict[str, Input] = {}
    scalars: dict[str, bytes] = {}
    key: str = ""
    deadline_s: float | None = None
    store: dict[str, str] = {}
    trace: str = ""


class Cancel(_Message, frozen=True):
    """No caller waits for this Invoke any more. The answer, if it has none, is Failure."""

    number: int


class Received(_Message, frozen=True):
    """These answers have come: they take no more of the client's credit."""

    numbers: tuple[int, ...]


class Ask(_Message, frozen=True):
    """what: "status", "stats", "usage", "health" (frame b"canary" runs one kTask), or, of an administrator, "drain" and
    "pardon" (frame: the key of a function in quarantine, as status has it, or the key of a kTask). Reply answers."""

    number: int
    what: str


# --- server to client


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What this client may. requests: that it may have open, unanswered or not yet received. credit_bytes: that their
    inputs and outputs may have in all. frame_bytes: of one message. The rest: quotas, None for none."""

    requests: int
    credit_bytes: int
    frame_bytes: int
    requests_per_s: float | None = None
    stored_bytes: int | None = None
    library_bytes: int | None = None
    device_s_per_minute: float | None = None
    kernels: int | None = None
    task_kernels: int | None = None
    build_s_per_minute: float | None = None


class Welcome(_Message, frozen=True):
    """life: a new one for each process of the server: what was open in another is to be asked again."""

    version: int
    life: str
    client: str
    limits: Limits


class Uploaded(_Message, frozen=True):
    """Up to offset it is there."""

    number: int
    offset: int


class Registered(_Message, frozen=True):
    """function: its key. inputs, outputs: dtype and shape by name. scalars: their kinds by name."""

    number: int
    function: str
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    outputs: dict[str, tuple[str, tuple[int, ...]]]
    scalars: dict[str, str] = {}


class Listed(_Message, frozen=True):
    """Of each entry: what is known of it."""

    number: int
    entries: list[dict[str, Any]]


class Value(_Message, frozen=True):
    """Frame: the part of the value that was asked for. bytes, hash (SHA-256, hex): of the whole; parts that differ in
    it are of two values of one name."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    hash: str = ""


class Result(_Message, frozen=True):
    """Frames: the outputs, but for those that are stored. outputs: names of those that came, in the frames' order.
    trace: the traceparent of the server's span, where Invoke had one."""

    number: int
    outputs: tuple[str, ...] = ()
    trace: str = ""


class Done(_Message, frozen=True):
    number: int


class Reply(_Message, frozen=True, tag="told"):
    """answer: as msgpack has it: maps, lists, numbers and text."""

    number: int
    answer: Any


class Failure(_Message, frozen=True):
    """The answer to whatever went wrong. number: 0 if nothing can be said of which question. error: the class's name,
    as in `kaas.errors`, or "Cancelled"; fields: those of it. retry_s: when it may be asked again, if that can help."""

    number: int
    error: str
    message: str
    fields: dict[str, Any] = {}
    retry_s: float | None = None
    trace: str = ""


class Goodbye(_Message, frozen=True):
    """The server takes nothing more from now on: what is open is still answered. Sent when it drains."""

    reason: str


FromClient = (
    Hello
    | Upload
    | Chunk
    | Register
    | Functions
    | Unregister
    | Put
    | Get
    | Delete
    | Objects
    | Invoke
    | Cancel
    | Received
    | Ask
)
FromServer = Welcome | Uploaded | Registered | Listed | Value | Result | Done | Reply | Failure | Goodbye

encode = msgspec.msgpack.Encoder().encode
decode_from_client = msgspec.msgpack.Decoder(FromClient).decode
decode_from_server = msgspec.msgpack.Decoder(FromServer).decode
