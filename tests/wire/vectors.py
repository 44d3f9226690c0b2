"""Messages of the remote protocol, written down for clients in other languages: tests/vectors/*.json.

    python -m tests.wire.vectors [--write]

A vector has a name, a header (JSON; bytes stand there as {"hex": ...}), the hex of the first frame, and the hex of each
frame behind it. `from_client` and `from_server` hold each message as KaaS itself writes it. `same` holds other ways to
write some of them, which a reader has to take for the same; `refused` what is no message of a client.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kaas.wire import protocol

FOLDER = Path(__file__).parent.parent / "vectors"
HASH = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
"""SHA-256 of HELLO."""
HELLO = b"hello"
ONES = np.ones(4, np.float32).tobytes()
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

Vector = dict[str, Any]
Message = tuple[str, Any, list[bytes]]

FROM_CLIENT: list[Message] = [
    ("hello", protocol.Hello(protocol.VERSION, "0af7651916cd43dd8448eb211c80319c"), []),
    ("upload of a value", protocol.Upload(1, HASH, 5, "value"), []),
    ("upload of signed code", protocol.Upload(22, HASH, 5, "library", bytes(range(64))), []),
    ("chunk from the beginning", protocol.Chunk(2, HASH, 0), [HELLO]),
    ("register under a name, with a constant", protocol.Register(3, "scale", {"w": "weights"}), [b"\x80"]),
    ("register under its key only", protocol.Register(4), [b"\x80"]),
    ("register, signed", protocol.Register(6, signature=bytes(range(64))), [b"\x80"]),
    ("register with tasks around it", protocol.Register(5, "photo", {}, "resize", "label"), [b"\x80"]),
    ("functions", protocol.Functions(6), []),
    ("unregister", protocol.Unregister(7, "scale"), []),
    ("put a value that is the frame", protocol.Put(8, "weights", "float32", (2, 2)), [ONES]),
    ("put a value that was uploaded", protocol.Put(9, "greeting", shape=(5,), hash=HASH), []),
    ("get from the beginning", protocol.Get(10, "weights"), []),
    ("get a part", protocol.Get(11, "weights", 8, 8), []),
    ("delete", protocol.Delete(12, "weights"), []),
    ("objects", protocol.Objects(13), []),
    ("invoke without inputs", protocol.Invoke(14, "scale"), []),
    ("invoke with a frame", protocol.Invoke(15, "scale", {"x": protocol.Input(1)}), [ONES]),
    (
        "invoke with all there is",
        protocol.Invoke(
            2**32,
            "scale",
            {
                "x": protocol.Input(1),
                "w": protocol.Input(object="weights", offset=8),
                "b": protocol.Input(2),
            },
            {"factor": np.float32(0.5).tobytes(), "steps": np.int64(-3).tobytes()},
            "order-4711",
            2.5,
            {"y": "doubled"},
            TRACE,
        ),
        [ONES, b""],
    ),
    ("invoke with a deadline", protocol.Invoke(21, "scale", deadline_s=2.0), []),
    ("cancel", protocol.Cancel(15), []),
    ("received", protocol.Received((14, 15, 2**32)), []),
    ("ask for the status", protocol.Ask(16, "status"), []),
    ("ask for a run of the canary", protocol.Ask(17, "health"), [b"canary"]),
    ("ask for a function to be pardoned", protocol.Ask(18, "pardon"), [b"8e2c"]),
]
LIMITS = protocol.Limits(64, 64 << 20, 16 << 20)
QUOTAS = protocol.Limits(8, 1 << 20, 1 << 20, 100.5, 1 << 40, 1 << 30, 6.25)
FROM_SERVER: list[Message] = [
    ("welcome", protocol.Welcome(protocol.VERSION, "b7ad6b7169203331", "ada", LIMITS), []),
    ("welcome with quotas", protocol.Welcome(protocol.VERSION, "b7ad6b7169203331", "ada", QUOTAS), []),
    ("uploaded nothing yet", protocol.Uploaded(1, 0), []),
    ("uploaded all", protocol.Uploaded(2, 5), []),
    ("registered", protocol.Registered(3, HASH, {"x": ("float32", (2, 2))}, {"y": ("float32", (4,))}), []),
    (
        "registered with a scalar",
        protocol.Registered(4, HASH, {}, {"y": ("float32", (4,))}, {"factor": "f32"}),
        [],
    ),
    ("listed nothing", protocol.Listed(6, []), []),
    ("listed", protocol.Listed(13, [{"name": "weights", "bytes": 16}]), []),
    ("value", protocol.Value(10, "float32", (2, 2), 16, hashlib.sha256(ONES).hexdigest()), [ONES]),
    ("value of no dimension", protocol.Value(10, "float64", (), 8), [bytes(8)]),
    ("result whose outputs are all stored", protocol.Result(14), []),
    ("result", protocol.Result(15, ("y", "z")), [ONES, b""]),
    ("result with a trace", protocol.Result(15, ("y",), TRACE), [ONES]),
    ("done", protocol.Done(7), []),
    ("told", protocol.Reply(17, {"live": True, "ready": False, "executors": [1, None], "seconds": 0.5}), []),
    (
        "failure",
        protocol.Failure(18, "WrongSize", "x has 16 bytes, not 8", {"buffer": "x", "given_bytes": 8}),
        [],
    ),
    (
        "failure that may be asked again",
        protocol.Failure(19, "QueueFull", "the queue is full", {"limit": 8}, 0.25),
        [],
    ),
    ("failure of no question in particular", protocol.Failure(0, "InvalidRequest", "speak version 1"), []),
    ("text beyond ASCII", protocol.Failure(20, "KaasError", "größer als 4 µs — 大きい"), []),
    ("goodbye", protocol.Goodbye("the server is shut down"), []),
]
SAME: list[tuple[str, str, dict[str, Any]]] = [
    ("another order of the fields", "done", {"number": 7, "op": "done"}),
    ("a field that is not known", "done", {"op": "done", "number": 7, "later": [1, {"a": None}]}),
    (
        "defaults that are written out",
        "register under its key only",
        {"op": "register", "number": 4, "name": "", "constants": {}, "before": "", "after": ""},
    ),
    (
        "defaults within a map",
        "invoke with a frame",
        {"op": "invoke", "number": 15, "function": "scale", "inputs": {"x": {"frame": 1, "object": "", "offset": 0}}},
    ),
    (
        "an integer for a real number",
        "invoke with a deadline",
        {"op": "invoke", "number": 21, "function": "scale", "deadline_s": 2},
    ),
    (
        "a real number of half the width",
        "invoke with a deadline",
        {"op": "invoke", "number": 21, "function": "scale", "deadline_s": msgspec.Raw(struct.pack(">Bf", 0xCA, 2))},
    ),
]
REFUSED: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("half a message", protocol.encode(protocol.Unregister(7, "scale"))[:-3]),
    ("no map", msgspec.msgpack.encode([1, 2])),
    ("no operation", msgspec.msgpack.encode({"number": 1})),
    ("an operation that there is not", msgspec.msgpack.encode({"op": "execute", "number": 1})),
    ("an operation of the server", protocol.encode(protocol.Done(1))),
    ("a field that is missing", msgspec.msgpack.encode({"op": "unregister", "number": 1})),
    ("text for a number", msgspec.msgpack.encode({"op": "functions", "number": "1"})),
    ("a real number for an integer", msgspec.msgpack.encode({"op": "functions", "number": 1.5})),
    ("nothing for a default", msgspec.msgpack.encode({"op": "register", "number": 1, "name": None})),
    ("bytes for text", msgspec.msgpack.encode({"op": "unregister", "number": 1, "function": b"scale"})),
    ("more behind the map", protocol.encode(protocol.Functions(6)) + b"\xc0"),
    ("JSON", b'{"op": "functions", "number": 1}'),
]


def written() -> dict[str, list[Vector]]:
    """Return all vectors, by the stem of their file."""
    heads = {name: message for name, message, _ in FROM_CLIENT + FROM_SERVER}
    return {
        "from_client": [_vector(*message) for message in FROM_CLIENT],
        "from_server": [_vector(*message) for message in FROM_SERVER],
        "same": [
            {"name": name, "as": known, "header": _json(_plain(heads[known])),
             "hex": msgspec.msgpack.encode(as_written).hex()}
            for name, known, as_written in SAME
        ],
        "refused": [{"name": name, "hex": data.hex()} for name, data in REFUSED],
    }  # fmt: skip


def _vector(name: str, message: Any, frames: list[bytes]) -> Vector:
    header = {"name": name, "header": _json(_plain(message)), "hex": protocol.encode(message).hex()}
    return header | {"frames": [frame.hex() for frame in frames]}


def _plain(message: Any) -> Any:
    """Return a message as maps, lists, numbers, text and bytes."""
    return msgspec.to_builtins(message, builtin_types=(bytes,))


def _json(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _json(item) for key, item in value.items()}
        case list() | tuple():
            return [_json(item) for item in value]
        case bytes():
            return {"hex": value.hex()}
    return value


def files() -> Iterator[tuple[Path, str]]:
    """Yield each file's path and text: a vector on each line."""
    for stem, vectors in written().items():
        lines = ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors)
        yield FOLDER / f"{stem}.json", f"[\n{lines}\n]\n"


def main() -> int:
    """Check that the files are up to date; with --write, write them."""
    if "--write" in sys.argv[1:]:
        for path, text in files():
            path.write_text(text)
        return 0
    stale = [path.name for path, text in files() if not path.exists() or path.read_text() != text]
    if stale:
        print(f"{', '.join(stale)} out of date: python -m tests.wire.vectors --write")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
