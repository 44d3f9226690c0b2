"""Compiled code has a folder on every machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kaas.cache_folders import cache_root
from kaas.errors import DeviceUnavailable


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "kaas"
    assert cache_root().is_dir()


def test_a_chosen_folder_is_used_whenever_it_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("cache", "other"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        assert cache_root() == tmp_path / name / "kaas"


def test_home_that_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert cache_root() == tmp_path / f"kaas-{os.getuid()}"
    assert cache_root().stat().st_mode & 0o077 == 0


def test_a_folder_of_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(DeviceUnavailable, match="not this user's"):
        cache_root()


def test_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    with pytest.raises(DeviceUnavailable, match="no folder"):
        cache_root()
