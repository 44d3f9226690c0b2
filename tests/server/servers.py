"""A server in its own process, for tests, and a client that speaks its protocol message by message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from secrets import token_hex
from typing import IO, Any, TypeVar

import msgspec
import zmq

import kaas
from kaas.cli.serve import READY
from kaas.server.clients.keys import new_client, prepare
from kaas.wire import protocol, sent_ktasks
from kaas.wire.key_files import OwnKeys, own_keys
from kaas.worker import sandbox
from tests.timeouts import TIMEOUT_S, readable

ROOT = Path(__file__).parents[2]
STEPS = kaas.Library.from_file(ROOT / "tests" / "api" / "kernels" / "steps.ptx")
WIDTH = 1024
CLIENTS = ("alice", "bob", "boss")
"""The clients that have keys."""
DEVICE = {"kind": "software", "memory_bytes": 256 << 20}

CONTEXT: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
"""The context of all speakers: a context of each would wait forever for open sockets of a failed test."""

T = TypeVar("T", bound=protocol.FromServer)


def scaled(factor: float = 2.0, width: int = WIDTH) -> kaas.KTask:
    """y = factor * x."""
    x, y = kaas.Buffer("x", width, "float32"), kaas.Buffer("y", width, "float32")
    kernel = kaas.Kernel(
        STEPS, "scale", -(-width // 256), 256, [kaas.In(x), kaas.Out(y), kaas.f32(factor), kaas.u32(width)]
    )
    return kaas.KTask([kernel], [y])


class Server:
    """`kaas serve`, from its start to its end.

    Fields:
        endpoint: where it is. folder: with its configuration, state and keys.
    """

    def __init__(
        self,
        folder: Path,
        settings: dict[str, Any] | None = None,
        *,
        insecure: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        """settings: besides those of every test. prefix: words before its command, of a program that becomes the
        server. A server that starts in the folder of an ended one continues with the state of that one."""
        self.folder = folder
        self._insecure = insecure
        self.keys = folder / "keys"
        self.name = str((settings or {}).get("name", f"test {token_hex(4)}"))
        self.errors = folder / "stderr"
        with self.errors.open("ab") as errors:
            wanted = {"name": self.name, **(settings or {})}
            self.process = started(folder, wanted, errors, insecure=insecure, prefix=prefix)
        self.endpoint = self._ready()

    def _ready(self) -> str:
        assert self.process.stdout is not None, "a pipe"
        assert readable(self.process.stdout), "it says nothing"
        line = self.process.stdout.readline().decode()
        assert line.startswith(READY), (line, self.errors.read_text())
        return line.split()[-1]

    def key_of(self, name: str) -> OwnKeys | None:
        """Return the keys of one of CLIENTS; None without keys."""
        return None if self._insecure else own_keys(self.folder / f"{name}.keys")

    def speaker(self, name: str = "alice", *, session: str | None = None) -> Speaker:
        """Return a speaker that has sent Hello."""
        speaker = Speaker(self.endpoint, self.key_of(name))
        speaker.greet(session)
        return speaker

    def children(self) -> list[int]:
        """Process ids: its executors', and those of steps."""
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for file in children for pid in file.read_text().split()]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """Its exit status."""
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


def refused(folder: Path, settings: dict[str, Any]) -> str:
    """Return the errors of a server that does not start with these settings."""
    process = started(folder, {"name": f"test {token_hex(4)}", **settings}, subprocess.PIPE)
    said, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, errors
    assert READY.encode() not in said  # Ray may have said something
    return errors.decode()


def started(
    folder: Path,
    settings: dict[str, Any],
    errors: IO[bytes] | int,
    *,
    insecure: bool = False,
    prefix: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """A server's process, whatever becomes of it."""
    keys = folder / "keys"
    config: dict[str, Any] = {
        "listen": {"port": 0},
        "state": str(folder / "state"),
        "pool": {"devices": [DEVICE]},
        "code": {"any": True},
        "sandbox": sandbox.available(),
        **settings,
    }
    if not insecure:
        prepare(keys)
        config["keys"] = str(keys)
        for name in CLIENTS:  # a server knows those that come later only after a while
            if not (folder / f"{name}.keys").exists():
                new_client(keys, name, folder / f"{name}.keys")
    path = folder / "kaas.yaml"
    path.write_bytes(msgspec.yaml.encode(config))
    command = [*prefix, sys.executable, "-m", "kaas.cli", "serve", "--config", str(path)]
    return subprocess.Popen(
        [*command, "--insecure"] if insecure else command,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


class Speaker:
    """A connection that may send any message. Numbers are counted from 1."""

    def __init__(self, endpoint: str, keys: OwnKeys | None) -> None:
        self.socket = socket = CONTEXT.socket(zmq.DEALER)
        socket.linger = 0
        if keys is not None:
            socket.curve_serverkey = keys.server_key.encode()
            socket.curve_publickey, socket.curve_secretkey = keys.public_key.encode(), keys.secret_key.encode()
        socket.connect(endpoint)
        self.session = ""
        self._number = 0

    def number(self) -> int:
        self._number += 1
        return self._number

    def send(self, message: protocol.FromClient | bytes, *frames: Any) -> None:
        header = message if isinstance(message, bytes) else protocol.encode(message)
        self.socket.send_multipart([header, *frames])

    def receive(self, patience_s: float = TIMEOUT_S) -> tuple[protocol.FromServer, list[bytes]]:
        """The next message."""
        assert self.socket.poll(int(patience_s * 1000)), "nothing came"
        header, *frames = self.socket.recv_multipart()
        return protocol.decode_from_server(header), frames

    def quiet(self) -> bool:
        """Return True if no message comes before the reply to a query."""
        number = self.number()
        self.send(protocol.Ask(number, "health"))
        answer, _ = self.receive()
        return isinstance(answer, protocol.Reply) and answer.number == number

    def reply_to(self, kind: type[T], message: protocol.FromClient, *frames: Any) -> tuple[T, list[bytes]]:
        """Return the reply to a message, which must be of this kind."""
        self.send(message, *frames)
        answer, came = self.receive()
        assert isinstance(answer, kind), answer
        return answer, came

    def greet(self, session: str | None = None) -> protocol.Welcome:
        self.session = session or token_hex(16)
        return self.reply_to(protocol.Welcome, protocol.Hello(protocol.VERSION, self.session))[0]

    def register(self, task: kaas.KTask, name: str = "") -> protocol.Registered:
        """With its libraries."""
        for library in task.libraries:
            data = sent_ktasks.encode_library(library)
            self.reply_to(protocol.Uploaded, protocol.Upload(self.number(), library.hash, len(data), "library"))
            self.reply_to(protocol.Uploaded, protocol.Chunk(self.number(), library.hash, 0), data)
        return self.reply_to(
            protocol.Registered, protocol.Register(self.number(), name), sent_ktasks.encode_task(task)
        )[0]

    def invoke(self, function: str, *values: Any, number: int = 0, **options: Any) -> int:
        """Its number. values: of the inputs x, y and so on."""
        number = number or self.number()
        inputs = {name: protocol.Input(frame=1 + index) for index, name in enumerate("xyz"[: len(values)])}
        self.send(protocol.Invoke(number, function, inputs, **options), *values)
        return number

    def ask(self, what: str, *frames: bytes) -> Any:
        return self.reply_to(protocol.Reply, protocol.Ask(self.number(), what), *frames)[0].answer

    def received(self, numbers: Sequence[int]) -> None:
        self.send(protocol.Received(tuple(numbers)))

    def close(self) -> None:
        self.socket.close()
