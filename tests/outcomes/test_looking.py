"""Representations are informative: the module and its help, status and statistics, the names of clients."""

from __future__ import annotations

import json
import os
import pydoc
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kaas
from kaas.api.session import program_name
from kaas.cli.main import app
from kaas.scheduling.policies.adaptive import Adaptive
from tests.api.conftest import numbers, scale_task
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]
NAME = "looked at"
LITERALS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64", "c64", "c128", "boolean")
SCRIPT = f"""
import kaas
from kaas.api.attached import current_session
kaas.init(ray=False, name={NAME!r})
print(current_session().client)
"""


def test_the_module_lists_its_public_names_and_no_others() -> None:
    names = [name for name in dir(kaas) if not name.startswith("__")]
    assert names == sorted(kaas.__all__)
    assert {"init", "register", "call", "invoke", "put", "stats", "Function", "Future", "Client"} <= set(names)
    assert not {"Any", "TYPE_CHECKING", "annotations", "import_module"} & set(names)
    assert all(hasattr(kaas, name) for name in names)


def test_the_version_is_the_distributions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert kaas.__version__ == project["version"]
    shown = CliRunner().invoke(app, ["--version"])
    assert (shown.exit_code, shown.stdout) == (0, f"kaas {kaas.__version__}\n")


@pytest.mark.parametrize("name", LITERALS)
def test_help_of_a_literal_describes_the_literal(name: str) -> None:
    told = pydoc.plain(pydoc.render_doc(getattr(kaas, name)))
    assert f"{name}(value" in told
    assert "by-value argument" in told
    assert f"kaas.{name}(" in told
    assert "partial" not in told


def test_help_of_commands_describes_the_commands() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert "thin wrappers" not in shown
    assert "--version" in shown
    for command in ("status", "stats", "trace", "serve"):
        assert command in shown


# --- status and statistics


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pool has its name in a folder of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("looking", numbered=True)))
        yield


@pytest.fixture(scope="module")
def pool(runtime: None) -> Iterator[None]:  # noqa: ARG001 - where it has its name
    """A pool with requests of two clients, one of them failed."""
    kaas.init(ray=False, policy=partial(Adaptive, T=0.5), devices=[kaas.Device("software", 64 << 20)], name=NAME)
    task = scale_task(name="<scaled>")
    for client in ("ann [a]", "bob"):
        kaas.call(task, {"x": numbers()}, scalars={"factor": 2}, client=client, profile=True).result(TIMEOUT_S)
    yield
    kaas.shutdown()


class _Cells(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def cells(html: str) -> list[str]:
    parser = _Cells()
    parser.feed(html)
    return parser.cells


@pytest.mark.usefixtures("pool")
def test_statistics_are_printed_as_tables() -> None:
    stats = kaas.stats()
    lines = str(stats).splitlines()
    for client in ("ann [a]", "bob"):
        row = next(line for line in lines if client in line)
        assert "<scaled>" in row
        assert "│ 1 " in row, "how many succeeded"
    assert any("device" in line and "hits" in line for line in lines)
    assert any("scale" in line and "launches" not in line for line in lines)
    assert max(map(len, lines)) < 200
    assert {"<scaled>", "ann [a]", "bob", "succeeded"} <= set(cells(stats._repr_html_()))


@pytest.mark.usefixtures("pool")
def test_a_status_is_printed_as_a_table() -> None:
    status = kaas.status()
    lines = str(status).splitlines()
    assert f"pool {NAME}" in lines[0]
    row = next(line for line in lines if "software" in line)
    assert "64 MiB" in row
    assert any("policy adaptive(T=0.5), isolation none, running 0, queued 0" in line for line in lines)
    assert {"software", "64 MiB"} <= set(cells(status._repr_html_()))


@pytest.mark.usefixtures("pool")
def test_the_stats_command_shows_the_same() -> None:
    shown = CliRunner().invoke(app, ["stats", "--no-ray", "--name", NAME])
    assert shown.exit_code == 0, shown.output
    assert "ann [a]" in shown.stdout
    assert "caches" in shown.stdout
    told = json.loads(CliRunner().invoke(app, ["stats", "--no-ray", "--name", NAME, "--json"]).stdout)
    assert {entry["client"] for entry in told["outcomes"]} == {"ann [a]", "bob"}
    assert CliRunner().invoke(app, ["stats", "--no-ray", "--name", NAME, "--reset"]).exit_code == 0
    assert not kaas.stats().outcomes


# --- clients


@pytest.mark.usefixtures("pool")
def test_a_program_is_known_by_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("train.py process ")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/home/ada/train.py", "--fast"], "train.py"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
        (["/lib/python3/site-packages/trainer/__main__.py"], "trainer"),
        (["/lib/python3/site-packages/ipykernel_launcher.py"], "notebook"),
    ],
)
def test_names_of_programs(monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert program_name() == name
