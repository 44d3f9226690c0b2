"""Models compiled before, on disk: found again by what went in."""

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
STALE_S = 600  # who wrote for so long was killed
ENTRY = ".kaas"
SWITCH = "KAAS_MODEL_CACHE"
"""The environment variable that turns the store off, with "0"."""

MAKERS = ("apache-tvm", "kaas-gpu", "kaas-gpu-tvm", "nvidia-cuda-nvrtc", "onnx", "torch")
"""Distributions whose versions a compiled model depends on."""

_log = logging.getLogger(__name__)


class Store:
    """A directory of .kaas files, each named by the hash of what it was made from. A hit refreshes its entry; when the
    entries exceed `limit_bytes` those longest unused go. Entries appear whole or not at all, and any number of
    processes share them. What keeps an entry from being read or written costs time, not correctness: it is logged."""

    def __init__(self, directory: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.directory, self.limit_bytes = directory, limit_bytes

    def get(self, key: str) -> kaas.CompiledModel | None:
        """The model, or None where there is none that is whole."""
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
    """The user's store: `models` below `kaas.cache_root`; None if it is turned off, or nothing can be written there."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return Store(kaas.cache_root() / "models")
    except errors.DeviceUnavailable as error:
        _log.warning("cannot store compiled models: %s", error)
        return None


def key(prepared: Prepared, options: str) -> str:
    """Of the model's content, the options, and all that compiles it: this package to the letter, others by version."""
    digest = hashlib.sha256()
    feed(digest, options)
    for distribution in MAKERS:
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
