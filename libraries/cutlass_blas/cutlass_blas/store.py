"""Where built kernels and adapters lie: inside an installed wheel, else in the cache, whole or not at all."""

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
"""Where a wheel has the core."""
_MAGIC: Final = b"KAASBLAS"
_DIGEST_BYTES: Final = 16
_TAIL_BYTES: Final = len(_MAGIC) + _DIGEST_BYTES
_log = logging.getLogger(__name__)


def cached() -> Path:
    """The folder of what this user has built.

    Raises:
        DeviceUnavailable: there is nowhere to write.
    """
    return kaas.cache_root() / "blas"


def kernels_file(name: str) -> str:
    """What the file with the fat image of an instance or of other device code is called.

    Raises:
        UnknownSymbol: there is nothing of this name.
    """
    return f"{name}-{sources.version(name)}.fatbin"


def adapter_file(instances: Sequence[Instance]) -> str:
    """What the file with the adapter of these is called."""
    name = sources.CORE_ADAPTER if len(instances) > 1 else instances[0].name
    return f"{name}-{sources.adapter_version(instances)}.so"


def kernels(name: str) -> bytes:
    """The fat image of an instance, or of other device code; built now if it is not there.

    Raises:
        UnknownSymbol: there is nothing of this name.
        MissingPackage, CompileFailed: it is not there and cannot be built.
    """
    file = kernels_file(name)
    return contents(find(file) or _built_now(file, lambda: build_kernels(name)))


def adapter(instance: Instance) -> Path:
    """A library with the adapter of this instance: that of the core if it is built, else one of its own, which is built
    now if need be.

    Raises:
        MissingPackage, CompileFailed: it is not there and cannot be built.
    """
    if instance in CORE:
        try:
            return _core_adapter(cached())
        except LookupError:
            pass  # it takes a minute to build: this instance's own comes sooner
    file = adapter_file((instance,))
    return find(file) or _built_now(file, lambda: build_adapter((instance,)))


@cache
def _core_adapter(folder: Path) -> Path:
    """Looked for until it is there.

    Raises:
        LookupError: neither a wheel nor the folder has it.
    """
    file = adapter_file(CORE)
    path = find(file, PACKED) or find(file, folder)
    if path is None:
        raise LookupError(file)
    return path


def build_kernels(name: str) -> bytes:
    """Its fat image, compiled."""
    return toolchain().fatbin(sources.kernels_text(name), name)


def build_adapter(instances: Sequence[Instance]) -> bytes:
    """The library that fills the parameters of these, compiled."""
    title = sources.CORE_ADAPTER if len(instances) > 1 else instances[0].name
    return toolchain().adapter(sources.adapter_text(instances), f"{title}_adapter")


def find(file: str, folder: Path | None = None) -> Path | None:
    """The built file of this name, if it is there and whole; None if it is to be built.

    Raises:
        StoreFailed: it cannot be read.
    """
    for path in (folder / file,) if folder else (PACKED / file, cached() / file):
        try:
            found = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise StoreFailed(f"the BLAS library cannot read what it has built: {error}", path=str(path)) from error
        if is_whole(found):
            return path
        _log.warning("%s is damaged and will be built again", path)
    return None


def contents(path: Path) -> bytes:
    """What was built, without what tells whether it is whole."""
    return path.read_bytes()[:-_TAIL_BYTES]


def is_whole(file: bytes) -> bool:
    return file[-_TAIL_BYTES:] == _tail(file[:-_TAIL_BYTES])


def made(path: Path, build: Callable[[], bytes]) -> Path:
    """This file, made by `build` unless it is there and whole. Of several who want it at once one builds, the others
    wait for it.

    Raises:
        StoreFailed: it cannot be written.
        MissingPackage, CompileFailed: it cannot be built.
    """
    try:
        return _made(path, build)
    except OSError as error:
        raise StoreFailed(f"the BLAS library cannot keep what it builds: {error}", path=str(path)) from error


def _made(path: Path, build: Callable[[], bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # which ends with its holder
        try:
            if find(path.name, path.parent) is None:
                _put(path, build())
        finally:
            # who comes now makes a lock of its own, and at worst builds once more
            lock.unlink(missing_ok=True)
    return path


def _put(path: Path, built: bytes) -> None:
    """Writes to a name of our own, then renames: whoever looks finds a whole file or none."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(built + _tail(built))  # behind its end, where neither a library nor an image is read
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    finally:
        Path(draft).unlink(missing_ok=True)


def _built_now(file: str, build: Callable[[], bytes]) -> Path:
    toolchain()  # without one nothing is begun, and nothing said of it
    _log.warning("building %s, once, in about half a minute; `python -m cutlass_blas build NAME` does it ahead", file)
    return made(cached() / file, build)


def _tail(built: bytes) -> bytes:
    return _MAGIC + hashlib.blake2b(built, digest_size=_DIGEST_BYTES).digest()
