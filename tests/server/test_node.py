"""The client in Node.js reads and writes the vectors, and runs functions of a server."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kaas
from benchmarks.served import Server
from kaas.peers.overhead import ELEMENTS, subtraction
from kaas.server.clients.keys import new_client
from kaas.wire.key_files import own_keys
from tests.timeouts import TIMEOUT_S
from tests.wire import vectors

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "node"
LONGEST = 145
"""Lines of the client."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="needs node and npm"),
]

Node = Callable[..., str]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """The output of a program of the example, with the packages that its lock file names."""
    folder = tmp_path_factory.mktemp("node")
    for path in EXAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    shutil.copy(Path(__file__).with_name("flood.mjs"), folder)
    _run(["npm", "ci", "--no-audit", "--no-fund"], folder)
    return lambda *arguments: _run(["node", *arguments], folder)


def _run(command: list[str], folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_lock_names_no_address() -> None:
    assert "://" not in (EXAMPLE / "package-lock.json").read_text()


def test_the_client_is_short() -> None:
    assert len((EXAMPLE / "client.mjs").read_text().splitlines()) <= LONGEST


def test_the_client_reads_and_writes_the_vectors(node: Node) -> None:
    count = sum(len(found) for name, found in vectors.written().items() if name != "refused") + 3
    assert node("vectors.mjs", str(vectors.FOLDER)) == f"{count} vectors\n"


@pytest.fixture(scope="module", params=["curve", pytest.param("insecure", marks=pytest.mark.full)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server where a client in Python has registered the functions for the client in Node.js."""
    with Server(tmp_path_factory.mktemp("served"), ["ada"], insecure=request.param == "insecure") as started:
        with kaas.Client(started.address, keys=None if started.insecure else started.keys("ada")) as client:
            client.register(subtraction(), name="difference")
        yield started


def last(server: Server) -> list[str]:
    """The argument that comes last: the file of keys, if there is one."""
    return [] if server.insecure else [str(server.keys("ada"))]


def test_the_client_reads_the_health_of_a_server(node: Node, server: Server) -> None:
    assert json.loads(node("call.mjs", server.address, "health", *last(server)))["live"] is True


def test_the_client_invokes_a_function(node: Node, server: Server) -> None:
    inputs = json.dumps({"x": list(range(ELEMENTS))})
    assert json.loads(node("call.mjs", server.address, "difference", inputs, *last(server))) == {"out": [0] * ELEMENTS}


def test_the_client_keeps_within_its_credit(node: Node, server: Server) -> None:
    assert node("flood.mjs", server.address, "difference", "2000", *last(server)) == "2000\n"


@pytest.mark.full
def test_a_wrong_key_or_port_is_a_sentence(node: Node, server: Server, tmp_path: Path) -> None:
    if server.insecure:
        pytest.skip("it has no keys")
    stranger = new_client(tmp_path / "other", "ada", tmp_path / "stranger.toml")
    text = server.keys("ada").read_text()
    own = own_keys(server.keys("ada"))
    (tmp_path / "unknown.toml").write_text(
        text.replace(own.public_key, stranger.public_key).replace(own.secret_key, stranger.secret_key)
    )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    cases = (
        (server.address, tmp_path / "unknown.toml", "the server does not take this key"),
        (server.address, tmp_path / "stranger.toml", "the server hangs up: it may have another key"),
        (free, server.keys("ada"), "no server is there"),
    )
    with ThreadPoolExecutor(len(cases)) as threads:
        calls = [threads.submit(node, "call.mjs", address, "health", str(keys)) for address, keys, _ in cases]
    for call, (address, _, words) in zip(calls, cases, strict=True):
        assert isinstance(call.exception(), AssertionError)
        assert f"Unreachable: the server at {address} cannot be reached: {words}" in str(call.exception())


def test_failures_are_errors(node: Node, server: Server) -> None:
    with pytest.raises(AssertionError, match="WrongSize"):
        node("call.mjs", server.address, "difference", json.dumps({"x": [1, 2]}), *last(server))


def test_the_client_repeats_its_requests_after_the_server_was_killed(node: Node, tmp_path: Path) -> None:
    with Server(tmp_path, ["ada"], kernels_s={"vsub": 0.01}) as server, ThreadPoolExecutor(1) as beside:
        with kaas.Client(server.address, keys=server.keys("ada")) as client:
            client.register(subtraction(), name="difference")
        count = 500
        flood = beside.submit(node, "flood.mjs", server.address, "difference", str(count), *last(server))
        while server.charged()["ada"] < 100:
            assert not flood.done()
        server.kill()
        server.start()
        assert flood.result() == f"{count}\n"
        assert server.charged()["ada"] == count, "each once"
