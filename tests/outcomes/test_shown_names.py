"""A client's function has one name in all output for an operator, and the name cannot control a terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import kaas
from kaas.wire import protocol
from tests.server.conftest import Serve
from tests.server.servers import ROOT, WIDTH, Server, Speaker, scaled
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

EVIL = "\x1b[2J\x1b]0;title\x07\nforged"
DATA = np.ones(WIDTH, np.float32).tobytes()


def shown(server: Server, *arguments: str) -> str:
    command = [sys.executable, "-m", "kaas.cli", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=server.folder, env=environment, capture_output=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def commands(server: Server) -> list[tuple[str, ...]]:
    pool = ("--name", server.name, "--no-ray")
    return [("usage", "state", "--by", "function"), ("stats", *pool), ("status", *pool)]


def called(speaker: Speaker, task: kaas.KTask, name: str = "") -> None:
    """Register a function with this name, and run a request that is charged."""
    function = speaker.register(task, name).function
    speaker.invoke(name or function, DATA)
    answer, _ = speaker.receive()
    assert isinstance(answer, protocol.Result), answer


def test_no_terminal_obeys_a_name(serve: Serve) -> None:
    server = serve()
    alice = server.speaker()
    task = scaled()
    called(alice, kaas.KTask(task.kernels, task.outputs, name=EVIL))
    for command in commands(server):
        output = shown(server, *command)
        assert "forged" in output, command
        assert all(each.isprintable() for each in output.replace("\n", "")), command
        assert not any(line.strip(" │").startswith("forged") for line in output.splitlines()), command
    alice.close()


def test_a_function_has_one_name_wherever_it_is_shown(serve: Serve) -> None:
    server = serve()
    alice, bob = server.speaker(), server.speaker("bob")
    names = {"first", "second", scaled(3.0).label}
    called(alice, scaled(), "first")
    called(alice, scaled(), "second")  # of the same kTask
    called(bob, scaled(3.0))
    for command in commands(server):
        output = shown(server, *command)
        assert all(name in output for name in names), (command, output)
        assert scaled().label not in output, (command, output)
    alice.reply_to(protocol.Done, protocol.Unregister(alice.number(), "first"))
    output = shown(server, *commands(server)[-1])
    assert ("first" in output, "second" in output) == (False, True), output
    alice.close()
    bob.close()
