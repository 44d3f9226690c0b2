"""A server ends only by its operator or an administrator, and takes changes while it runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import numpy as np
import pytest

import kaas
from kaas.wire import protocol
from tests.outcomes.test_paying import ENDLESS, spinning
from tests.server.conftest import Serve
from tests.server.servers import ROOT, WIDTH, Server, scaled
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

ONES = np.ones(WIDTH, np.float32)
VISIT = """
import sys, kaas
kaas.init(ray=False, name=sys.argv[1])
print(kaas.status().pool)
kaas.shutdown()
kaas.shutdown()
try:
    kaas.status()
except kaas.errors.NotInitialized:
    print("left")
"""


def client(server: Server, name: str = "alice") -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def test_a_program_that_shuts_down_leaves_a_server_as_it_is(serve: Serve) -> None:
    server = serve()
    with client(server) as alice:
        alice.register(scaled(), name="f")
        for _ in range(2):
            visit = subprocess.run(
                [sys.executable, "-c", VISIT, server.name], capture_output=True, text=True, check=False, cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
            assert visit.stdout.split() == [*server.name.split(), "left"], visit.stderr
        assert alice.call("f", {"x": ONES}).result()[0] == 2
    assert server.process.poll() is None
    assert "a program leaves the pool" in server.errors.read_text()
    server.terminate()
    assert server.wait() == 0


def test_a_hangup_reads_keys_quotas_and_weights_again_and_ends_nothing(serve: Serve) -> None:
    device = {"kind": "software", "memory_bytes": 256 << 20}
    server = serve({"administrators": ["boss"], "pool": {"devices": [device], "run_limit_s": 2.0}})
    config = server.folder / "kaas.yaml"
    with client(server) as alice, client(server, "bob") as bob:
        alice.register(scaled(), name="f")
        assert not bob.status()["administrator"]
        settings = msgspec.yaml.decode(config.read_bytes())
        settings["limits"] = {"requests": 7, "quotas": {"stored_bytes": 70_000}}
        settings["administrators"] = ["bob"]
        settings["pool"]["clients"] = {"alice": {"weight": 3.0, "max_queued": 1}}
        settings["drain_s"] = 12
        config.write_bytes(msgspec.yaml.encode(settings))
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "read again" in server.errors.read_text())
        assert bob.status()["administrator"]
        assert alice.call("f", {"x": ONES}).result()[0] == 2
        with client(server) as again:
            assert again.health()["live"]
            limits = again.limits()
            assert limits is not None
            assert (limits.requests, limits.stored_bytes) == (7, 70_000)
        assert "drain_s" in server.errors.read_text()  # which takes a restart
        speaker = server.speaker("alice")
        speaker.register(spinning(), "spin")
        for _ in range(4):
            speaker.invoke("spin", scalars={"steps": ENDLESS.to_bytes(8, "little")})
        refused, _ = speaker.receive()
        assert isinstance(refused, protocol.Failure)
        assert (refused.error, refused.fields["limit"]) == ("QueueFull", 1)
        speaker.close()  # and its requests end
        config.write_text("nonsense: 1")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "not read again" in server.errors.read_text())
        assert alice.call("f", {"x": ONES}).result()[0] == 2
    server.terminate()
    assert server.wait() == 0
