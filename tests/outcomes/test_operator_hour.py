"""An operator's hour, in a minute: executors are killed, unknown keys come, functions fault, the disk is full, a device
fails for good, the server drains; and its log, its health, its metrics and `kaas status` say what happened."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import kaas
from kaas.wire import protocol
from kaas.wire.key_files import OwnKeys
from softgpu.build import build
from tests.outcomes.disks import can_mount, fill, on_small_disk, within
from tests.outcomes.test_operator_log import TRAP
from tests.outcomes.test_unusable_device import get
from tests.server.servers import DEVICE, ROOT, WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

ONES = np.ones(WIDTH, np.float32)
EVENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+: .*")


def sample(server: Server, name: str) -> float:
    """Return the value of a metric, 0 if it has none."""
    found = [line for line in get(server, "/metrics")[1].splitlines() if line.startswith(f"{name} ")]
    return float(found[0].split()[-1]) if found else 0.0


def knock(server: Server) -> None:
    """A peer with an unknown key connects."""
    known = server.key_of("alice")
    assert known is not None
    public, secret = (key.decode() for key in zmq.curve_keypair())
    stranger = Speaker(server.endpoint, OwnKeys("alice", public, secret, known.server_key))
    stranger.send(protocol.Hello(protocol.VERSION, "a" * 32))
    until(lambda: sample(server, 'kaas_connections_refused_total{reason="key"}') > 0)
    stranger.close()


class Compiler:
    """The server's compiler of the software GPUs' driver: a command that copies a driver, until it is broken."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._command, self._cache = folder / "cc", folder / "cache"
        self._write(f'while [ "$1" != -o ]; do shift; done; cp {build()} "$2"')
        monkeypatch.setenv("CC", str(self._command))
        monkeypatch.setenv("XDG_CACHE_HOME", str(self._cache))

    def _write(self, script: str) -> None:
        self._command.write_text(f"#!/bin/sh\n{script}\n")
        self._command.chmod(0o755)

    def breaks(self) -> None:
        """No executor starts from here on."""
        self._write("echo 'the toolbox is gone' >&2; exit 1")
        for library in self._cache.glob("softgpu/driver/*/libcuda.so.1"):
            library.unlink()


def test_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not can_mount(tmp_path):
        pytest.skip("this user may not mount a disk in a namespace")
    compiler = Compiler(tmp_path, monkeypatch)
    (tmp_path / "state").mkdir(mode=0o700)
    settings = {"metrics_port": 0, "administrators": ["boss"], "pool": {"devices": [DEVICE, DEVICE]}}
    server = Server(tmp_path, settings, prefix=on_small_disk(tmp_path / "state"))
    boss, alice = (
        kaas.Client(server.endpoint, keys=server.key_of(name), patience_s=TIMEOUT_S) for name in ("boss", "alice")
    )
    with closing(server), boss, alice:
        assert get(server, "/readyz")[0] == get(server, "/healthz")[0] == 200
        function = alice.register(scaled(), name="twice")
        knock(server)
        executors_die(server, boss, function)
        functions_fault(server, boss, alice)
        the_disk_is_full(server, boss, function)
        devices_are_up(boss)  # else the other one would be lost with it
        compiler.breaks()
        a_device_is_lost(server, boss, alice, function)
        boss.drain()
        assert server.wait() == 0
    log = server.errors.read_text().splitlines()
    assert all(EVENT.fullmatch(line) or line.startswith("    ") for line in log), log
    for words in (
        "the server is open endpoint=",
        "a key that no client has was refused address=127.0.0.1",
        'reason="killed by SIGKILL"',
        "a function ended its device function=bad client=alice",
        "a function is in quarantine function=bad client=alice",
        "the disk is full",
        "the toolbox is gone",
        "an administrator has the server drain client=boss",
        "the server drains",
        "the server has ended",
    ):
        assert any(words in line for line in log), words


def devices_are_up(boss: kaas.Client) -> None:
    until(lambda: all("pid" in device for device in boss.status()["devices"]))


def executors_die(server: Server, boss: kaas.Client, function: Any) -> None:
    """Kill an executor twice; calls succeed."""
    for _ in range(2):
        devices_are_up(boss)
        starts = sample(server, 'kaas_worker_starts_total{device="0"}')
        os.kill(boss.status()["devices"][0]["pid"], signal.SIGKILL)
        assert (function.call(x=ONES).result() == 2).all()
        until(lambda starts=starts: sample(server, 'kaas_worker_starts_total{device="0"}') > starts)  # type: ignore[misc]
    assert sample(server, 'kaas_worker_ends_total{cause="died",device="0"}') == 2


def functions_fault(server: Server, boss: kaas.Client, alice: kaas.Client) -> None:
    x, y = kaas.Buffer("x", WIDTH, "float32"), kaas.Buffer("y", WIDTH, "float32")
    trap = kaas.KTask([kaas.Kernel(kaas.Library.from_ptx(TRAP), "trap", 1, 1, [kaas.In(x), kaas.Out(y)])], [y])
    bad = alice.register(trap, name="bad")
    for _ in range(2):
        assert isinstance(bad.call(x=ONES).exception(), kaas.KaasError)
    assert sample(server, 'kaas_device_faults_total{client="alice"}') == 2
    assert [each["function"] for each in boss.status()["quarantined"]] == ["bad"]
    until(lambda: get(server, "/readyz")[0] == 200)
    shown = status(server)
    assert re.search(r"│ here +│ \d+ +│", shown)
    assert "in quarantine after 2 faults: bad" in shown


def the_disk_is_full(server: Server, boss: kaas.Client, function: Any) -> None:
    """Fill the disk by another program's file: calls succeed on the reserve, and the server recovers with room."""
    file = within(server, server.folder / "state" / "another programs")
    fill(file)
    while not boss.health()["disk_full"]:
        assert (function.call(x=ONES).result() == 2).all()
    code, said = get(server, "/readyz")
    assert (code, "its disk is full" in said) == (200, True)
    assert "its disk is full" in boss.status()["trouble"]
    file.unlink()
    assert "its disk is full" not in boss.status()["trouble"]
    assert (function.call(x=ONES).result() == 2).all()


def a_device_is_lost(server: Server, boss: kaas.Client, alice: kaas.Client, function: Any) -> None:
    """Its executor is killed and starts no more: operators see the cause everywhere, and clients do not."""
    os.kill(boss.status()["devices"][1]["pid"], signal.SIGKILL)
    until(lambda: boss.status()["devices"][1]["state"] == "lost")
    assert "the toolbox is gone" in boss.status()["devices"][1]["reason"]
    code, said = get(server, "/readyz")
    assert (code, "device 1 is lost: " in said, "the toolbox is gone" in said) == (200, True, True)
    assert re.search(r'kaas_device_lost\{device="1",reason=".*the toolbox is gone', get(server, "/metrics")[1])
    assert "the toolbox is gone" in status(server)
    assert "device 1 is lost" in alice.status()["trouble"]
    assert "toolbox" not in str(alice.status())
    assert (function.call(x=ONES).result() == 2).all()


def status(server: Server) -> str:
    command = [sys.executable, "-m", "kaas.cli", "status", "--no-ray", "--name", server.name]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
