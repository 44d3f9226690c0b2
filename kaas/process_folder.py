"""A folder of a process: only its user's, and removed when the process ends, however that happens."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class ProcessFolder:
    """A new folder. Its process keeps it locked, so the next process that makes one sees which are left over.

    Fields:
        path: of the folder.
    """

    def __init__(self, prefix: str, above: str) -> None:
        """prefix: of its name. above: the folder that it is in."""
        for left in Path(above).glob(f"{prefix}*"):
            _remove_left(left)
        file = None
        while file is None:
            self.path = tempfile.mkdtemp(prefix=prefix, dir=above)
            file = _locked(Path(self.path))  # None: another process has taken the folder for a left-over one
        self._file = file

    def remove(self) -> None:
        """Remove the folder with all its files; a second call changes nothing."""
        if self._file >= 0:
            _remove_tree(self.path)
            os.close(self._file)
            self._file = -1


def _remove_left(folder: Path) -> None:
    file = _locked(folder)
    if file is not None:
        _remove_tree(str(folder))
        os.close(file)


def _remove_tree(path: str) -> None:
    """Remove a folder; another process that tidies up may have been faster."""
    try:
        shutil.rmtree(path, ignore_errors=True)
    except RecursionError:  # deeper than Python's stack: code in an executor may make such folders
        subprocess.run(["rm", "-rf", "--", path], check=False)


def _locked(folder: Path) -> int | None:
    """Return a folder's file, locked until it is closed; None if another process locks it, or it is gone."""
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
        if found.st_uid == os.getuid():
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file).st_nlink:
                return file
    except BlockingIOError:
        pass
    os.close(file)
    return None
