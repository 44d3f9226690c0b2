"""A function that ended devices runs again once an administrator pardons it; its client sees the reason until then."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

import kaas
from kaas.cli.main import app
from kaas.errors import InvalidRequest, KaasError, Quarantined
from tests.api.conftest import crash_task
from tests.server.conftest import Serve
from tests.server.servers import Server
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes


def client(server: Server, name: str) -> kaas.Client:
    return kaas.Client(server.endpoint, keys=server.folder / f"{name}.keys", patience_s=TIMEOUT_S)


def end_devices(of: kaas.Client) -> Quarantined:
    """Run it until it is in quarantine."""
    of.register(crash_task(), name="crash")
    while True:
        with pytest.raises(KaasError) as raised:
            of.call("crash", {}).result()
        if isinstance(raised.value, Quarantined):
            return raised.value


def test_a_client_sees_why_and_an_administrator_pardons(serve: Serve) -> None:
    server = serve({"administrators": ["boss"], "pool": {"devices": [{"kind": "software"}], "faults_allowed": 0}})
    with client(server, "alice") as alice, client(server, "bob") as bob, client(server, "boss") as boss:
        assert "The operator can pardon it" in end_devices(alice).message
        (mine,) = alice.status()["quarantined"]
        assert (mine["client"], mine["faults"]) == ("alice", 1)
        assert mine["reason"]
        assert not re.search(r"0x|pid \d", mine["reason"])
        assert bob.status()["quarantined"] == []
        (told,) = boss.status()["quarantined"]
        assert {**told, "reason": mine["reason"]} == mine
        assert re.search(r"pid \d", told["reason"])
        assert alice.status()["isolation"] == "fence"
        with pytest.raises(InvalidRequest, match="administrator"):
            alice.pardon(mine["key"])
        assert not boss.pardon("another")
        assert boss.pardon(mine["key"])
        assert alice.status()["quarantined"] == []
        assert not boss.pardon(mine["key"])
        end_devices(alice)
        assert boss.pardon(crash_task())
        end_devices(alice)
        (key,) = (each["key"] for each in boss.status()["quarantined"])
    told = ["--server", server.endpoint, "--keys", str(server.folder / "boss.keys")]
    done = CliRunner().invoke(app, ["pardon", key, *told])
    assert done.exit_code == 0, done.output
    assert isinstance(CliRunner().invoke(app, ["pardon", key, *told]).exception, InvalidRequest)
    assert "a function is pardoned" in server.errors.read_text()


def test_a_program_on_the_servers_machine_pardons_too(serve: Serve) -> None:
    server = serve({"pool": {"devices": [{"kind": "software"}], "faults_allowed": 0}})
    with client(server, "alice") as alice:
        end_devices(alice)
        kaas.init(ray=False, name=server.name)
        try:
            (held,) = kaas.status().quarantined
            assert held.client == "alice"
            assert kaas.pardon(crash_task())
            assert kaas.status().quarantined == ()
        finally:
            kaas.shutdown()
        assert alice.status()["quarantined"] == []
