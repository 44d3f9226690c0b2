"""Names of pools without Ray: programs of one user find a pool of this machine by its name, in the user's folder."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from kaas.errors import InvalidConfig
from kaas.wire.messages import Address

NOTICE, LOCK = ".pool", ".lock"


class PoolNotice(msgspec.Struct, frozen=True):
    """The notice of a pool for programs that look for it. config: `Config.described`."""

    address: Address
    node: str
    config: Mapping[str, str]


class PoolName:
    """The place of a pool's notice. A running pool keeps the file locked; its end, even by a kill, unlocks the file."""

    def __init__(self, name: str) -> None:
        """Find the files of a name.

        Raises:
            InvalidConfig: the folder is open to other users, or the name is no text.
        """
        try:
            quoted = quote(name, safe="")
        except UnicodeEncodeError as error:
            raise InvalidConfig(f"the name of a pool is a text, not {name!r}", field="name") from error
        self._name = name
        self._folder = _folder()
        self._notice = self._folder / (quoted + NOTICE)
        self._lock = self._folder / (quoted + LOCK)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let one program at a time look for the pool, and start the pool if there is none."""
        file = self._opened(self._lock)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)

    def running(self, *, wait: bool = True) -> PoolNotice | None:
        """Return the running pool's notice, or None. wait: wait for a pool that is ending, then return None."""
        file = self._opened(self._notice)
        try:
            if _try_lock(file):
                return None  # the file may have the notice of a killed pool
            data = os.pread(file, os.fstat(file).st_size, 0)
            if data:
                return self._decoded(data)
            if wait:
                fcntl.flock(file, fcntl.LOCK_EX)  # the pool is ending, and unlocks the file at its end
            return None
        finally:
            os.close(file)

    def announce(self, notice: PoolNotice) -> int:
        """Publish the notice of this process's pool, until `withdraw` or its end. Return the file.

        Raises:
            InvalidConfig: the file cannot be written.
        """
        file, data = self._opened(self._notice), msgspec.msgpack.encode(notice)
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            os.ftruncate(file, 0)
            if os.pwrite(file, data, 0) < len(data):
                os.ftruncate(file, 0)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.close(file)
            reason = f"a pool cannot be named {self._name!r}: {self._notice}: {error.strerror}"
            raise InvalidConfig(reason, field="name") from error
        return file

    @staticmethod
    def withdraw(file: int) -> None:
        """Remove the notice: no program finds the pool any more. The file stays locked until the process ends."""
        os.ftruncate(file, 0)

    def _decoded(self, data: bytes) -> PoolNotice:
        try:
            return msgspec.msgpack.decode(data, type=PoolNotice)
        except msgspec.MsgspecError as error:
            raise InvalidConfig(f"{self._notice} is not a pool's notice: {error}", field="name") from error

    def _opened(self, path: Path) -> int:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        except OSError as error:
            raise InvalidConfig(f"a pool cannot be named {self._name!r}: {error}", field="name") from error
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise InvalidConfig(f"a pool cannot be named {self._name!r}: {path} is not a file", field="name")
        return file


def running_names() -> list[str]:
    """Return the names of this user's running pools without Ray on this machine, without waiting.

    Raises:
        InvalidConfig: the folder is open to other users.
    """
    notices = (notice for notice in _folder().glob(f"*{NOTICE}") if notice.is_file())
    return sorted(unquote(notice.stem) for notice in notices if _has_pool(notice))


def _has_pool(notice: Path) -> bool:
    with notice.with_suffix(LOCK).open("ab") as lock, notice.open("rb") as file:
        if not _try_lock(lock.fileno()):  # else a program that starts a pool now would take the lock below for a pool's
            return False
        return not _try_lock(file.fileno()) and bool(file.read(1))


def _folder() -> Path:
    """Return the folder of notices.

    Raises:
        InvalidConfig: the folder cannot be made, is another user's, or open to other users.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime, "kaas") if runtime else Path(tempfile.gettempdir(), f"kaas-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfig(f"{folder} cannot be made: {error.strerror}", field="name") from error
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise InvalidConfig(
            f"{folder} is another user's, or open to other users: no pool can be found there safely. Set "
            "XDG_RUNTIME_DIR to a folder that only you can enter, the same for all programs of the pool",
            field="name",
        )
    return folder


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
