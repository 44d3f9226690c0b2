"""Machine code that another user could have planted in the cache is not loaded."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from kaas.cache_folders import cache_root
from softgpu import build as driver_build
from softgpu.disk_cache import DiskCache

SOURCE = "int cuInit(unsigned flags) { (void)flags; return 0; }"
OTHERS_MAY_WRITE = (0o777, 0o775, 0o757)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return the place of the folder if the one at home is not accepted."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"kaas-{os.getuid()}"


@pytest.mark.parametrize("mode", OTHERS_MAY_WRITE)
def test_a_cache_folder_that_others_may_write_is_not_taken(temporary: Path, mode: int) -> None:
    home = cache_root()
    assert home != temporary
    home.chmod(mode)
    assert cache_root() == temporary


def test_a_link_of_another_user_is_no_cache_folder(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make a link as among the temporary files, where all users may make links, to a folder of this user."""
    (tmp_path / ".cache").mkdir()
    (tmp_path / "own").mkdir(mode=0o700)
    link = tmp_path / ".cache" / "kaas"
    link.symlink_to(tmp_path / "own")
    assert cache_root() == link  # this user's own
    real = Path.lstat

    def by_another(path: Path) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == link else found

    monkeypatch.setattr(Path, "lstat", by_another)
    assert cache_root() == temporary


@pytest.mark.processes
@pytest.mark.parametrize("how", ["a link", *OTHERS_MAY_WRITE])
def test_a_planted_driver_library_is_built_anew(tmp_path: Path, how: str | int) -> None:
    source = tmp_path / "driver.c"
    source.write_text(SOURCE)
    target = driver_build.build([source], tmp_path / "cache")
    planted = b"\x7fELF planted"
    if isinstance(how, int):
        target.write_bytes(planted)
        target.chmod(how)
    else:
        target.unlink()
        (tmp_path / "elsewhere").write_bytes(planted)
        target.symlink_to(tmp_path / "elsewhere")
    assert driver_build.build([source], tmp_path / "cache") == target
    assert target.read_bytes() != planted
    assert not target.is_symlink()


@pytest.mark.parametrize("how", ["a link", "another owner", *OTHERS_MAY_WRITE])
def test_planted_kernels_are_made_again(
    tmp_path: Path, how: str | int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    cache.put("kernel", b"code")
    entry = tmp_path / "cache" / "kernel"
    if isinstance(how, int):
        entry.chmod(how)
    elif how == "another owner":
        owner = entry.stat().st_uid
        monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    else:
        entry.rename(tmp_path / "elsewhere")
        entry.symlink_to(tmp_path / "elsewhere")
    assert cache.get("kernel") is None
    assert "kernel" in caplog.text
    monkeypatch.undo()
    cache.put("kernel", b"code")
    assert cache.get("kernel") == b"code"
