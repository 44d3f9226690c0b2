"""A store of compiled models on disk, by the hash of everything that they were made from."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import kaas
from kaas import errors
from tvm_backend.frontends.content import feed
from tvm_backend.frontends.imported import Prepared

LIMIT_BYTES = 4 << 30
STALE_S = 600  # a draft of this age is of a process that was killed
ENTRY = ".kaas"
SWITCH = "KAAS_MODEL_CACHE"
"""The environment variable that turns the store off, with "0"."""

COMPILERS = ("apache-tvm", "kaas-gpu", "kaas-gpu-tvm", "nvidia-cuda-nvrtc", "onnx", "torch")
"""Distributions whose versions a compiled model depends on."""

_log = logging.getLogger(__name__)


class Store:
    """A directory of .kaas files, each named by the hash of its model's sources.

    A hit refreshes its entry. When the entries exceed `limit_bytes`, those longest unused are removed. Entries appear
    whole or not at all, and any number of processes share them. A failure to read or write an entry is logged: it costs
    time, not correctness.
    """

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes

    def get(self, key: str) -> kaas.CompiledModel | None:
        """Return the stored model, or None if there is none that can be read."""
        path = self.directory / (key + ENTRY)
        if not path.exists():
            return None
        try:
            model = kaas.load(path)
            os.utime(path)
        except errors.CorruptModel as error:
            _log.warning("the stored model %s is damaged and will be made again: %s", path, error)
            path.unlink(missing_ok=True)
            return None
        except (errors.InvalidRequest, OSError) as error:  # another process may have just removed it
            _log.warning("cannot read the stored model %s: %s", path, error)
            return None
        return model

    def put(self, key: str, model: kaas.CompiledModel) -> None:
        """Store a model, and remove old entries beyond the limit. A failure is logged."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            model.save(self.directory / (key + ENTRY))
            self._trim()
        except (errors.InvalidRequest, OSError) as error:
            _log.warning("cannot store the compiled model %r: %s", model.name, error)

    def _trim(self) -> None:
        entries = []
        for path in self.directory.iterdir():
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            if path.suffix == ENTRY:
                entries.append((status.st_mtime_ns, status.st_size, path))
            elif path.is_dir() and status.st_mtime < time.time() - STALE_S:
                shutil.rmtree(path, ignore_errors=True)  # another process may be removing it too
        excess = sum(size for _, size, _ in entries) - self.limit_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


def store() -> Store | None:
    """Return the user's store, `models` below `kaas.cache_root`; None if it is turned off or cannot be written."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return Store(kaas.cache_root() / "models")
    except errors.DeviceUnavailable as error:
        _log.warning("cannot store compiled models: %s", error)
        return None


def key(prepared: Prepared, options: str) -> str:
    """Return the hash of a model's content, the options, this package's source and the versions of other compilers."""
    digest = hashlib.sha256()
    feed(digest, options)
    for distribution in COMPILERS:
        feed(digest, f"{distribution} {_version(distribution)}")
    root = Path(__file__).parent
    for path in sorted(root.rglob("*.py")):
        feed(digest, f"{path.relative_to(root)} {path.read_text()}")
    prepared.content(digest)
    return digest.hexdigest()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
