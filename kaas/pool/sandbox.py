"""What the process of an executor may reach when it runs the kernels of clients that its operator does not know.

A kernel that breaks out of its buffers runs with the rights of the process around it. Landlock takes most of these
away before the first kernel is loaded, for good: no file but the system's and Python's own is readable, none but those
of the compile cache is writable, no program can be started, no TCP connection made, no other process looked into or
signalled. Linux has all of that from 6.12 on, and its files from 5.13 on.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from kaas.caches import cache_root

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/opt", "/etc", "/proc", "/sys", "/run")
"""Where programs, libraries and drivers are, and what the system tells of itself."""
DEVICES = ("/dev",)
PASSED_ON = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV")
"""Variables of the environment that an executor needs, ..."""
PASSED_ON_BEGIN = ("KAAS_", "CUDA_", "NVIDIA_", "NV_", "PYTHON", "LC_", "OMP_", "OPENBLAS_", "MKL_", "MALLOC_")
"""... and what the names of others begin with. All else may be a secret of the operator's."""


class Sandbox(msgspec.Struct, frozen=True):
    """hidden: files and folders that the process cannot open, wherever they are: keys, state, configuration."""

    hidden: tuple[str, ...] = ()

    def enter(self) -> bool:
        """Give up these rights in this process, which has a single thread as yet. Return whether the kernel has
        Landlock; without it nothing changes."""
        from py_landlock import AccessFs, Landlock, LandlockError

        rules = Landlock(strict=False)
        try:
            _ = rules.abi_version
        except LandlockError:
            return False
        hidden = [Path(path).resolve() for path in self.hidden]
        rules.allow_read(*visible([*SYSTEM, *python_folders()], hidden))
        rules.add_path_rule(
            *visible(DEVICES, hidden),
            access=AccessFs.READ_FILE | AccessFs.READ_DIR | AccessFs.WRITE_FILE | AccessFs.IOCTL_DEV,
        )
        cache = cache_root()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        rules.allow_read_write(*visible([str(cache)], hidden))
        with tempfile.TemporaryDirectory(prefix="kaas-executor-"):
            pass
        rules.apply()
        return True


def python_folders() -> Iterator[str]:
    """Where this Python imports from."""
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    yield from sysconfig.get_paths().values()
    yield from (site.getusersitepackages(), *site.getsitepackages())
    yield from filter(None, sys.path)


def visible(folders: Iterable[str], hidden: list[Path]) -> list[Path]:
    """Of these files and folders those that exist and hold nothing hidden, and of the others what is visible within."""
    found: dict[Path, None] = {}
    waiting = [Path(folder).resolve() for folder in folders]
    while waiting:
        path = waiting.pop()
        if path in found or path in hidden or not path.exists() or any(above in hidden for above in path.parents):
            continue
        if any(path in each.parents for each in hidden):
            waiting.extend(child for child in path.iterdir() if not child.is_symlink())
        else:
            found[path] = None
    return list(found)


def environment(of: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What an executor is told of its parent's environment."""
    return {name: value for name, value in of.items() if name in PASSED_ON or name.startswith(PASSED_ON_BEGIN)}
