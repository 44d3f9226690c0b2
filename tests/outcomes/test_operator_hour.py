"""An operator's hour, in a minute: executors are killed, strangers come, functions fault, the server drains; and its
log, its health, its metrics and `kaas status` say what happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import numpy as np
import zmq

import kaas
from kaas.remote import wire
from kaas.remote.keys import OwnKeys
from tests.outcomes.test_operator_log import TRAP
from tests.outcomes.test_unusable_device import get
from tests.patience import PATIENCE_S, until
from tests.remote.conftest import Serve
from tests.remote.servers import ROOT, WIDTH, Server, Speaker, scaled

ONES = np.ones(WIDTH, np.float32)
EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: .*")


def sample(server: Server, name: str) -> float:
    """Of a metric, 0 if it has none."""
    found = [line for line in get(server, "/metrics")[1].splitlines() if line.startswith(f"{name} ")]
    return float(found[0].split()[-1]) if found else 0.0


def knock(server: Server) -> None:
    """Somebody whose key no client has."""
    known = server.key_of("alice")
    assert known is not None
    public, secret = (key.decode() for key in zmq.curve_keypair())
    stranger = Speaker(server.endpoint, OwnKeys("alice", public, secret, known.server_key))
    stranger.send(wire.Hello(wire.VERSION, "a" * 32))
    until(lambda: sample(server, 'kaas_connections_refused_total{reason="key"}') > 0)
    stranger.close()


def test_an_hour(serve: Serve) -> None:
    server = serve({"metrics_port": 0, "administrators": ["boss"]})
    x, y = kaas.Buffer("x", WIDTH, "float32"), kaas.Buffer("y", WIDTH, "float32")
    trap = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(TRAP), "trap", 1, 1, [kaas.In(x), kaas.Out(y)])], [y])
    boss = kaas.Client(server.endpoint, keys=server.key_of("boss"), patience_s=PATIENCE_S)
    with kaas.Client(server.endpoint, keys=server.key_of("alice"), patience_s=PATIENCE_S) as alice:
        assert get(server, "/readyz")[0] == get(server, "/healthz")[0] == 200
        function = alice.register(scaled(), name="twice")
        knock(server)
        for _ in range(2):  # a kill, and its calls succeed
            starts = sample(server, 'kaas_worker_starts_total{device="0"}')
            os.kill(boss.status()["devices"][0]["pid"], signal.SIGKILL)
            assert (function.call(x=ONES).result() == 2).all()
            until(lambda starts=starts: sample(server, 'kaas_worker_starts_total{device="0"}') > starts)  # type: ignore[misc]
        bad = alice.register(trap, name="bad")
        for _ in range(2):
            assert isinstance(bad.call(x=ONES).exception(), kaas.KaasError)
        assert sample(server, 'kaas_device_faults_total{client="alice"}') == 2
        assert sample(server, 'kaas_worker_ends_total{cause="died",device="0"}') == 2
        assert [each["function"] for each in boss.status()["quarantined"]] == ["bad"]
        until(lambda: get(server, "/readyz")[0] == 200)
        shown = status(server)
        assert re.search(r"│ here +│ \d+ +│", shown)
        assert "in quarantine after 2 faults: bad" in shown
        boss.drain()
    boss.close()
    assert server.wait() == 0
    log = server.errors.read_text().splitlines()
    assert all(EVENT.fullmatch(line) or line.startswith("    ") for line in log), log
    for words in (
        "the server is open endpoint=",
        "a key that no client has was refused address=127.0.0.1",
        'reason="killed by SIGKILL"',
        "a function ended its device function=bad client=alice",
        "a function is in quarantine function=bad client=alice",
        "an administrator has the server drain client=boss",
        "the server drains",
        "the server has ended",
    ):
        assert any(words in line for line in log), words


def status(server: Server) -> str:
    command = [sys.executable, "-m", "kaas.cli", "status", "--no-ray", "--name", server.name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
