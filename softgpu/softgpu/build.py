"""Compiles the driver of the software GPU, `libcuda.so.1`, with the C compiler of the machine.

A cache holds the library under a hash of all its inputs: changed sources are compiled again, and if processes start
together, one compiles and the others wait. A wheel contains the library and needs no compiler.
`python -m softgpu.build` prints the library's path.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from softgpu.errors import SoftgpuError
from softgpu.user_cache import cache_root, is_own_file

HERE = Path(__file__).resolve().parent
FOLDERS = (HERE / "driver", HERE / "runtime")
# only names that CUDA and jit.py look up are visible: other names must not clash with those of the program
EXPORTS = HERE / "driver" / "exports.map"
# stack-clash-protection: as kernels do, the helpers that they call touch each page of their frames in turn
FLAGS = ("-std=gnu11", "-O2", "-g", "-fPIC", "-fstack-clash-protection", "-pthread", "-shared", "-Wall", "-Wextra")
# relro, now: no table of function addresses stays writable, so a kernel's stray store cannot change one
LINK_FLAGS = (
    "-Wl,-soname,libcuda.so.1",
    "-Wl,-Bsymbolic",
    "-Wl,--no-undefined",
    "-Wl,-z,relro",
    "-Wl,-z,now",
    "-lm",
)
INCLUDES = tuple(f"-I{folder}" for folder in FOLDERS)
PACKED = HERE / "packed" / "libcuda.so.1"
"""The place of the library in a wheel."""
COMPILE_LIMIT_S = 300.0
_log = logging.getLogger(__name__)


def driver_sources() -> list[Path]:
    """Return the C files of the driver, runner included."""
    return sorted(path for folder in FOLDERS for path in folder.glob("*.c"))


def build(sources: Sequence[Path] | None = None, directory: Path | None = None) -> Path:
    """Return the path of `libcuda.so.1`, compiled from `sources` unless the wheel or the cache holds it.

    Args:
        sources: C files; None: those of the driver.
        directory: the cache; None: `driver` below `cache_root`.

    Raises:
        SoftgpuError: there is no C compiler, or it fails (with its messages).
    """
    if sources is None and PACKED.exists():
        return PACKED
    files = list(sources) if sources is not None else driver_sources()
    command = (*_compiler(), *FLAGS, *INCLUDES, f"-Wl,--version-script={EXPORTS}")
    target = (directory or cache_root() / "driver") / f"driver-{_fingerprint(files, command)}" / "libcuda.so.1"
    if not is_own_file(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if not is_own_file(target):
                _log.info("building the software GPU's driver, once for this machine")
                _compile(files, command, target)
        finally:
            os.close(folder)
    return target


def _compiler() -> list[str]:
    wanted = shlex.split(os.environ.get("CC", ""))
    for command in (wanted, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    raise SoftgpuError(
        "the software GPU needs a C compiler to build its driver, and none was found (cc, gcc, clang or $CC): "
        "install one, for example with `apt-get install gcc libc6-dev`"
    )


def _fingerprint(files: Sequence[Path], command: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for path in (*files, *sorted(path for folder in FOLDERS for path in folder.glob("*.h")), EXPORTS):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    digest.update("\0".join((*command, *LINK_FLAGS, platform.machine())).encode())
    return digest.hexdigest()[:16]


def _compile(files: Sequence[Path], command: Sequence[str], target: Path) -> None:
    """Compile to a temporary name, then rename: other processes find a whole library or none."""
    handle, draft = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    try:
        done = subprocess.run(
            [*command, "-o", draft, *map(str, files), *LINK_FLAGS],
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise SoftgpuError(f"the driver of the software GPU could not be compiled: {done.stderr.strip()}")
        os.chmod(draft, 0o755)
        os.replace(draft, target)
    finally:
        Path(draft).unlink(missing_ok=True)


if __name__ == "__main__":
    sys.stdout.write(f"{build()}\n")
