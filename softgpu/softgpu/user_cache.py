"""The user's folder for compiled code. Machine code is loaded only from files of this user."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

KERNELS = "kernels"
"""The folder of compiled kernels below `cache_root`."""


def cache_root(name: str = "softgpu") -> Path:
    """Return the folder `name` below $XDG_CACHE_HOME or ~/.cache.

    If neither can be written, it is a folder of this user among the temporary files. The folder exists and belongs to
    this user, and no other user can write there.

    Raises:
        OSError: there is no such folder and none can be made.
    """
    tried = []
    for candidate in (*_homes(name), Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"):
        try:
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            is_own = _is_own_folder(candidate)
        except OSError as error:
            tried.append(str(error))
            continue
        if is_own and os.access(candidate, os.W_OK):
            return candidate
        tried.append(f"{candidate} is not this user's alone to write")
    raise OSError(f"there is no folder for what is compiled: {'; '.join(tried)}")


def is_own(status: os.stat_result) -> bool:
    """Return True if only this user could have changed the file or folder."""
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_own_file(path: Path) -> bool:
    """Return True if the path is a regular file, and no link to one, that only this user could have changed."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and is_own(status)


def _homes(name: str) -> list[Path]:
    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return [Path(chosen) / name]
    try:
        return [Path.home() / ".cache" / name]
    except RuntimeError:  # this user has no home folder
        return []


def _is_own_folder(path: Path) -> bool:
    """Return True for a folder of this user, or a link to one if this user made the link.

    In a shared folder, such as that of temporary files, other users may make links.
    """
    return path.lstat().st_uid == os.getuid() and path.is_dir() and is_own(path.stat())
