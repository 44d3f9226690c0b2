"""docs/protocol.md suffices: a client written from it alone, with nothing of KaaS and a msgpack of its own."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import pytest
import zmq

from tests.server.conftest import Serve

pytestmark = pytest.mark.processes

PTX = (Path(__file__).parents[1] / "api" / "kernels" / "steps.ptx").read_bytes()
LIBRARY = b"ptx:%d:" % len(PTX) + PTX
PATIENCE_MS = 60_000


def packed(value: Any) -> bytes:
    match value:
        case None:
            return b"\xc0"
        case int():
            return struct.pack(">Bq", 0xD3, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case bytes():
            return struct.pack(">BI", 0xC6, len(value)) + value
        case str():
            return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
        case list():
            return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))
    return struct.pack(">BI", 0xDF, len(value)) + b"".join(packed(k) + packed(v) for k, v in value.items())


def unpacked(data: bytes) -> Any:
    value, rest = _one(data)
    assert not rest
    return value


def _one(data: bytes) -> tuple[Any, bytes]:
    first, rest = data[0], data[1:]
    if first < 0x80:
        return first, rest
    if first >= 0xE0:
        return first - 256, rest
    if first in _FIXED:
        return _FIXED[first], rest
    if first in _NUMBERS:
        size = struct.calcsize(_NUMBERS[first])
        return struct.unpack(_NUMBERS[first], rest[:size])[0], rest[size:]
    kind, count = ("map" if first < 0x90 else "list" if first < 0xA0 else "text"), first & (31 if first >= 0xA0 else 15)
    if first >= 0xC0:
        kind, size = _LONG[first]
        count, rest = int.from_bytes(rest[:size], "big"), rest[size:]
    if kind in ("text", "bytes"):
        return (rest[:count].decode() if kind == "text" else rest[:count]), rest[count:]
    items = []
    for _ in range(count * (2 if kind == "map" else 1)):
        item, rest = _one(rest)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind == "map" else items), rest


_FIXED = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_NUMBERS |= {0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
_LONG = {0xC4: ("bytes", 1), 0xC5: ("bytes", 2), 0xC6: ("bytes", 4), 0xD9: ("text", 1), 0xDA: ("text", 2)}
_LONG |= {0xDB: ("text", 4), 0xDC: ("list", 2), 0xDD: ("list", 4), 0xDE: ("map", 2), 0xDF: ("map", 4)}


class Connection:
    def __init__(self, endpoint: str, keys: dict[str, str]) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.socket, self.number = context.socket(zmq.DEALER), 0
        self.socket.linger, self.socket.rcvtimeo = 0, PATIENCE_MS
        self.socket.curve_serverkey = keys["server_key"].encode()
        self.socket.curve_publickey = keys["public_key"].encode()
        self.socket.curve_secretkey = keys["secret_key"].encode()
        self.socket.connect(endpoint)
        self.welcome = self.exchange("hello", version=1, session="0123456789abcdef" * 2)[0]

    def send(self, op: str, *frames: bytes, **fields: Any) -> None:
        self.socket.send_multipart([packed({"op": op, **fields}), *frames])

    def exchange(self, op: str, *frames: bytes, **fields: Any) -> tuple[dict[str, Any], list[bytes]]:
        self.send(op, *frames, **fields)
        head, *behind = self.socket.recv_multipart()
        return unpacked(head), behind

    def request(self, op: str, *frames: bytes, **fields: Any) -> tuple[dict[str, Any], list[bytes]]:
        self.number += 1
        answer, behind = self.exchange(op, *frames, number=self.number, **fields)
        assert answer["number"] == self.number
        return answer, behind


def scaled(library: str, width: int) -> bytes:
    """y = factor * x, the factor being a scalar of each request."""
    buffers = [{"name": name, "shape": [width], "dtype": "float32"} for name in ("x", "y")]
    count = {"literal": "u32", "hex": struct.pack("<I", width).hex()}
    args = [{"in": "x"}, {"out": "y"}, {"scalar": "factor", "kind": "f32"}, count]
    kernel = {
        "library": library,
        "symbol": "scale",
        "grid": [-(-width // 256), 1, 1],
        "block": [256, 1, 1],
        "args": args,
    }
    return packed({"kaas": 1, "buffers": buffers, "kernels": [{"kernel": kernel}], "outputs": ["y"]})


def test_a_client_written_from_the_document(serve: Serve) -> None:
    server = serve()
    lines = (server.folder / "alice.keys").read_text().splitlines()
    keys = {name: text.strip("'\"") for name, text in (line.split(" = ") for line in lines)}
    there = Connection(server.endpoint, keys)
    assert there.welcome["op"] == "welcome"
    assert (there.welcome["version"], there.welcome["client"]) == (1, "alice")
    assert there.welcome["limits"]["requests"] > 0

    sha256 = hashlib.sha256(LIBRARY).hexdigest()
    answer, _ = there.request("upload", hash=sha256, bytes=len(LIBRARY), kind="library")
    assert (answer["op"], answer["offset"]) == ("uploaded", 0)
    half = len(LIBRARY) // 2
    assert there.request("chunk", LIBRARY[:half], hash=sha256, offset=0)[0]["offset"] == half
    assert there.request("chunk", b"no", hash=sha256, offset=1)[0]["offset"] == half
    assert there.request("chunk", LIBRARY[half:], hash=sha256, offset=half)[0]["offset"] == len(LIBRARY)
    assert there.request("upload", hash=sha256, bytes=len(LIBRARY), kind="library")[0]["offset"] == len(LIBRARY)

    answer, _ = there.request("register", scaled(sha256, 4), name="scale")
    assert answer["op"] == "registered"
    assert (answer["inputs"], answer["outputs"]) == ({"x": ["float32", [4]]}, {"y": ["float32", [4]]})
    assert answer["scalars"] == {"factor": "f32"}
    assert [entry["name"] for entry in there.request("functions")[0]["entries"]] == ["scale"]

    values = struct.pack("<4f", 1, 2, 3, 4)
    twice = {"factor": struct.pack("<f", 2.0)}
    call = {"function": "scale", "inputs": {"x": {"frame": 1}}, "scalars": twice, "key": "a key", "deadline_s": 30}
    for _ in range(2):
        answer, (frame,) = there.request("invoke", values, **call)
        assert (answer["op"], answer["outputs"]) == ("result", ["y"])
        assert struct.unpack("<4f", frame) == (2, 4, 6, 8)
    there.send("received", numbers=[there.number - 1, there.number])

    assert there.request("put", values, name="mine", dtype="float32", shape=[4])[0]["op"] == "done"
    call = {"function": "scale", "inputs": {"x": {"object": "mine"}}, "scalars": twice, "store": {"y": "yours"}}
    answer, frames = there.request("invoke", **call, trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert (answer["op"], answer.get("outputs", []), frames) == ("result", [], [])
    assert answer["trace"][:36] == "00-0af7651916cd43dd8448eb211c80319c-"
    there.send("received", numbers=[there.number])
    answer, (frame,) = there.request("get", name="yours", offset=4, bytes=8)
    assert (answer["op"], answer["dtype"], answer["shape"], answer["bytes"]) == ("value", "float32", [4], 16)
    assert struct.unpack("<2f", frame) == (4, 6)
    assert {entry["name"] for entry in there.request("objects")[0]["entries"]} == {"mine", "yours"}
    assert there.request("delete", name="mine")[0]["op"] == "done"

    there.send("cancel", number=there.number)  # the replies stay the same
    assert there.request("ask", what="health")[0]["answer"]["live"]
    answer, _ = there.request("invoke", **call)
    assert (answer["op"], answer["error"], answer.get("retry_s")) == ("failure", "UnknownObject", None)
    assert there.request("unregister", function="scale")[0]["op"] == "done"
    there.socket.close()
