"""The log alone describes all events of a server: one line for each event, with time, level, cause."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import kaas
from kaas.wire import protocol, sent_ktasks
from kaas.wire.key_files import OwnKeys
from tests.server.servers import WIDTH, Server, Speaker, scaled
from tests.timeouts import until

pytestmark = pytest.mark.processes

ONES = np.ones(WIDTH, np.float32).tobytes()
FAIL = {"fail": "tests.server.steps.functions:fail"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("log"), {"steps": FAIL, "log": {"format": "json"}})
    yield server
    server.close()


def events(server: Server) -> list[dict[str, Any]]:
    lines = server.errors.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def awaited(server: Server, event: str, **fields: object) -> dict[str, Any]:
    """Wait for the first such event and return it."""

    def found() -> list[dict[str, Any]]:
        return [each for each in events(server) if each["event"] == event and fields.items() <= each.items()]

    until(lambda: bool(found()))
    return found()[0]


def test_a_server_logs_that_it_is_open_and_its_devices(server: Server) -> None:
    opened = awaited(server, "the server is open")
    assert opened["endpoint"] == server.endpoint
    assert opened["level"] == "INFO"
    assert opened["time"].endswith("Z")
    ready = awaited(server, "a worker is ready", device=0)
    assert ready["memory_bytes"] == 256 << 20


def test_refused_keys_are_logged_with_their_address_and_limited(server: Server) -> None:
    known = server.key_of("alice")
    assert known is not None
    for _ in range(20):
        public, secret = (key.decode() for key in zmq.curve_keypair())
        stranger = Speaker(server.endpoint, OwnKeys("alice", public, secret, known.server_key))
        stranger.send(protocol.Hello(protocol.VERSION, "a" * 32))
        until(lambda: any(each["event"] == "a key that no client has was refused" for each in events(server)))
        stranger.close()
    refused = [each for each in events(server) if each["event"] == "a key that no client has was refused"]
    assert {each["address"] for each in refused} == {"127.0.0.1"}
    assert len(refused) < 20


def test_a_killed_executor_is_logged_with_its_cause(server: Server) -> None:
    ready = awaited(server, "a worker is ready")
    os.kill(ready["pid"], signal.SIGKILL)
    ended = awaited(server, "a worker ended", pid=ready["pid"])
    assert ended["level"] == "WARNING"
    assert ended["device"] == 0
    assert "SIGKILL" in ended["reason"]
    until(lambda: sum(each["event"] == "a worker is ready" for each in events(server)) == 2)


def test_an_error_of_a_step_is_logged_with_its_traceback(server: Server) -> None:
    speaker = server.speaker()
    speaker.register(scaled())
    message = protocol.Register(speaker.number(), "chain", before="fail")
    speaker.reply_to(protocol.Registered, message, sent_ktasks.encode_task(scaled()))
    speaker.send(protocol.Invoke(speaker.number(), "chain", {"x": protocol.Input(frame=1)}), b"1")
    answer, _ = speaker.receive()
    assert isinstance(answer, protocol.Failure)
    assert "functions.py" not in answer.message
    told = awaited(server, "a step failed")
    assert (told["step"], told["client"], told["function"]) == ("fail", "alice", "chain")
    assert "tests/server/steps/functions.py" in told["traceback"]
    assert "LookupError" in told["traceback"]
    speaker.close()


def test_a_function_that_ends_devices_is_logged_until_it_is_in_quarantine(server: Server) -> None:
    speaker = server.speaker()
    x, y = kaas.Buffer("x", WIDTH, "float32"), kaas.Buffer("y", WIDTH, "float32")
    library = kaas.Library.from_ptx(TRAP)
    kernel = kaas.Kernel(library, "trap", 1, 1, [kaas.In(x), kaas.Out(y)])
    speaker.register(kaas.KTask([kernel], [y]), "bad")
    for _ in range(2):
        speaker.invoke("bad", ONES)
        answer, _ = speaker.receive()
        assert isinstance(answer, protocol.Failure)
    held = awaited(server, "a function is in quarantine")
    assert (held["client"], held["faults"], held["level"]) == ("alice", 2, "ERROR")
    faults = [each for each in events(server) if each["event"] == "a function ended its device"]
    assert [each["faults"] for each in faults] == [1, 2]
    assert all(each["reason"] for each in faults)
    speaker.close()


TRAP = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry trap(.param .u64 x, .param .u64 y)
{
    trap;
    ret;
}
"""


def test_the_end_of_a_server_is_logged_with_its_reason(tmp_path: Path) -> None:
    server = Server(tmp_path)  # text, which is the default
    server.terminate()
    assert server.wait() == 0
    drains, ended = server.errors.read_text().splitlines()[-2:]
    assert 'INFO kaas.server.server: the server drains reason="it got SIGTERM"' in drains
    assert ended.endswith("INFO kaas.server.server: the server has ended")
    server.close()
