"""The commands of documentation pages do what the pages describe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
