"""A listener with a loop on its own thread, and clients of it, for tests."""

from __future__ import annotations

import asyncio
import queue
import resource
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from kaas.pool.loop import PoolLoop
from kaas.server.clients.keys import Keys, new_client
from kaas.server.clients.listener import ServerChannel, ServerListener
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys, own_keys
from tests.timeouts import TIMEOUT_S

T = TypeVar("T")
FRAME_BYTES = 1 << 20
DONE = protocol.encode(protocol.Done(1))
LOCAL = "127.0.0.1"
FAILED = zmq.Event.HANDSHAKE_FAILED_AUTH | zmq.Event.HANDSHAKE_FAILED_PROTOCOL | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL


class Open:
    """A listener that notes the arrived messages.

    Fields:
        received: in order. gone: channels that have ended. on_receive: is called too. faults: errors out of it.
    """

    def __init__(self, keys: Keys | None, host: str = LOCAL, port: int = 0, **limits: Any) -> None:
        self.received: queue.Queue[tuple[ServerChannel, list[Any]]] = queue.Queue()
        self.gone: queue.Queue[ServerChannel] = queue.Queue()
        self.faults: queue.Queue[dict[str, Any]] = queue.Queue()
        self.on_receive: Callable[[ServerChannel, list[Any]], object] = lambda _channel, _frames: None
        self.loop = PoolLoop()
        self.loop.set_exception_handler(lambda _loop, context: self.faults.put(context))
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        server = None if keys is None else keys.server
        try:
            self.listener = self.do(
                lambda: ServerListener(self.loop, host, port, keys, server, self._receive, gone=self.gone.put, **limits)
            )
        except BaseException:
            self._end()
            raise

    @property
    def port(self) -> int:
        return int(self.listener.endpoint.rpartition(":")[2])

    def do(self, action: Callable[[], T]) -> T:
        """On the loop's thread."""

        async def act() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(act(), self.loop).result(TIMEOUT_S)

    def arrived(self) -> tuple[ServerChannel, list[Any]]:
        return self.received.get(timeout=TIMEOUT_S)

    def close(self, wait_s: float = 0.0) -> None:
        self.do(lambda: self.listener.close(wait_s))
        self._end()
        assert self.faults.empty()

    def _end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        self.loop.close()

    def _receive(self, channel: ServerChannel, frames: list[Any]) -> None:
        self.received.put((channel, frames))
        self.on_receive(channel, frames)


class Client:
    """A socket like a client's. own: None for one without keys."""

    def __init__(self, listener: Open, own: OwnKeys | None, server_key: str = "", **options: Any) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.rcvtimeo = self.socket.sndtimeo = int(TIMEOUT_S * 1000)
        self.socket.reconnect_ivl = -1
        for name, value in options.items():
            setattr(self.socket, name, value)
        if own is not None:
            self.socket.curve_serverkey = (server_key or own.server_key).encode()
            self.socket.curve_publickey, self.socket.curve_secretkey = own.public_key.encode(), own.secret_key.encode()
        self.monitor = self.socket.get_monitor_socket(FAILED | zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED)
        self.monitor.rcvtimeo = int(TIMEOUT_S * 1000)
        self.socket.connect(listener.listener.endpoint)

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(frames)

    def try_to_send(self, *frames: bytes) -> None:
        """As `send`, if the connection has not ended meanwhile."""
        with suppress(zmq.Again):
            self.socket.send_multipart(frames, zmq.DONTWAIT)

    def receive(self) -> list[bytes]:
        return self.socket.recv_multipart()

    def happened(self) -> zmq.Event:
        """The next event of the connection."""
        return zmq.Event(parse_monitor_message(self.monitor.recv_multipart())["event"])

    def refused(self) -> bool:
        event = self.happened()
        assert not event & zmq.Event.HANDSHAKE_SUCCEEDED
        return bool(event & FAILED)

    def disconnected(self) -> bool:
        """Whether its connection ends."""
        while not self.happened() & zmq.Event.DISCONNECTED:
            pass
        return True

    def close(self) -> None:
        if not self.socket.closed:
            self.socket.disable_monitor()  # first: ZeroMQ's own thread would wait for ever for a monitor that is closed
            self.context.destroy(linger=0)


class Crowd:
    """Connections of one client in another process, so that this one's memory is the listener's."""

    def __init__(self, listener: Open, own: OwnKeys) -> None:
        said = (listener.listener.endpoint, own.server_key, own.public_key, own.secret_key)
        command = [sys.executable, "-c", CROWD, *said]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def connect(self, number: int) -> None:
        """Open so many more connections, each of which is answered once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(number, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "here\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


CROWD = """
import sys, zmq
endpoint, server_key, public_key, secret_key = sys.argv[1:]
context, there = zmq.Context(), []
for line in sys.stdin:
    for _ in range(int(line)):
        socket = context.socket(zmq.DEALER)
        socket.curve_serverkey, socket.curve_publickey = server_key.encode(), public_key.encode()
        socket.curve_secretkey = secret_key.encode()
        socket.connect(endpoint)
        socket.send(b"here")
        socket.recv_multipart()
        there.append(socket)
    print("here", flush=True)
"""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class Plain:
    """A peer that writes any bytes to the port."""

    def __init__(self, listener: Open) -> None:
        self.socket = socket.create_connection((LOCAL, listener.port), TIMEOUT_S)

    def disconnected(self) -> bool:
        """Whether the server ends this."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True

    def close(self) -> None:
        self.socket.close()


def client_keys(folder: Path, name: str) -> OwnKeys:
    """Of a new client of a server's folder."""
    secret_file = folder.with_name(f"{name}.toml")
    new_client(folder, name, secret_file)
    return own_keys(secret_file)


def echo(listener: Open) -> None:
    """From now on every message is answered with its own frames."""
    listener.on_receive = lambda channel, frames: channel.send(protocol.Done(1), frames)


def echoes(client: Client, *frames: bytes) -> None:
    client.send(*frames or (b"here",))
    assert client.receive() == [DONE, *(frames or (b"here",))]


Connect = Callable[..., Client]


def greeting(mechanism: bytes) -> bytes:
    """Of ZMTP 3.1."""
    return b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32)


def command(body: bytes) -> bytes:
    return struct.pack(">BQ", 6, len(body)) + body


READY = command(b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER")
