"""Providers of libraries for tests: installed as packages are, by a folder of metadata on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest  # `make gpu` asks first whether it is here


def write_metadata(folder: Path, name: str, target: str) -> None:
    """Write metadata that make `target` (module:function) the entry point `name` of kaas.libraries, on the path."""
    metadata = folder / f"{name}_provider-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-provider\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[kaas.libraries]\n{name} = {target}\n")


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, images: Callable[[str, str], Any]) -> None:
    """Makes `images` such an entry point for one test."""
    module: Any = ModuleType(f"provider_{name}")
    module.images = images
    monkeypatch.setitem(sys.modules, module.__name__, module)
    write_metadata(folder, name, f"{module.__name__}:images")
    monkeypatch.syspath_prepend(folder)


def installed(name: str) -> bool:
    return bool(entry_points(group="kaas.libraries", name=name))
