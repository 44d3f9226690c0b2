"""Messages between remote clients and a server: the first frame of each message is one of these, in msgpack.

A header is a map with an "op"; its values stand in the frames behind it, as raw bytes. A field that has its default may
be left out, and a reader ignores fields that it does not know. docs/protocol.md specifies all this for other languages.
"""

from __future__ import annotations

import builtins
from typing import Any

import msgspec

VERSION = 1
"""The version of this protocol; a server refuses others."""
CHUNK_BYTES = 1 << 20
"""Bytes of a large upload or download in one message."""


class _Message(msgspec.Struct, frozen=True, tag_field="op", tag=str.lower, omit_defaults=True):
    pass


# --- client to server. number: the client's own, a new one for each request; the reply has the same number


class Hello(_Message, frozen=True):
    """The first message, and the first after each break of the connection. session: 32 hex digits, the same for as long
    as the program runs: by it the server recognizes the program's requests."""

    version: int
    session: str


class Upload(_Message, frozen=True):
    """Begin, or go on with, an upload of bytes known by their content. hash: SHA-256, hex. kind: "library" (for each
    image `kind:size:`, in ASCII, then its data: the hash is the library's) or "value". signature: ignored (it was of
    a library; kTasks are signed now, see Register). The reply is Uploaded, whose offset is where the bytes begin that
    this client has not sent yet."""

    number: int
    hash: str
    bytes: int
    kind: str
    signature: builtins.bytes = b""


class Chunk(_Message, frozen=True):
    """Frame: the bytes from offset on, of an upload that has begun. The reply is Uploaded."""

    number: int
    hash: str
    offset: int


class Register(_Message, frozen=True):
    """Frame: the kTask (`kaas.wire.sent_ktasks`), which names its libraries by hash. constants: names of this client's
    objects, by buffer. name: under which it can be invoked, instead of one of the same name; "" for none but its key.
    The reply is Registered."""

    number: int
    name: str = ""
    constants: dict[str, str] = {}
    before: str = ""
    """The server's cTask that makes the inputs out of those that the client sends."""
    after: str = ""
    """The server's cTask that makes the outputs out of the kTask's."""
    signature: bytes = b""
    """Ed25519 over b"kaas ktask " and the kTask's key, for servers that require a signature."""


class Functions(_Message, frozen=True):
    """List the functions that this client has registered. The reply is Listed."""

    number: int


class Unregister(_Message, frozen=True):
    """Forget a function of this client. The reply is Done."""

    number: int
    function: str


class Put(_Message, frozen=True):
    """Give a value that was uploaded, or is the frame, a name among this client's objects, instead of one of the same
    name. The reply is Done."""

    number: int
    name: str
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()
    hash: str = ""


class Get(_Message, frozen=True):
    """Fetch a part of an object: `bytes` bytes from offset on. The reply is Value."""

    number: int
    name: str
    offset: int = 0
    bytes: int = CHUNK_BYTES


class Delete(_Message, frozen=True):
    """Delete an object of this client. The reply is Done."""

    number: int
    name: str


class Objects(_Message, frozen=True):
    """List the objects that this client has put. The reply is Listed."""

    number: int


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """A frame or an object. frame: its position among the message's frames (the header is 0). object: of this client,
    read from offset on."""

    frame: int = 0
    object: str = ""
    offset: int = 0


class Invoke(_Message, frozen=True):
    """Run a function. key: of idempotency, 1 to 64 bytes of text: a request with the same key is the same request, in
    this server's epoch and the next: for the client it runs once, and each Invoke with the key gets its reply. store:
    names under which outputs are put instead of sent, by output. trace: a W3C traceparent. The reply is Result or
    Failure; the client then has to send Received."""

    number: int
    function: str
    inputs: dict[str, Input] = {}
    scalars: dict[str, bytes] = {}
    key: str = ""
    deadline_s: float | None = None
    store: dict[str, str] = {}
    trace: str = ""


class Cancel(_Message, frozen=True):
    """No caller waits for this Invoke any more. If it has no reply yet, the reply is Failure."""

    number: int


class Received(_Message, frozen=True):
    """These replies have come: they take no more of the client's credit."""

    numbers: tuple[int, ...]


class Ask(_Message, frozen=True):
    """what: "status", "stats", "usage", "health" (frame b"canary" runs one kTask), or, of an administrator, "drain" and
    "pardon" (frame: the key of a function in quarantine, as status has it, or a kTask's key). The reply is Reply."""

    number: int
    what: str


# --- server to client


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The limits of this client. requests: open requests, without a reply or with one not yet acknowledged.
    credit_bytes: their inputs and outputs in all. frame_bytes: of one message. The rest: quotas, None for none."""

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
    """life: the server's epoch, a new one for each of its processes: requests open in another are to be sent again."""

    version: int
    life: str
    client: str
    limits: Limits


class Uploaded(_Message, frozen=True):
    """The server has the bytes before offset."""

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
    """entries: a map of facts for each function or object."""

    number: int
    entries: list[dict[str, Any]]


class Value(_Message, frozen=True):
    """Frame: the requested part of the value. bytes, hash (SHA-256, hex): of the whole; parts with different hashes are
    of two values of one name."""

    number: int
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    hash: str = ""


class Result(_Message, frozen=True):
    """Frames: the outputs, but for those that are stored. outputs: names of those that are sent, in the frames' order.
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
    """The reply to a request that failed. number: 0 if the request is unknown. error: the class's name, as in
    `kaas.errors`, or "Cancelled"; fields: those of it. retry_s: when the request may be sent again, if that helps."""

    number: int
    error: str
    message: str
    fields: dict[str, Any] = {}
    retry_s: float | None = None
    trace: str = ""


class Goodbye(_Message, frozen=True):
    """The server drains: it takes no more requests from now on, and still replies to open ones."""

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
