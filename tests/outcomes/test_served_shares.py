"""Shares of a server's clients: the operator writes them into the configuration, and they hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kaas
from tests.outcomes.test_shares import SMS, task_of
from tests.outcomes.test_unusable_device import get
from tests.server.conftest import Serve
from tests.server.servers import ROOT, Server
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

MODEL = "[kernels]\nf = [1e-2]\ng = [1e-2]\n"
PROMISE = """
import sys, kaas
kaas.init(ray=False, name=sys.argv[1])
kaas.set_share("local", kaas.Share(quota=(0.6, 1)))
print("promised", flush=True)
sys.stdin.read()
kaas.shutdown()
"""


@pytest.fixture
def shared(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Server]:
    """Start a server with one device of SMS SMs on which f and g take 10 ms, and with these shares of clients."""
    (tmp_path / "model.toml").write_text(MODEL)
    monkeypatch.setenv("SOFTGPU_MODEL", str(tmp_path / "model.toml"))

    def start(**shares: dict[str, Any]) -> Server:
        pool = {
            "devices": [{"memory_bytes": 256 << 20, "sms": SMS}],
            "slots": 4,
            "record": "record",
            "clients": clients(shares),
        }
        return serve({"pool": pool, "administrators": ["boss"], "metrics_port": 0})

    return start


def clients(shares: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {name: {"share": share} for name, share in shares.items()}


def client(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def reload(server: Server, said: str, **shares: dict[str, Any]) -> None:
    """Write these shares into the configuration, and wait until the server says something new."""
    path, before = server.folder / "kaas.yaml", server.errors.read_text()
    settings = msgspec.yaml.decode(path.read_bytes())
    settings["pool"]["clients"] = clients(shares)
    path.write_bytes(msgspec.yaml.encode(settings))
    server.process.send_signal(signal.SIGHUP)
    until(lambda: said in server.errors.read_text()[len(before) :])


def sms_of(server: Server) -> list[int]:
    """Return the SMs of all runs so far, 0 for all."""
    lines = map(msgspec.json.decode, (server.folder / "record").read_bytes().splitlines())
    decided = [each for line in lines for each in line.get("decisions", ())]
    return [value.get("sms", 0) for kind, value in decided if kind == "Dispatch"]


def test_an_operator_gives_alice_a_quarter_and_her_next_request_runs_on_it(shared: Callable[..., Server]) -> None:
    server = shared()
    with client(server, "alice") as alice:
        alice.register(task_of("f"), name="f")
        alice.call("f").result()
        reload(server, "read again", alice={"sms": 0.25})
        alice.call("f").result()
        reload(server, "not read again", alice={"sms": 2})
        alice.call("f").result()
        reload(server, "not read again", alice={"quota": [0.6, 1]}, bob={"quota": [0.6, 1]})
        alice.call("f").result()
        assert sms_of(server) == [0, SMS // 4, SMS // 4, SMS // 4], "a wrong configuration changes nothing"
        (used,) = alice.usage()["flows"]
        assert used["device_ns"] / 4 < used["sm_ns"] < used["device_ns"], "the first on all SMs, three on a quarter"
        (shown,) = alice.status()["shares"]
        assert (shown["of"], shown["sms"], shown["granted"]) == ("client 'alice'", 0.25, [[0, SMS // 4]])
        with client(server, "bob") as bob, client(server, "boss") as boss:
            assert (bob.status()["shares"], boss.status()["shares"]) == ([], [shown])
        scraped = get(server, "/metrics")[1]
        assert "kaas_share_sms{share=\"client 'alice'\"} 0.25" in scraped
        assert "kaas_share_missed_windows_total{share=\"client 'alice'\"} 0" in scraped
        reload(server, "read again", bob={"sms": 0.5})
        alice.call("f").result()
        assert sms_of(server)[-1] == 0


def test_shares_that_programs_have_been_promised_meanwhile_keep_a_configuration_out_whole(
    shared: Callable[..., Server],
) -> None:
    server = shared(alice={"sms": 0.25})
    program = subprocess.Popen(
        [sys.executable, "-c", PROMISE, server.name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    with client(server, "alice") as alice, program:
        assert program.stdout.readline() == b"promised\n"
        alice.register(task_of("f"), name="f")
        reload(server, "client 'local' has Share", alice={"sms": 0.5}, bob={"quota": [0.6, 1]})
        alice.call("f").result()
        assert sms_of(server)[-1] == SMS // 4
        program.stdin.close()
        assert program.wait(TIMEOUT_S) == 0
        until(lambda: "a program leaves the pool" in server.errors.read_text())
        reload(server, "read again", alice={"sms": 0.5}, bob={"quota": [0.6, 1]})
        alice.call("f").result()
        assert sms_of(server)[-1] == SMS // 2


def test_bob_with_a_tenth_of_the_time_gets_a_tenth_though_he_sends_twenty_times_as_much(
    shared: Callable[..., Server],
) -> None:
    server = shared(alice={"quota": [0.9, 1]}, bob={"quota": [0.1, 1]})
    ended = threading.Event()

    def flood(caller: kaas.Client, function: str, at_once: int) -> None:
        open_: set[Any] = {caller.call(function) for _ in range(at_once)}
        while not ended.is_set():
            done, open_ = wait(open_, TIMEOUT_S, FIRST_COMPLETED)
            open_ |= {caller.call(function) for _ in done}
        for each in open_:
            each.result(TIMEOUT_S)

    with client(server, "alice") as alice, client(server, "bob") as bob, client(server, "boss") as boss:
        alice.register(task_of("f"), name="f")
        bob.register(task_of("g"), name="g")
        callers = [threading.Thread(target=flood, args=each) for each in ((alice, "f", 8), (bob, "g", 160))]
        for each in callers:
            each.start()

        def used_s() -> dict[str, float]:
            return {each["client"]: each["device_ns"] / 1e9 for each in boss.usage()["flows"]}

        try:
            until(lambda: used_s().get("alice", 0.0) > 0.2)
            begin = used_s()
            until(lambda: used_s()["alice"] > begin["alice"] + 2.0)
            end = used_s()
        finally:
            ended.set()
            for each in callers:
                each.join(TIMEOUT_S)
    had = {name: end.get(name, 0.0) - begin.get(name, 0.0) for name in ("alice", "bob")}
    assert had["bob"] / sum(had.values()) == pytest.approx(0.1, abs=0.05)
