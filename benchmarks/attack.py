"""A hostile client with its own key: `benchmarks.hostile` starts it.

    python -m benchmarks.attack ADDRESS KEYS MUTATED REPLAYED RATE SEED

It prints READY at its start, and its counts at its end. It sends first mutated frames, then replayed or cut messages,
RATE a second. Every fifth of the latter is a TCP connection with the recorded bytes of another connection, including
CURVE's handshake, or with the first of these bytes. Then come as many messages of uploads in floods of a thousand keys,
half as many with deep structures, and all the time, on another connection, compile bombs (`benchmarks.heavy_attacks`).
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket as sockets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any

import msgspec
import zmq

from benchmarks.heavy_attacks import FLOOD_KEYS, Bombs, deep, flood
from kaas.peers.overhead import subtraction
from kaas.wire import protocol
from kaas.wire.connections.zmq_reader import end
from kaas.wire.key_files import OwnKeys, own_keys
from kaas.wire.sent_ktasks import encode_library, encode_task

BURST = 10
"""The number of messages that are sent at once; the pace is kept between bursts."""
LATE_S = 0.1
"""The longest delay that is made up for: longer ones, while it was held or had no processor, are not."""
NICE = 10
HELLO_EVERY = 500
RAW_EVERY = 5
DEPTH = 2000
RECORD_S = 2.0
TIMEOUT_S = 10.0
"""The time limit for a TCP connection to be made, or to take some bytes."""
FUNCTION = "diff"
READY = "ready\n"

Message = list[bytes]


def corpus() -> list[Message]:
    """Return valid messages of every kind, of a client that has registered FUNCTION."""
    task, array = subtraction(), bytes(4096)
    library = task.libraries[0]
    code = encode_library(library)
    messages: list[tuple[Any, list[bytes]]] = [
        (protocol.Hello(protocol.VERSION, token_hex(16)), []),
        (protocol.Upload(1, library.hash, len(code), "library"), []),
        (protocol.Chunk(2, library.hash, 0), [code]),
        (protocol.Register(3, FUNCTION), [encode_task(task)]),
        (protocol.Functions(4), []),
        (protocol.Put(5, "x", "float32", (1024,)), [array]),
        (protocol.Get(6, "x"), []),
        (protocol.Objects(7), []),
        (protocol.Invoke(8, FUNCTION, {"x": protocol.Input(1)}), [array]),
        (protocol.Invoke(9, FUNCTION, {"x": protocol.Input(object="x")}, key="once"), []),
        (
            protocol.Invoke(10, FUNCTION, {"x": protocol.Input(1)}, key="stored", deadline_s=1.5, store={"out": "y"}),
            [array],
        ),
        (protocol.Cancel(8), []),
        (protocol.Received((8, 9, 10)), []),
        (protocol.Ask(11, "status"), []),
        (protocol.Ask(12, "usage"), []),
        (protocol.Ask(13, "health"), [b"canary"]),
        (protocol.Ask(14, "drain"), []),
        (protocol.Delete(15, "x"), []),
        (protocol.Unregister(16, "never"), []),
    ]
    return [[protocol.encode(header), *frames] for header, frames in messages]


class Mutations:
    """Random mutations of messages."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._kinds: list[Callable[[Message, Message], Message]] = [
            self._flip, self._flip, self._cut, self._splice, self._huge, self._deep, self._frames, self._fields,
        ]  # fmt: skip

    def of(self, message: Message, other: Message) -> Message:
        return self._chance.choice(self._kinds)(list(message), other)

    def _flip(self, message: Message, _: Message) -> Message:
        """Flip some bits of a frame, mostly of the header."""
        place = 0 if self._chance.random() < 0.8 else self._chance.randrange(len(message))
        data = bytearray(message[place] or b"\0")
        for _turn in range(self._chance.randint(1, 4)):
            data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
        message[place] = bytes(data)
        return message

    def _cut(self, message: Message, _: Message) -> Message:
        message[0] = message[0][: self._chance.randrange(len(message[0]) + 1)]
        return message

    def _splice(self, message: Message, other: Message) -> Message:
        """Join the beginning of one header and the end of another."""
        first, second = self._chance.randrange(len(message[0])), self._chance.randrange(len(other[0]))
        return [message[0][:first] + other[0][second:], *message[1:]]

    def _huge(self, message: Message, _: Message) -> Message:
        """Insert a map, list, text or binary whose length is larger than any message."""
        sign = self._chance.choice([b"\xdf", b"\xdd", b"\xdb", b"\xc6", b"\xc9"])
        place = self._chance.randrange(len(message[0]))
        message[0] = message[0][:place] + sign + b"\xff\xff\xff\xf0" + message[0][place:]
        return message

    def _deep(self, message: Message, _: Message) -> Message:
        """Replace the header by nested lists."""
        return [b"\x82\xa2op\xa5" + b"\x91" * self._chance.randrange(1, DEPTH), *message[1:]]

    def _frames(self, message: Message, other: Message) -> Message:
        """Give the message too many frames, none, or those of another message."""
        return self._chance.choice([message * 20, message[:1], [message[0], *other[1:]], [b"", *message], [b""] * 50])

    def _fields(self, message: Message, other: Message) -> Message:
        """Give a field the value of another message, or a value of another type."""
        fields, others = (msgspec.msgpack.decode(header[0]) for header in (message, other))
        name = self._chance.choice([*fields])
        odd = [
            None,
            -1,
            2**63,
            2**64 - 1,
            1e308,
            float("nan"),
            "",
            "x" * 5000,
            [],
            {},
            b"\0" * 100,
            True,
            *others.values(),
        ]
        fields[name] = self._chance.choice(odd)
        return [msgspec.msgpack.encode(fields), *message[1:]]


