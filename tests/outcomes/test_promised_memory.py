"""The promise: an operator sees the most memory of all clients together, and if the machine has less."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.server.clients.keys import new_client, prepare
from kaas.server.config.serve_config import LimitSettings, Settings
from kaas.server.config.serve_memory import of_quotas
from kaas.server.usage.quotas import Quotas
from tests.server.servers import Server

GIB = 1 << 30
LIMITS = {"credit_bytes": 1 << 20, "frame_bytes": 1 << 20, "answers_bytes": 1 << 20}


def checked(folder: Path, limits: object) -> str:
    """Return the output of `kaas serve --check` for a server with two clients."""
    prepare(folder / "keys")
    for name in ("ada", "bob"):
        new_client(folder / "keys", name, folder / f"{name}.keys")
    path = folder / "kaas.yaml"
    path.write_bytes(msgspec.yaml.encode({"keys": "keys", "limits": limits}))
    ended = CliRunner().invoke(app, ["serve", "--check", "--config", str(path)])
    assert ended.exit_code == 0, ended.output
    return ended.output


def test_the_check_of_a_configuration_within_the_machine_reports_its_sum(tmp_path: Path) -> None:
    said = checked(tmp_path, {**LIMITS, "quotas": {"stored_bytes": 1 << 20, "library_bytes": 1 << 20}})
    assert "the configuration can be served" in said
    assert "2 clients" in said
    assert "clients may take 0.05 GiB of memory in all" in said
    assert "more than" not in said


def test_the_check_of_a_configuration_beyond_the_machine_gives_a_warning(tmp_path: Path) -> None:
    said = checked(tmp_path, {"quotas": {"stored_bytes": 1 << 50}})
    assert "more than the" in said
    assert "that this machine has: lower limits and quotas" in said


@pytest.mark.processes
@pytest.mark.parametrize(("stored_bytes", "level"), [(1 << 20, "INFO"), (1 << 50, "WARNING")])
def test_a_starting_server_logs_the_memory_that_clients_may_take(tmp_path: Path, stored_bytes: int, level: str) -> None:
    quotas = {"stored_bytes": stored_bytes, "library_bytes": 1 << 20}
    server = Server(tmp_path, {"limits": {**LIMITS, "quotas": quotas}, "log": {"format": "json"}})
    server.close()
    lines = [msgspec.json.decode(line) for line in server.errors.read_text().splitlines() if line.startswith("{")]
    (said,) = [line for line in lines if "total_bytes" in line]
    assert said["level"] == level
    assert said["clients"] == 3
    assert said["stored_bytes"] == 3 * stored_bytes


def test_the_memory_that_each_client_may_take_is_summed() -> None:
    found = of_quotas(Settings(limits=LimitSettings()), [Quotas(), Quotas(stored_bytes=2 * GIB), *[Quotas()] * 8])
    assert found.stored_bytes == 11 * GIB
    assert found.library_bytes == 10 * GIB // 4
    assert found.answers_bytes == 10 * (16 << 20)
    assert found.open_bytes == 20 * GIB
    assert found.unfinished_bytes == 10 * GIB // 4
    assert found.total_bytes == 36 * GIB + 10 * (16 << 20)
