"""Damaged parts of a server's state: moved into one folder, each with its story, and logged."""

from __future__ import annotations

import logging
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex

FOLDER = "set-aside"
STORY = ".story"
STORIES_KEPT = 100
"""The number of newest stories of one run that administrators see."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_log = logging.getLogger(__name__)


class SetAside:
    """The folder of damaged parts.

    Fields:
        stories: the newest stories of this run. count: number of parts that were set aside in this run.
    """

    def __init__(self, state: Path) -> None:
        """state: the server's folder. The folder of damaged parts is made in it when it is needed."""
        self.folder = state / FOLDER
        self.stories: list[str] = []
        self.count = 0

    def data(self, name: str, data: bytes, why: str) -> None:
        """Keep the bytes of a row. name: of the row, for readers.

        Raises:
            OSError
        """
        path = self._path(name)
        with open(path, "xb", opener=_private) as file:
            file.write(data)
        self._tell(path, name, why)

    def file(self, path: Path, why: str) -> None:
        """Move a file or a folder. A missing one is ignored.

        Raises:
            OSError
        """
        to = self._path(path.name)
        try:
            os.rename(path, to)
        except FileNotFoundError:
            return
        self._tell(to, path.name, why)

    def copy(self, path: Path, why: str) -> None:
        """Keep a copy of a file that stays in use.

        Raises:
            OSError
        """
        to = self._path(path.name)
        with path.open("rb") as source, open(to, "xb", opener=_private) as target:
            shutil.copyfileobj(source, target)
        self._tell(to, path.name, why)

    def story(self, why: str) -> None:
        """Report damage, in the log and to administrators. Of damage alone that leaves no data, this is all."""
        self.count += 1
        self.stories = [*self.stories, why][-STORIES_KEPT:]
        _log.error("the state is damaged: %s", why)

    def _path(self, name: str) -> Path:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        return self.folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(4)}-{_UNSAFE.sub('_', name)[:100]}"

    def _tell(self, path: Path, name: str, why: str) -> None:
        with open(path.with_name(path.name + STORY), "x", opener=_private) as file:
            file.write(f"{datetime.now(UTC).isoformat(' ', 'seconds')} {name}: {why}\n")
        self.story(f"{name} was set aside: {why}")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
