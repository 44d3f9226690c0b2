"""A configuration is exact: mistakes are refused with a sentence, and its paths and modules are relative to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kaas.errors import InvalidConfig
from kaas.server.clients.keys import new_client
from kaas.server.config.serve_config import parse, read_file
from tests.lanes import spread
from tests.server.servers import ROOT
from tests.timeouts import TIMEOUT_S


def kaas_serve(config: Path, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run in another folder than the configuration's."""
    command = [sys.executable, "-m", "kaas.cli", "serve", "--config", str(config), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


@pytest.fixture
def config(tmp_path: Path) -> Path:
    new_client(tmp_path / "keys", "ada", tmp_path / "ada.toml")
    (tmp_path / "my_steps.py").write_text("def decode(values):\n    return values\n")
    path = tmp_path / "kaas.yaml"
    path.write_text('keys: keys\nstate: state\nadministrators: [ada]\nsteps: {decode: "my_steps:decode"}\n')
    return path


@pytest.mark.processes
def test_a_configuration_is_checked_without_a_server(config: Path) -> None:
    ended = kaas_serve(config, "--check")
    assert (ended.returncode, ended.stderr) == (0, "")
    first, second, third = ended.stdout.splitlines()
    assert first == "the configuration can be served"
    assert second.startswith("clients may take ")
    assert third.startswith("kernels of clients are fenced if all devices are software")
    assert not (config.parent / "state").exists()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "check"),
    [("{name: mqfq_sticky, D: 4}", ["--check"]), ("{name: mqfq_sticky, D: 4}", []), ('"my_policy:Mistaken"', [])],
)
def test_a_policy_that_cannot_work_ends_the_start(config: Path, line: str, check: list[str]) -> None:
    (config.parent / "my_policy.py").write_text(
        "class Mistaken:\n    def __init__(self, devices): pass\n    def handle(self, event): return None\n"
    )
    config.write_text(config.read_text() + f"pool: {{policy: {line}, devices: [{{}}]}}\n")
    ended = kaas_serve(config, *check)
    assert (ended.returncode, ended.stdout) == (1, "")
    last = ended.stderr.splitlines()[-1]
    wrong = "InvalidConfig: pool.policy: " if "D" in line else "PolicyError: policy 'Mistaken' returned None"
    assert last.startswith(wrong)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "words"),
    spread(
        [
            ("pool: {clients: {adda: {weight: 2}}}", "pool.clients names 'adda', which has no key"),
            ("name: one\nname: two", "'name' stands there twice"),
            ("limits: {frame_bytes: 1099511627776}", "limits.frame_bytes is at most"),
            ("limits: {lost_s: .inf}", "limits.lost_s is at most"),
            ("pool: {slots: 100000}", "pool.slots is at most 1,024"),
            ("step_processes: 5000", "step_processes is at most 1,024"),
            ("pool: {devices: [{memory_bytes: 999999999999999}]}", "pool.devices[0].memory_bytes is at most"),
            ("pool: {policy: fair}", "no policy 'fair'"),
            ("listn: {port: 7600}", "did you mean 'listen'?"),
            ("pool: {devices: [{kind: software, memory_byte: 1}]}", "did you mean 'memory_bytes'?"),
            ("pool: {clients: {ada: {wieght: 2}}}", "did you mean 'weight'?"),
            ("port: 7600", "did you mean 'listen.port'?"),
            ("code: true", "`code: {any: true}` takes all code of all clients"),
            (f"code: {{hashes: [{'1' * 64}]}}", "digits only stands in quotes"),
        ],
        7,
    ),
)
@pytest.mark.parametrize("check", [["--check"], pytest.param([], marks=pytest.mark.full)])
def test_slips_are_refused(config: Path, line: str, words: str, check: list[str]) -> None:
    config.write_text(config.read_text() + line + "\n")
    ended = kaas_serve(config, *check)
    assert ended.returncode == 1
    assert words in ended.stderr
    assert ended.stderr.startswith("InvalidConfig: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.processes
@pytest.mark.parametrize(
    ("host", "check"),
    [
        ("192.0.2.1", ["--check"]),  # addresses of documentation, which no machine has
        ("2001:db8::1", []),
        pytest.param("2001:db8::1", ["--check"], marks=pytest.mark.full),
        pytest.param("192.0.2.1", [], marks=pytest.mark.full),
    ],
)
def test_an_address_of_another_machine_is_refused(config: Path, host: str, check: list[str]) -> None:
    config.write_text(config.read_text() + f'listen: {{host: "{host}"}}\n')
    ended = kaas_serve(config, *check)
    assert ended.returncode == 1
    assert f"no server can listen at {host}" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.processes
def test_a_folder_of_keys_that_is_not_there_is_named(config: Path) -> None:
    config.write_text("keys: kees\n")
    ended = kaas_serve(config, "--check")
    assert ended.returncode == 1
    kees = config.parent / "kees"
    assert (
        ended.stderr
        == f"InvalidConfig: keys: there is no folder {kees}; `kaas keys new NAME --folder {kees}` makes it\n"
    )


@pytest.mark.processes
def test_an_administrator_without_a_key_is_refused(config: Path) -> None:
    config.write_text(config.read_text().replace("[ada]", "[ada, boss]"))
    ended = kaas_serve(config, "--check")
    assert ended.returncode == 1
    assert "administrators names 'boss', which has no key" in ended.stderr
    assert "kaas keys new boss" in ended.stderr


def test_paths_are_relative_to_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(config.parent.parent)
    config.write_text(config.read_text() + "pool: {record: /var/record.jsonl}\n")
    settings = read_file(Path(config.parent.name, "kaas.yaml"))
    assert Path(settings.state or "").absolute() == config.parent / "state"
    assert Path(settings.keys or "").absolute() == config.parent / "keys"
    assert settings.pool.record == "/var/record.jsonl"


def test_a_key_twice_in_a_nested_object_is_named_by_its_line() -> None:
    with pytest.raises(InvalidConfig, match=r"line 3: 'slots' stands there twice") as caught:
        parse(b"pool:\n  slots: 1\n  slots: 2\n")
    assert caught.value.field == "slots"
    assert parse(b"pool: {slots: 1}\nlimits: {requests: 1}").pool.slots == 1
