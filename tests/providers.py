"""Providers of libraries for tests: installed as packages are, by a folder of metadata on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, images: Callable[[str, str], Any]) -> None:
    """Makes `images` the entry point `name` of the group kaas.libraries, for one test."""
    module: Any = ModuleType(f"provider_{name}")
    module.images = images
    monkeypatch.setitem(sys.modules, module.__name__, module)
    metadata = folder / f"{name}_provider-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-provider\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[kaas.libraries]\n{name} = {module.__name__}:images\n")
    monkeypatch.syspath_prepend(folder)
