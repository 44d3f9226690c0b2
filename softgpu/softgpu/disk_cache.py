"""A directory of compiled code: bounded, shared by any number of processes, robust against damaged files."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import time
from pathlib import Path

from softgpu.user_cache import is_own

CACHE_BYTES = 256 << 20
"""The limit of the cache of kernels."""
_MAGIC = b"SGPUOBJ1"
_DIGEST_BYTES = 16
_UNFINISHED = ".new-"
_STALE_S = 600  # a writer that takes longer was killed
_log = logging.getLogger(__name__)


class DiskCache:
    """A cache whose entries are files, named by their key.

    A read refreshes its entry. If the files exceed `limit_bytes`, those that were not read for longest are removed.
    Each process checks this at its first write, and again after every eighth of the limit that it writes: n processes
    exceed the limit by n eighths at most. An entry appears whole or not at all, even if its writer is killed. A failed
    read or write is logged; it costs time, not correctness.

    Args:
        others: a directory of other processes, whose entries are read too, and stay as they are.
    """

    def __init__(self, directory: Path, limit_bytes: int, others: Path | None = None) -> None:
        self.directory, self.limit_bytes, self._others = directory, limit_bytes, others
        self._written_bytes = limit_bytes  # so that the first write checks the directory

    def get(self, key: str) -> bytes | None:
        """Return the entry, or None if there is no undamaged one that only this user could have written."""
        found = self._read(self.directory / key)
        if found is None and self._others is not None:
            return self._read(self._others / key)
        if found is not None:
            try:
                os.utime(self.directory / key)
            except OSError as error:  # another process may have just removed it
                _log.debug("cannot refresh %s: %s", key, error)
        return found

    def _read(self, path: Path) -> bytes | None:
        key = path.name
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe would wait for ever
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not (stat.S_ISREG(status.st_mode) and is_own(status)):
                    _log.warning("others could have written the kernel cache entry %s: it will be made again", key)
                    return None
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("cannot read the kernel cache: %s", error)
            return None
        payload = content[len(_MAGIC) + _DIGEST_BYTES :]
        if content[: len(_MAGIC)] != _MAGIC or content[len(_MAGIC) : len(_MAGIC) + _DIGEST_BYTES] != _digest(payload):
            _log.warning("the kernel cache entry %s is damaged and will be made again", key)
            return None
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Write the entry, and remove old ones if this process has written enough. A failure is logged, not raised."""
        content = _MAGIC + _digest(payload) + payload
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=self.directory)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(content)
                os.replace(name, self.directory / key)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
            self._written_bytes += len(content)
            if self._written_bytes > self.limit_bytes // 8:
                self._trim()
                self._written_bytes = 0
        except OSError as error:
            self._unwritten(error)

    def _unwritten(self, error: OSError) -> None:
        _log.warning("cannot write the kernel cache: %s", error)

    def _trim(self) -> None:
        entries = []
        for path in self.directory.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if not path.name.startswith(_UNFINISHED):
                entries.append((status.st_mtime_ns, status.st_size, path))
            elif status.st_mtime < time.time() - _STALE_S:
                path.unlink(missing_ok=True)
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST_BYTES).digest()
