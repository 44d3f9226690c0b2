"""A server that replies as a test wants: a ROUTER on a thread that speaks `kaas.wire.protocol`."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import zmq
from msgspec.structs import replace

from kaas.wire import protocol
from kaas.wire.sent_ktasks import decode_task
from tests.timeouts import TIMEOUT_S

LIMITS = protocol.Limits(64, 1 << 20, 4 << 20)
Socket = zmq.Socket[bytes]


class FakeServer:
    """A server that doubles inputs as float32, and knows each function whose kTask it received.

    Fields:
        messages: those that arrived, in order. silent: Invokes get no reply. lacking: until so many bytes of an
            upload have come the connection breaks. breaks_before_done: likewise once, instead of the next Done.
        puts_together: a Put has its reply when so many have come.
    """

    def __init__(self, limits: protocol.Limits = LIMITS) -> None:
        self.limits, self.epoch, self.port = limits, "first", 0
        self.messages: list[Any] = []
        self.silent = False
        self.failing: list[protocol.Failure] = []  # one for each of the next Invokes
        self.putting: list[bytes] = []  # values that replace an object after its next Gets
        self.breaks_after: int | None = None  # bytes of an upload
        self.breaks_before_done = False
        self.puts_together = 1
        self.uploads: dict[str, bytearray] = {}
        self.objects: dict[str, tuple[protocol.Put, bytes]] = {}
        self.registered: dict[str, protocol.Registered] = {}
        self.unanswered: list[tuple[bytes, protocol.Invoke, list[bytes]]] = []
        self._waiting_puts: list[int] = []
        self._orders: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._bell = os.eventfd(0)
        self._changed = threading.Condition()
        self._socket: Socket | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    # --- controls of tests

    def order(self, do: Callable[[], Any]) -> None:
        """Call a function on the server's thread, and wait for its end."""
        done = threading.Event()

        def ordered() -> None:
            do()
            done.set()

        self._orders.put(ordered)
        os.eventfd_write(self._bell, 1)
        assert done.wait(TIMEOUT_S)

    def start(self) -> None:
        self.order(self._bind)

    def stop(self) -> None:
        """Break all connections, and accept no more."""
        self.order(self._unbind)

    def again(self, epoch: str) -> None:
        """Act as if the server had restarted, or as if its connections had broken if the epoch is the same."""
        self.epoch = epoch
        self.order(self._unbind)
        self.unanswered.clear()
        self.order(self._bind)

    def send(self, message: Any) -> None:
        """Send a message to all peers of the newest Hellos."""
        self.order(lambda: self._send(self._last, message))

    def answer_all(self) -> None:
        """Reply to the requests without a reply."""

        def answer() -> None:
            asked, self.unanswered = self.unanswered, []
            for identity, message, frames in asked:
                self._invoked(identity, message, frames)

        self.silent = False
        self.order(answer)

    def until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, TIMEOUT_S), self.messages

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.messages if type(message) is kind]

    def close(self) -> None:
        self._orders.put(None)
        os.eventfd_write(self._bell, 1)
        self._thread.join(TIMEOUT_S)
        os.close(self._bell)

    # --- its thread

    def _bind(self) -> None:
        self._socket = socket = zmq.Context().socket(zmq.ROUTER)
        socket.linger = 0
        if self.port:
            socket.bind(self.address)
        else:
            self.port = socket.bind_to_random_port("tcp://127.0.0.1")

    def _unbind(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket.context.term()  # frees the port
            self._socket = None

    def _run(self) -> None:
        while True:
            waited: list[tuple[Any, int]] = [(self._bell, zmq.POLLIN)]
            if self._socket is not None:
                waited.append((self._socket, zmq.POLLIN))
            for ready, _ in zmq.zmq_poll(waited, -1):
                if ready != self._bell:
                    identity, header, *frames = ready.recv_multipart()
                    self._receive(identity, protocol.decode_from_client(header), frames)
                    continue
                os.eventfd_read(self._bell)
                while not self._orders.empty():
                    order = self._orders.get()
                    if order is None:
                        self._unbind()
                        return
                    order()
                break  # the socket may have been replaced

    def _send(self, identity: bytes, message: Any, frames: Sequence[bytes] = ()) -> None:
        if self._socket is not None:
            self._socket.send_multipart([identity, protocol.encode(message), *frames])

    def _receive(self, identity: bytes, message: Any, frames: list[bytes]) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        match message:
            case protocol.Hello():
                self._last = identity
                self._send(identity, protocol.Welcome(protocol.VERSION, self.epoch, "tester", self.limits))
            case protocol.Invoke():
                if self.failing:
                    self._send(identity, replace(self.failing.pop(0), number=message.number))
                elif self.silent:
                    self.unanswered.append((identity, message, frames))
                else:
                    self._invoked(identity, message, frames)
            case protocol.Cancel(number):
                self._send(identity, protocol.Failure(number, "Cancelled", "it was cancelled"))
            case protocol.Received():
                pass
            case _:
                self._reply(identity, message, frames)

    def _invoked(self, identity: bytes, message: protocol.Invoke, frames: Sequence[bytes]) -> None:
        outputs = self.registered[message.function].outputs
        values = [self._value(each, frames) for each in message.inputs.values()]
        came = {name: (np.frombuffer(values[0], np.float32) * 2).tobytes() for name in outputs}
        for name, stored in message.store.items():
            dtype, shape = outputs[name]
            self.objects[stored] = (protocol.Put(0, stored, dtype, shape), came.pop(name))
        self._send(identity, protocol.Result(message.number, tuple(came)), list(came.values()))

    def _value(self, given: protocol.Input, frames: Sequence[bytes]) -> bytes:
        return self.objects[given.object][1][given.offset :] if given.object else frames[given.frame - 1]

    def _reply(self, identity: bytes, message: Any, frames: Sequence[bytes]) -> None:
        number = message.number
        match message:
            case protocol.Upload(hash=digest):
                self._send(identity, protocol.Uploaded(number, len(self.uploads.setdefault(digest, bytearray()))))
            case protocol.Chunk(hash=digest, offset=offset):
                there = self.uploads[digest]
                if offset == len(there):
                    there += frames[0]
                if self.breaks_after is not None and len(there) >= self.breaks_after:
                    self.breaks_after = None
                    self._unbind()
                    self._bind()
                else:
                    self._send(identity, protocol.Uploaded(number, len(there)))
            case protocol.Register():
                self._send(identity, self._register(message, frames[0]))
            case protocol.Put():
                data = frames[0] if frames else bytes(self.uploads[message.hash])
                self.objects[message.name] = (message, data)
                self._waiting_puts.append(number)
                if len(self._waiting_puts) >= self.puts_together:
                    while self._waiting_puts:
                        self._send(identity, protocol.Done(self._waiting_puts.pop(0)))
            case protocol.Get(name=name, offset=offset, bytes=nbytes):
                put, data = self.objects[name]
                value = protocol.Value(number, put.dtype, put.shape, len(data), hashlib.sha256(data).hexdigest())
                self._send(identity, value, [data[offset : offset + nbytes]])
                if self.putting:
                    self.objects[name] = (put, self.putting.pop(0))
            case protocol.Delete(name=name):
                self._done(identity, number, self.objects.pop(name, None), "UnknownObject")
            case protocol.Unregister(function=key):
                self._done(identity, number, self.registered.pop(key, None), "UnknownFunction")
            case protocol.Objects():
                entries = [
                    {"name": name, "dtype": put.dtype, "shape": put.shape, "bytes": len(data)}
                    for name, (put, data) in self.objects.items()
                ]
                self._send(identity, protocol.Listed(number, entries))
            case protocol.Ask(what=what):
                self._send(identity, protocol.Reply(number, {"asked": what}))
            case _:
                self._send(identity, protocol.Failure(number, "InvalidRequest", "not of this server"))

    def _done(self, identity: bytes, number: int, removed: object, error: str) -> None:
        if removed is None:
            self._send(identity, protocol.Failure(number, error, "there is none"))
        elif self.breaks_before_done:
            self.breaks_before_done = False
            self._unbind()
            self._bind()
        else:
            self._send(identity, protocol.Done(number))

    def _register(self, message: protocol.Register, data: bytes) -> protocol.Registered:
        content = decode_task(data).content
        buffers = {buffer["name"]: (buffer["dtype"], tuple(buffer["shape"])) for buffer in content["buffers"]}
        outputs = {name: buffers[name] for name in content["outputs"]}
        inputs = {name: of for name, of in buffers.items() if name not in (*outputs, *message.constants)}
        key = hashlib.sha256(data + repr(message.constants).encode()).hexdigest()
        made = self.registered[key] = protocol.Registered(message.number, key, inputs, outputs)
        return made
