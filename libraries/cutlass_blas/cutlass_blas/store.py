"""The files of built kernels and adapters: in an installed wheel, else in the cache, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import kaas
from cutlass_blas import sources
from cutlass_blas.compiling import toolchain
from cutlass_blas.errors import StoreFailed
from cutlass_blas.instances import CORE, Instance

PACKED: Final = Path(__file__).resolve().parent / "packed"
"""A wheel's folder for the core."""
_MAGIC: Final = b"KAASBLAS"
_DIGEST_BYTES: Final = 16
_TAIL_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES
_log = logging.getLogger(__name__)


def cached() -> Path:
    """Return the folder of the files that this user has built.

    Raises:
        DeviceUnavailable: no folder can be written.
    """
    return kaas.cache_root() / "blas"


def kernels_file(name: str) -> str:
    """Return the name of the file with the fat image of an instance or of other device code.

    Raises:
        UnknownSymbol: no code has this name.
    """
    return f"{name}-{sources.version(name)}.fatbin"


def adapter_file(instances: Sequence[Instance]) -> str:
    """Return the name of the file with the adapter of these instances."""
    name = sources.CORE_ADAPTER if len(instances) > 1 else instances[0].name
    return f"{name}-{sources.adapter_version(instances)}.so"


def kernels(name: str) -> bytes:
    """Return the fat image of an instance or of other device code; it is built now if it is missing.

    Raises:
        UnknownSymbol: no code has this name.
        MissingPackage, CompileFailed: it is missing and cannot be built.
    """
    file = kernels_file(name)
    return contents(find(file) or _built_now(file, lambda: build_kernels(name)))


def adapter(instance: Instance) -> Path:
    """Return a library with the adapter of this instance.

    It is the core's adapter if that is built, else one for this instance only, which is built now if it is missing.

    Raises:
        MissingPackage, CompileFailed: it is missing and cannot be built.
    """
    if instance in CORE:
        try:
            return _core_adapter(cached())
        except LookupError:
            pass  # the core's adapter takes a minute to build, this instance's own takes less
    file = adapter_file((instance,))
    return find(file) or _built_now(file, lambda: build_adapter((instance,)))


@cache
def _core_adapter(folder: Path) -> Path:
    """Return the core's adapter; only a file that was found is remembered.

    Raises:
        LookupError: neither a wheel nor the folder has it.
    """
    file = adapter_file(CORE)
    path = find(file, PACKED) or find(file, folder)
    if path is None:
        raise LookupError(file)
    return path


def build_kernels(name: str) -> bytes:
    """Compile an instance or other device code, and return its fat image."""
    return toolchain().fatbin(sources.kernels_text(name), name)


def build_adapter(instances: Sequence[Instance]) -> bytes:
    """Compile the adapter of these instances, and return its library."""
    title = sources.CORE_ADAPTER if len(instances) > 1 else instances[0].name
    return toolchain().adapter(sources.adapter_text(instances), f"{title}_adapter")


def find(file: str, folder: Path | None = None) -> Path | None:
    """Return the path of a built file, or None if it is missing or damaged and must be built.

    Raises:
        StoreFailed: it cannot be read.
    """
    for path in (folder / file,) if folder else (PACKED / file, cached() / file):
        try:
            found = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StoreFailed(f"the BLAS library cannot read a built file: {error}", path=str(path)) from error
        if is_whole(found):
            return path
        _log.warning("%s is damaged and will be built again", path)
    return None


def contents(path: Path) -> bytes:
    """Return a built file's contents without its checksum."""
    return path.read_bytes()[:-_TAIL_BYTES]


def is_whole(file: bytes) -> bool:
    """Return True if a file's contents fit the checksum at its end."""
    return file[-_TAIL_BYTES:] == _tail(file[:-_TAIL_BYTES])


def made(path: Path, build: Callable[[], bytes]) -> Path:
    """Return the path of a file, made by `build` unless it is there and whole.

    If several processes need the file at once, one of them builds it and the others wait.

    Raises:
        StoreFailed: it cannot be written.
        MissingPackage, CompileFailed: it cannot be built.
    """
    try:
        return _made(path, build)
    except OSError as error:
        raise StoreFailed(f"the BLAS library cannot write a built file: {error}", path=str(path)) from error


def _made(path: Path, build: Callable[[], bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # the lock ends with its process
        try:
            if find(path.name, path.parent) is None:
                _write(path, build())
        finally:
            # a later process makes a new lock, and at worst builds once more
            lock.unlink(missing_ok=True)
    return path


def _write(path: Path, built: bytes) -> None:
    """Write a draft, then rename it, so that readers find a whole file or none."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(built + _tail(built))  # the checksum is behind the end, where no loader reads
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _built_now(file: str, build: Callable[[], bytes]) -> Path:
    toolchain()  # raises its error before the message below
    _log.warning("building %s, once, in about half a minute; `python -m cutlass_blas build NAME` does it ahead", file)
    return made(cached() / file, build)


def _tail(built: bytes) -> bytes:
    return _MAGIC + hashlib.blake2b(built, digest_size=_DIGEST_BYTES).digest()
