"""Messages that are valid, or nearly so, and cost a server more than they look: `benchmarks.attack` sends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from random import Random
from secrets import token_hex
from typing import Any

import msgspec
import zmq

import kaas
from kaas.wire import protocol
from kaas.wire.sent_ktasks import encode_library, encode_task

FLOOD_KEYS = 1000
"""Uploads that a flood begins, each with a first piece, and never ends."""
UPLOAD_BYTES, PIECE_BYTES = 1 << 16, 64
DEEPEST = 5000
BRANCHES = 6000
"""Branches in a row: LLVM's time grows with their square, to a minute or more."""

Message = list[bytes]


def flood() -> Iterator[Message]:
    """Yield the messages of uploads under new keys."""
    for number in range(FLOOD_KEYS):
        content = sha256(token_hex(16).encode()).hexdigest()
        yield [protocol.encode(protocol.Upload(number, content, UPLOAD_BYTES, "library"))]
        yield [protocol.encode(protocol.Chunk(number, content, 0)), bytes(PIECE_BYTES)]


def deep(chance: Random, task: kaas.KTask) -> Message:
    """Return a message with a structure of any depth: in a registration's kTask, or in an invocation's scalars."""
    depth = chance.randrange(2, DEEPEST)
    if chance.random() < 0.5:
        content = msgspec.msgpack.decode(encode_task(task))
        launch = content["kernels"][0]["kernel"]
        place = chance.choice(["args", "grid", "block"])
        launch[place] = msgspec.Raw(_nested(depth, b"\x91\x81\xa8pointers" if place == "args" else b"\x91"))
        return [protocol.encode(protocol.Register(1, "deep")), msgspec.msgpack.encode(content)]
    fields = msgspec.msgpack.decode(protocol.encode(protocol.Invoke(2, "diff", {})))
    fields[chance.choice(["scalars", "inputs", "store"])] = msgspec.Raw(_nested(depth, b"\x81\xa1x"))
    return [msgspec.msgpack.encode(fields)]


def _nested(depth: int, opening: bytes) -> bytes:
    return opening * depth + b"\xc0"


def bomb() -> kaas.KTask:
    """Return a kTask that takes a minute or more to compile, and whose code no cache has."""
    lines = [
        f"setp.lt.f32 %p{i % 8}, %f{i * 7 % 50}, %f{i * 13 % 50}; @%p{i % 8} bra L{i}; "
        f"add.f32 %f{i % 50}, %f{i * 3 % 50}, %f{i * 11 % 50}; L{i}:"
        for i in range(BRANCHES)
    ]
    head = f"// {token_hex(8)}\n.version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n"
    ptx = head + "{\n.reg .f32 %f<50>; .reg .pred %p<8>;\n" + "\n".join(lines) + "\nret;\n}"
    out = kaas.Buffer("out", 1, "uint32")
    return kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(ptx), "k", 1, 32, [kaas.Out(out)])], [out])


class Bombs:
    """Compile bombs, one at a time: the next one follows the reply to the last.

    Fields:
        outcomes: the number of replies by the error's name.
    """

    def __init__(self, connection: zmq.Socket[bytes]) -> None:
        self._socket = connection
        self._number = 0
        self._steps: Iterator[tuple[Any, ...]] = iter(())
        self._send(protocol.Hello(protocol.VERSION, token_hex(16)))
        self.outcomes: Counter[str] = Counter()

    def _send(self, header: Any, *frames: bytes) -> None:
        self._socket.send_multipart([protocol.encode(header), *frames])

    def _messages(self) -> Iterator[tuple[Any, ...]]:
        """Yield the messages of a bomb, each of which follows the reply to the one before."""
        task, number = bomb(), self._number
        library = task.libraries[0]
        code = encode_library(library)
        yield protocol.Upload(number + 1, library.hash, len(code), "library"), b""
        yield protocol.Chunk(number + 2, library.hash, 0), code
        yield protocol.Register(number + 3, "bomb"), encode_task(task)
        yield protocol.Invoke(number + 4, "bomb", {}), b""

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def go_on(self) -> None:
        """Read replies, and send the next message, or the next bomb if the last one has ended."""
        waits = self._number > 0
        while self._socket.poll(0):
            reply = protocol.decode_from_server(self._socket.recv_multipart()[0])
            if getattr(reply, "number", None) == self._number:
                waits = False
                if isinstance(reply, protocol.Failure):
                    self.outcomes[reply.error] += 1
                    self._steps = iter(())
        if waits:
            return
        header, *frames = next(self._steps, (None,))
        if header is None:
            self._steps = self._messages()
            header, *frames = next(self._steps)
        self._number = header.number
        self._send(header, *filter(None, frames))
