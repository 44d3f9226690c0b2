"""The sandbox of an executor's process that runs kernels of clients that its operator does not know.

A kernel that breaks out of its buffers has the rights of the process around it. Landlock takes most of these away
before the first kernel is loaded, for good: the process reads the system's and Python's files and no others, writes
into the compile cache and its own threads' files (/proc/self/task) only, starts no program, makes no TCP connection,
and neither traces another process nor signals one. Linux restricts files from 5.13 on, connections from 6.7 on, signals
from 6.12 on. Landlock lets a process with root's rights read the environment and the memory map of any other (found on
Linux 6.18), so it loses these rights. And Landlock binds no process outside of a sandbox: `unreadable` keeps those of
the same user from the memory, the environment and the open files of this one.
`kaas.worker.seccomp` refuses system calls that Landlock does not cover. Namespaces of its own, where Linux lets a user
make them, leave the process no network and no abstract sockets of others at all.
"""

from __future__ import annotations

import ctypes
import os
import resource
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py_landlock import AccessFs, Landlock, LandlockError

from kaas import cache_folders
from kaas.cache_folders import cache_root
from kaas.worker.seccomp import restrict
from softgpu import KERNELS_VARIABLE, user_cache
from softgpu.user_cache import KERNELS

SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/proc", "/sys")
"""Folders of libraries and drivers, and of facts about the system."""
SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd", "group", "nsswitch.conf")
"""Readable files in /etc; other files there may be secrets."""
DEVICES = ("null", "zero", "full", "random", "urandom", "nvidia*", "dri")
"""Devices in /dev."""
NAMED = ("SOFTGPU_MODEL",)
"""Variables of the environment that name a file which an executor reads."""
CACHES, BUILT = ("nvidia", "tmp"), ("blas", "nvrtc")
"""Folders of the cache that an executor writes: compiled kernels; and folders that its compilers write. Of the software
GPU's cache it writes `KERNELS`, but not the driver library, which the next executor loads before it enters its
sandbox."""
PASSED_ON = frozenset({"PATH", "HOME", "LANG", "TZ", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CC"})
"""Variables of the environment that an executor gets."""
PASSED_ON_BEGIN = ("KAAS_", "SOFTGPU_", "CUDA_", "NVIDIA_", "PYTHON", "LC_", "OMP_", "OPENBLAS_", "MKL_", "MALLOC_")
"""An executor also gets variables whose names begin so. Any other variable may be a secret of the operator."""


LANDLOCK_VERSIONS = {"connections": 4, "signals": 6}
"""The versions of Landlock from which on it restricts these."""
LIMITS = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: 4096}
"""Limits of the process: it leaves no memory in files, and does not take all that the machine may have open."""

_PR_SET_DUMPABLE = 4
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The rules of one sandbox.

    hidden: files and folders that may not be opened. packages: more folders from which packages are imported. programs:
    the process may start other programs, such as compilers. own: the only folder that the process writes; "" for the
    caches that executors share. sockets: it may connect to its pool.
    """

    hidden: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    programs: bool = False
    own: str = ""
    sockets: bool = True

    def enter(self) -> tuple[str, ...]:
        """Restrict this process, which has a single thread, for good; return what Linux cannot restrict here.

        Raises:
            LandlockError: Linux has no Landlock here.
            OSError
        """
        apart = _try_namespaces()
        hidden = [Path(path).resolve() for path in self.hidden]
        settings = [Path("/etc") / name for name in SETTINGS]
        settings += [Path(os.environ[name]) for name in NAMED if os.environ.get(name)]
        devices = [device for name in DEVICES for device in Path("/dev").glob(name)]
        rules = Landlock(strict=False)
        for path in visible([*map(Path, (*SYSTEM, *self.packages)), *settings, *python_folders()], hidden):
            access = AccessFs.READ_FILE | AccessFs.READ_DIR if path.is_dir() else AccessFs.READ_FILE
            rules.add_path_rule(path, access=access | AccessFs.EXECUTE if self.programs else access)
        rules.add_path_rule(*devices, access=AccessFs.READ_FILE | AccessFs.WRITE_FILE | AccessFs.IOCTL_DEV)
        rules.allow_read(*visible([cache_root(), user_cache.cache_root()], hidden))
        rules.allow_read_write(*visible(self._written(), hidden))
        # cuInit writes a file there, probably a thread's name, or gives CUDA_ERROR_OPERATING_SYSTEM (found on an H200)
        written_by_cuda = AccessFs.READ_FILE | AccessFs.WRITE_FILE | AccessFs.TRUNCATE
        rules.add_path_rule(Path("/proc/self/task").resolve(), access=written_by_cuda)
        rules.apply()
        for limit, most in LIMITS.items():
            _, allowed = resource.getrlimit(limit)
            least = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
            resource.setrlimit(limit, (least, least))
        _drop_capabilities()
        unreadable()
        filtered = restrict(programs=self.programs, sockets=self.sockets)
        lacking = [kind for kind, version in LANDLOCK_VERSIONS.items() if rules.abi_version < version]
        return (*lacking, *(() if filtered else ("system calls",)), *(() if apart else ("namespaces",)))

    def _written(self) -> list[Path]:
        if self.own:
            return [Path(self.own)]
        caches = [cache_root() / name for name in (*CACHES, *(BUILT if self.programs else ()))]
        return [*caches, user_cache.cache_root() / KERNELS]

    def environment(self, of: Mapping[str, str]) -> dict[str, str]:
        """Return the inherited part of an environment. Temporary files go where the process can write."""
        kept = {name: value for name, value in of.items() if name in PASSED_ON or name.startswith(PASSED_ON_BEGIN)}
        cache = Path(self.own or cache_root())
        for name in (*CACHES, KERNELS) if self.own else (*CACHES, *BUILT):
            (cache / name).mkdir(mode=0o700, exist_ok=True)
        (user_cache.cache_root() / KERNELS).mkdir(mode=0o700, exist_ok=True)
        compiled = {"CUDA_CACHE_PATH": str(cache / "nvidia")}
        if self.own:
            return {**kept, **compiled, KERNELS_VARIABLE: str(cache / KERNELS), "TMPDIR": str(cache / "tmp")}
        return {**compiled, **kept, "TMPDIR": str(cache / "tmp")}


def _try_namespaces() -> bool:
    """Enter own namespaces; return False if Linux does not allow it. A child tries first: there is no way back."""
    child = os.fork()
    if not child:
        try:
            _enter_namespaces()
        except OSError:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        return False
    _enter_namespaces()
    return True


def _enter_namespaces() -> None:
    """Give this process users, a network and System V objects of its own. It keeps its user's and group's numbers.

    Raises:
        OSError: Linux lets only some programs make namespaces, or so many.
    """
    user, group = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWIPC)
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{user} {user} 1")
    (own / "gid_map").write_text(f"{group} {group} 1")


def unreadable() -> None:
    """Keep processes without CAP_SYS_PTRACE from this one's memory, files and environment (prctl PR_SET_DUMPABLE).

    That includes processes of the same user.

    Raises:
        OSError
    """
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)


def _drop_capabilities() -> None:
    """Drop the capabilities of root, if this process is root's (capset)."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _call("capset", ctypes.byref(header), ctypes.byref(none))


def _call(name: str, *args: Any) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def available() -> bool:
    """Return True if Linux has Landlock here."""
    try:
        return Landlock(strict=False).abi_version > 0
    except LandlockError:
        return False


def python_folders() -> Iterator[Path]:
    """Yield the folders of this Python, of its packages, and of packages installed from elsewhere.

    Other folders of `sys.path` are the operator's, such as that of the configuration, which may also hold keys.
    """
    packages = [
        *map(Path, site.getsitepackages()),
        *(Path(each).resolve().parent.parent for each in (cache_folders.__file__, str(user_cache.__file__))),
    ]
    yield from (Path(sys.prefix), Path(sys.base_prefix), *map(Path, sysconfig.get_paths().values()), *packages)
    for listed in (
        line for folder in packages for file in folder.glob("*.pth") for line in file.read_text().split("\n")
    ):
        if os.path.isabs(listed):
            yield Path(listed)
    yield from map(Path, filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))


def visible(folders: Iterable[Path], hidden: list[Path]) -> list[Path]:
    """Return these files and folders if they exist and contain nothing hidden, else their visible contents."""
    found: dict[Path, None] = {}
    waiting = [folder.resolve() for folder in folders]
    while waiting:
        path = waiting.pop()
        if path in found or not path.exists() or any(each == path or each in path.parents for each in hidden):
            continue
        if any(path in each.parents for each in hidden):
            waiting += [child for child in path.iterdir() if not child.is_symlink()]
        else:
            found[path] = None
    return list(found)
