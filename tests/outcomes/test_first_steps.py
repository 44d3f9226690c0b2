"""Errors for mistakes of newcomers name the right way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

import pytest

import kaas
from kaas.errors import InvalidConfig, InvalidRequest, NotAllowed, UnknownFunction
from kaas.server.clients.keys import new_client
from tests.server.conftest import Serve
from tests.server.servers import ROOT, scaled
from tests.timeouts import TIMEOUT_S

WITHOUT_RAY = "import sys; sys.modules['ray'] = None; "
"""Before a program: it finds no Ray, as if none were installed."""


def ran(program: str, *arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )


def error_line(*arguments: str, folder: Path = ROOT, before: str = "") -> str:
    """Return the only line of a failing command's error."""
    ended = ran(f"{before}from kaas.cli.main import main; main()", *arguments, folder=folder)
    assert ended.returncode == 1, ended
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    return ended.stderr.strip()


@pytest.mark.processes
def test_a_configuration_that_lies_here_is_named_and_not_taken(tmp_path: Path) -> None:
    assert "--config" not in error_line("serve", folder=tmp_path)
    (tmp_path / "kaas.yaml").write_text("keys: keys\n")
    assert "--config kaas.yaml takes the one that lies here" in error_line("serve", folder=tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize("command", [("status", "--ray"), ("demo",), ("stats", "--ray"), ("status",)])
def test_a_command_reports_that_ray_is_not_installed(command: tuple[str, ...]) -> None:
    names = ("--name", f"nobody's {token_hex(4)}") if command[0] != "demo" else ()
    line = error_line(*command, *names, before=WITHOUT_RAY)
    assert "Ray is not installed" in line
    assert "pip install ray" in line


@pytest.mark.processes
@pytest.mark.parametrize("call", ["init()", "etask"])
def test_an_error_reports_that_ray_is_not_installed(call: str) -> None:
    program = f"import kaas\ntry: kaas.{call}\nexcept kaas.errors.MissingPackage as error: print(error, error.install)"
    ended = ran(f"{WITHOUT_RAY}\n{program}")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("Ray is not installed")
    assert "ray=False" in ended.stdout


@pytest.mark.processes
def test_a_pool_runs_without_ray_installed() -> None:
    program = f"import kaas; print(kaas.init(ray=False, name='test {token_hex(4)}')); kaas.shutdown()"
    ended = ran(WITHOUT_RAY + program)
    assert (ended.stdout, ended.stderr) == ("True\n", "")


@pytest.mark.processes
@pytest.mark.parametrize("ray", [("--no-ray",), pytest.param((), marks=pytest.mark.full)])
def test_the_pools_that_run_are_named(serve: Serve, ray: tuple[str, ...]) -> None:
    server = serve()
    named = ("--name", f"nobody's {token_hex(4)}")
    line = error_line("status", *named, *ray, before=WITHOUT_RAY)
    assert line.startswith("NotInitialized: no pool")
    assert f"--name '{server.name}'" in line
    server.close()
    assert f"--name '{server.name}'" not in error_line("status", *named, *ray, before=WITHOUT_RAY)


@pytest.mark.processes
def test_a_client_s_file_that_is_there_already(tmp_path: Path) -> None:
    new_client(tmp_path / "keys", "bob", tmp_path / "ada.toml")
    line = error_line("keys", "new", "ada", folder=tmp_path)
    assert line.startswith("InvalidConfig: ada.toml: File exists; --to names another file")
    line = error_line("keys", "rotate", "bob", "--to", "ada.toml", folder=tmp_path)
    assert "; --to names another file" in line
    line = error_line("keys", "new", "bob", folder=tmp_path)
    assert "`kaas keys rotate bob` gives the client of this name another pair" in line


def test_the_server_s_file_of_a_client_is_not_the_client_s(tmp_path: Path) -> None:
    new_client(tmp_path / "keys", "ada", tmp_path / "ada.toml")
    with pytest.raises(InvalidConfig, match=r"is what the server knows of a client: .*`kaas keys new`"):
        kaas.Client("tcp://127.0.0.1:7600", keys=tmp_path / "keys" / "clients" / "ada.toml")


@pytest.mark.processes
def test_a_server_without_a_list_of_code_names_the_hash_to_list(serve: Serve) -> None:
    task = scaled()
    server = serve({"code": {}})
    with (
        kaas.Client(server.endpoint, keys=server.key_of("alice")) as client,
        pytest.raises(NotAllowed, match=f"is {task.key}. The operator lists that under code.hashes") as caught,
    ):
        client.register(task)
    assert caught.value.task == task.key
    assert caught.value.library == task.libraries[0].hash
    server.close()
    server = serve({"code": {"hashes": [task.key]}})
    with kaas.Client(server.endpoint, keys=server.key_of("alice")) as client:
        assert client.register(task).keys == (task.key,)


@pytest.mark.processes
def test_how_a_client_s_function_is_called(serve: Serve) -> None:
    server = serve()
    with (
        kaas.Client(server.endpoint, keys=server.key_of("alice")) as alice,
        kaas.Client(server.endpoint, keys=server.key_of("bob")) as bob,
    ):
        function = alice.register(scaled(), name="subtract")
        with pytest.raises(UnknownFunction, match="did you mean 'subtract'"):
            alice.call("substract")
        with pytest.raises(UnknownFunction) as caught:
            bob.call("substract")
        assert "subtract" not in caught.value.message
        with pytest.raises(InvalidRequest, match=r"\.call\("):
            function(1)
        with pytest.raises(AttributeError, match=r"\.call\("):
            function.remote(1)
