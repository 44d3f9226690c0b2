"""The commands of documentation pages are known, with their options, and do what the pages describe."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kaas.cli.bench.command import FileFirst
from kaas.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> Iterator[str]:
    """Return the kaas commands of a page: those in blocks, and those in the text that have options."""
    text = page.read_text()
    for info, body in FENCE.findall(text):
        if not info:
            yield from (line for line in body.splitlines() if line.startswith("kaas "))
    prose = FENCE.sub("", text)
    yield from (told for told in re.findall(r"`(kaas [a-z][^`]*)`", prose) if " --" in told)


def unknown(line: str) -> list[str]:
    """Return the words of a command line that are no known command, subcommand or option."""
    words = shlex.split(line.replace("…", ""), comments=True)[1:]
    command: Any = typer.main.get_command(app)
    context = command.context_class(command)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None and isinstance(command, FileFirst):
            inner, words = command.get_command(context, "file"), ["file", *words]
        if inner is None:
            return [words[0]]
        command, words = inner, words[1:]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.strip("[],").partition("=")[0] for word in words]
    return [word for word in given if word.startswith("--") and word not in {*options, "--help"}]


@pytest.mark.parametrize("page", [page for page in PAGES if [*commands(page)]], ids=lambda page: str(page.stem))
def test_commands_of_a_page_are_known(page: Path) -> None:
    assert not {line: found for line in commands(page) if (found := unknown(line))}


def test_an_unknown_command_or_option_would_be_noticed() -> None:
    assert unknown("kaas srve --config kaas.yaml") == ["srve"]
    assert unknown("kaas serve --configuration=kaas.yaml") == ["--configuration"]
    assert unknown("kaas keys new ada --to new.toml  # ada's") == []
    assert unknown("kaas bench task.json --rte 10") == ["--rte"]


def _page(name: str) -> str:
    return " ".join((ROOT / "docs" / name).read_text().split())


def test_an_extra_is_added_to_a_clone_without_a_copy_of_it() -> None:
    """`pip install '.[nvrtc]'` in a clone's .venv puts a copy of kaas in place of its sources."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for page in ("kernels.md", "installing.md"):
        (told,) = re.findall(r"\.venv/bin/pip install (\S*) ?'\.\[(\w+)\]'", _page(page))
        assert told[0] == "-e"
        assert told[1] in extras
    assert "pip install '.[" not in _page("kernels.md")
