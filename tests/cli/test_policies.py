"""`kaas simulate`, `replay` and `explain` print names of files as text, whatever characters they have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kaas.cli.main import app
from kaas.errors import InvalidScenario
from kaas.scheduling.policies import POLICIES
from tests.scheduling.test_explaining import Recorded

CLEAR = "\x1b[2J"


@pytest.mark.parametrize("more", [[], ["--seeds", "2"]])
def test_simulate_prints_no_control_character_of_a_scenario(tmp_path: Path, more: list[str]) -> None:
    functions = {f"{name}{CLEAR}": {"run_s": 1, "memory_mb": 600, "client": f"c{CLEAR}"} for name in "AB"}
    requests = [{"function": name} for name in functions]
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({"devices": [{"memory_mb": 1000}], "functions": functions, "requests": requests}))
    ended = CliRunner().invoke(app, ["simulate", str(path), *more])
    assert ended.exit_code == 0, ended.output
    assert "\x1b" not in ended.stdout
    assert more or "A\N{REPLACEMENT CHARACTER}[2J" in ended.stdout  # evicted


@pytest.mark.parametrize("command", [["replay", "--devices", "1"], ["explain", "0"]])
def test_names_of_a_record_are_printed_without_control_characters(tmp_path: Path, command: list[str]) -> None:
    world = Recorded(POLICIES["sjf"], path=tmp_path / "r")
    world.tick()
    world.up(0)
    world.arrive(f"a{CLEAR}", f"f{CLEAR}")
    world.finish(0, 1.0)
    name, *arguments = command
    ended = CliRunner().invoke(app, [name, str(tmp_path / "r"), *arguments])
    assert ended.exit_code == 0, ended.output
    assert "\x1b" not in ended.stdout
    assert "a\N{REPLACEMENT CHARACTER}[2J" in ended.stdout


def test_a_scenario_of_any_size_is_refused_without_reading_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "scenario.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    error = CliRunner().invoke(app, ["simulate", str(path)]).exception
    assert isinstance(error, InvalidScenario)
    assert "is longer than the 268,435,456 bytes of a scenario" in error.message