class Attacker:
    """One connection, which is made again when the server ends it."""

    def __init__(self, address: str, keys: OwnKeys, rate: float) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._address, self._keys, self._rate = address, keys, rate
        self._socket = self.connected(address)
        self._bombs = Bombs(self.connected(address))
        self.counts: Counter[str] = Counter()

    def connected(self, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.curve_serverkey = self._keys.server_key.encode()
        socket.curve_publickey = self._keys.public_key.encode()
        socket.curve_secretkey = self._keys.secret_key.encode()
        socket.connect(address)
        return socket

    def send(self, messages: Iterator[Callable[[], None]]) -> None:
        """Send the messages at the pace."""
        due_s = monotonic()
        for number, message in enumerate(messages):
            if number % HELLO_EVERY == 0:
                self.message([protocol.encode(protocol.Hello(protocol.VERSION, token_hex(16)))])
            message()
            if number % BURST == 0:
                due_s = max(due_s + BURST / self._rate, monotonic() - LATE_S)
                threading.Event().wait(max(due_s - monotonic(), 0))
                self.read()
                self._bombs.go_on()

    def message(self, frames: Message) -> None:
        try:
            self._socket.send_multipart(frames, zmq.DONTWAIT)
            self.counts["sent"] += 1
        except zmq.Again:
            self.counts["not taken"] += 1

    def read(self) -> None:
        """Read half of the replies: the server has to cope with programs that do not read."""
        while self.counts["sent"] > 2 * self.counts["answers"]:
            try:
                head = self._socket.recv_multipart(zmq.DONTWAIT)[0]
            except zmq.Again:
                return
            self.counts["answers"] += 1
            self.counts[f"answers: {type(protocol.decode_from_server(head)).__name__}"] += 1

    def recorded(self, messages: list[Message]) -> bytes:
        """Return the bytes on TCP when these messages are sent through CURVE."""
        relay = sockets.create_server(("127.0.0.1", 0))
        relay.settimeout(TIMEOUT_S)
        socket = self.connected(f"tcp://127.0.0.1:{relay.getsockname()[1]}")
        for message in messages:
            socket.send_multipart(message)
        near, _ = relay.accept()
        far = self.tcp()
        near.settimeout(TIMEOUT_S)
        heard = bytearray()
        both = selectors.DefaultSelector()
        for source in (near, far):
            both.register(source, selectors.EVENT_READ)
        ends_s = monotonic() + RECORD_S
        while (left_s := ends_s - monotonic()) > 0:
            for key, _ in both.select(left_s):
                source = near if key.fileobj is near else far
                data = source.recv(1 << 16)
                (far if source is near else near).sendall(data)
                if source is near:
                    heard += data
        both.close()
        for each in (socket, near, far, relay):
            each.close()
        return bytes(heard)

    def tcp(self) -> sockets.socket:
        host, port = self._address.removeprefix("tcp://").rsplit(":", 1)
        return sockets.create_connection((host, int(port)), TIMEOUT_S)

    def raw(self, data: bytes) -> None:
        """Make a TCP connection, send these bytes, and close it."""
        try:
            with self.tcp() as connection:
                connection.sendall(data)
            self.counts["connections"] += 1
        except OSError:
            self.counts["connections refused"] += 1

    @property
    def bombs(self) -> Counter[str]:
        """The replies to compile bombs, by the error's name."""
        return self._bombs.outcomes

    def close(self) -> None:
        """Close the socket within a limited time, even if ZeroMQ waits for something."""
        self._socket.close()
        self._bombs.close()
        end(self._context, 0.0)


def main() -> None:
    address, keys, mutated, replayed, rate, seed = sys.argv[1:]
    os.nice(NICE)  # the program stands for one on another machine
    chance = random.Random(int(seed))
    messages = corpus()
    attacker = Attacker(address, own_keys(Path(keys)), float(rate))
    recorded = attacker.recorded(messages)
    for message in messages:
        attacker.message(message)
    mutations = Mutations(chance)

    def mutants() -> Iterator[Callable[[], None]]:
        for _ in range(int(mutated)):
            message = mutations.of(chance.choice(messages), chance.choice(messages))
            yield partial(attacker.message, message)

    def replays() -> Iterator[Callable[[], None]]:
        for number in range(int(replayed)):
            if number % RAW_EVERY == 0:
                data = recorded[: chance.choice([len(recorded), chance.randrange(len(recorded))])]
                yield partial(attacker.raw, data)
            else:
                message = chance.choice(messages)
                some = message[: chance.randint(1, len(message))]
                yield partial(attacker.message, some)

    def floods() -> Iterator[Callable[[], None]]:
        for _ in range(max(1, int(replayed) // (2 * FLOOD_KEYS))):
            for message in flood():
                yield partial(attacker.message, message)

    def deep_structures() -> Iterator[Callable[[], None]]:
        for _ in range(int(replayed) // 2):
            yield partial(attacker.message, deep(chance, task))

    task = subtraction()
    print(READY, end="", flush=True)
    for messages_of in (mutants, replays, floods, deep_structures):
        attacker.send(messages_of())
    print(json.dumps({**attacker.counts, **{f"bombs: {how}": count for how, count in attacker.bombs.items()}}))
    attacker.close()


if __name__ == "__main__":
    main()
