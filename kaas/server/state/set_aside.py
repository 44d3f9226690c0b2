"""What a server's state cannot use any more: moved into one folder, each piece with its story, and told to the log."""

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
"""Stories of one life that are told to administrators, the newest."""

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_log = logging.getLogger(__name__)


class SetAside:
    """
    Fields:
        stories: of what was set aside since this was made, the newest. count: of how many pieces.
    """

    def __init__(self, state: Path) -> None:
        """state: the server's folder, in which the folder of what was set aside is made when it is needed."""
        self.folder = state / FOLDER
        self.stories: list[str] = []
        self.count = 0

    def data(self, name: str, data: bytes, why: str) -> None:
        """Keep the bytes of a row. name: of the row, for people.

        Raises:
            OSError
        """
        path = self._path(name)
        with open(path, "xb", opener=_private) as file:
            file.write(data)
        self._tell(path, name, why)

    def file(self, path: Path, why: str) -> None:
        """Move a file or a folder. One that is gone means nothing.

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
        """Keep a copy of a file that goes on being used.

        Raises:
            OSError
        """
        to = self._path(path.name)
        with path.open("rb") as source, open(to, "xb", opener=_private) as target:
            shutil.copyfileobj(source, target)
        self._tell(to, path.name, why)

    def story(self, why: str) -> None:
        """Tell of damage of which there is nothing to keep."""
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
