"""A client in another network namespace, through CURVE, and unauthenticated peers there, which learn nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest

from benchmarks.served import Server
from examples import nearest_neighbours
from kaas.server.clients.keys import new_client

ROOT = Path(__file__).parents[3]
VERTICES, SEARCHES, STEPS = 128, 32, 4
SECRET = "a-name-that-nobody-else-is-to-learn"


def allowed() -> bool:
    """Whether this process may make network namespaces."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


pytestmark = [pytest.mark.processes, pytest.mark.skipif(not allowed(), reason="may not make network namespaces")]


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A network with one way out. host: the address of this machine in it."""

    name: str
    host: str

    def run(self, *command: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return subprocess.run(
            ["ip", "netns", "exec", self.name, sys.executable, *command],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    name = f"kaas{token_hex(3)}"
    here, there = f"{name}h", f"{name}t"
    third = os.getpid() % 250 + 1  # of an address for tests only, so that two suites may run side by side
    ip("netns", "add", name)
    try:
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        ip("addr", "add", f"198.18.{third}.1/30", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", name, "addr", "add", f"198.18.{third}.2/30", "dev", there)
        ip("-n", name, "link", "set", there, "up")
        yield Elsewhere(name, f"198.18.{third}.1")
    finally:
        ip("netns", "del", name)


@pytest.fixture(scope="module")
def server(elsewhere: Elsewhere, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    with Server(folder, [SECRET], host=elsewhere.host) as started:
        yield started


def ask(
    elsewhere: Elsewhere, server: Server, folder: Path, function: Path, inputs: Any, constants: Any = None
) -> np.ndarray[Any, Any]:
    """The reply that a program there receives."""
    paths = [folder / name for name in ("inputs.npz", "constants.npz", "answer.npz")]
    np.savez(paths[0], **inputs)
    np.savez(paths[1], **(constants or {}))
    given = (server.address, server.keys(SECRET), function, *paths)
    ended = elsewhere.run("-m", "tests.server.outside", *map(str, given), timeout_s=300)
    assert ended.returncode == 0, ended.stderr
    with np.load(paths[2]) as stored:
        answer: np.ndarray[Any, Any] = stored["answer"]
        return answer


def test_nearest_neighbours_through_curve(elsewhere: Elsewhere, server: Server, tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    a = nearest_neighbours.random_graph(VERTICES, 5, rng)
    x = nearest_neighbours.random_starts(VERTICES, SEARCHES, rng)
    path = tmp_path / "task.json"
    path.write_text(nearest_neighbours.build(VERTICES, SEARCHES, STEPS).to_json())
    answer = ask(elsewhere, server, tmp_path, path, {"X": x}, {"A": a})
    np.testing.assert_allclose(answer, nearest_neighbours.reference(a, x, STEPS), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["convnet", pytest.param("resnet50", marks=pytest.mark.full)])
def test_a_network_through_curve(elsewhere: Elsewhere, server: Server, tmp_path: Path, name: str) -> None:
    pytest.importorskip("tvm")
    pytest.importorskip("onnx")
    from benchmarks.models import MODELS, relative_error, same_top1

    model = MODELS[name]
    model.compiled((1,), target="ptx").save(tmp_path / "model.kaas")
    scores = ask(elsewhere, server, tmp_path, tmp_path / "model.kaas", model.inputs())
    (expected,) = model.answers().values()
    assert relative_error(scores, expected) <= 1e-3
    assert same_top1(scores, expected)


PEER = """
import sys
import zmq
from zmq.utils.monitor import recv_monitor_message
from kaas.wire import protocol
from kaas.wire.key_files import own_keys

address, path = sys.argv[1:]
keys = own_keys(path) if path else None
context = zmq.Context()
socket = context.socket(zmq.DEALER)
socket.linger = 0
if keys is not None:
    socket.curve_serverkey = keys.server_key.encode()
    socket.curve_publickey, socket.curve_secretkey = keys.public_key.encode(), keys.secret_key.encode()
monitor = socket.get_monitor_socket()
socket.connect(address)
socket.send(protocol.encode(protocol.Hello(protocol.VERSION, "0" * 32)))
event = 0
while event not in (zmq.EVENT_DISCONNECTED, zmq.EVENT_CLOSED):
    event = recv_monitor_message(monitor)["event"]
    assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
assert socket.poll(1000) == 0
print("nothing")
"""


@pytest.mark.parametrize("kind", ["another server's key", "no key at all"])
def test_an_unknown_key_gets_nothing(elsewhere: Elsewhere, server: Server, tmp_path: Path, kind: str) -> None:
    path = ""
    if kind == "another server's key":
        other = new_client(tmp_path / "other", "eve", tmp_path / "eve.toml")
        text = (tmp_path / "eve.toml").read_text().replace(other.server_key, server.public_key)
        (tmp_path / "eve.toml").write_text(text)
        path = str(tmp_path / "eve.toml")
    ended = elsewhere.run("-c", PEER, server.address, path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "nothing\n"


def test_an_unauthenticated_peer_learns_nothing_from_the_bytes(elsewhere: Elsewhere, server: Server) -> None:
    """Before a key is shown, only ZMTP's greeting comes over TCP, and it has no name of a client."""
    program = """
import socket, sys
host, port = sys.argv[1].removeprefix("tcp://").split(":")
connection = socket.create_connection((host, int(port)))
greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x00" + b"NULL".ljust(20, b"\\0") + bytes(32)
connection.sendall(greeting)
connection.sendall(b"\\x04\\x19\\x05READY" + bytes(18))
connection.settimeout(10)
received = b""
try:
    while data := connection.recv(4096):
        received += data
except (TimeoutError, ConnectionResetError):
    pass
print(received.hex())
"""
    ended = elsewhere.run("-c", program, server.address)
    assert ended.returncode == 0, ended.stderr
    received = bytes.fromhex(ended.stdout)
    assert len(received) <= 64, "the greeting"
    assert SECRET.encode() not in received
    assert b"kaas" not in received.lower()


# --- clients that are gone

GONE = """
import subprocess
from contextlib import closing
from kaas.server.clients import tcp_connections
from kaas.wire import protocol
from tests.server.clients.listeners import Client, Open, echo, echoes
from tests.timeouts import TIMEOUT_S

tcp_connections.PROBE_S, tcp_connections.DEAD_S = 1, 3
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
opened = Open(None)
echo(opened)
with closing(opened), closing(Client(opened, None)) as quiet, closing(Client(opened, None)) as waiting:
    echoes(quiet)
    echoes(waiting)
    channels = [opened.arrived()[0] for _ in range(2)]
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    opened.do(lambda: channels[1].send(protocol.Done(2)))
    assert {opened.gone.get(timeout=TIMEOUT_S) for _ in channels} == set(channels)
"""


@pytest.mark.full
def test_clients_whose_network_is_gone_are_noticed() -> None:
    """One of them is silent, and the other one has a message that is not acknowledged."""
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", GONE], cwd=ROOT, timeout=120, check=False)
    assert done.returncode == 0
