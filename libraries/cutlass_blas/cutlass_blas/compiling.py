"""nvcc and the headers of CUTLASS: finding them, and compiling kernels and adapters with them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

from cutlass_blas.sources import ADAPTER_FLAGS, CUTLASS_VERSION, DEVICE, FATBIN_FLAGS, PTX_FLAGS
from kaas import errors

OLDEST_NVCC: Final = (11, 8)
"""The first CUDA release that makes code for sm_90."""
WHEELS: Final = "nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl"
LIMIT_S: Final = 900.0
_GLOBAL = re.compile(r"^\.global [^;={]* ([\w$]+)(?:\[\d+\])?;\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """nvcc, its version, and the folder of CUTLASS's headers."""

    nvcc: Path
    version: str
    headers: Path

    def fatbin(self, text: str, title: str) -> bytes:
        """Return machine code for sm_80 and sm_90, and PTX.

        Raises:
            CompileFailed: with nvcc's output.
        """
        ptx = self._compiled(text, f"{title}.cu", PTX_FLAGS).decode()
        return self._compiled(without_unused_globals(ptx), f"{title}.ptx", FATBIN_FLAGS)

    def adapter(self, text: str, title: str) -> bytes:
        """Return a library for the host that needs no other library.

        Raises:
            CompileFailed: with nvcc's output.
        """
        return self._compiled(text, f"{title}.cu", ADAPTER_FLAGS)

    def _compiled(self, text: str, file: str, flags: tuple[str, ...]) -> bytes:
        title = Path(file).stem
        with tempfile.TemporaryDirectory(prefix="kaas-blas-") as folder:
            source, target = Path(folder, file), Path(folder, "compiled")
            source.write_text(text)
            # -isystem: no warnings about CUTLASS's own headers
            includes = ("-I", str(DEVICE), "-isystem", str(self.headers))
            command = (str(self.nvcc), *flags, *includes, "-o", str(target), str(source))
            try:
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                self._refuse(title, f"it had not ended after {LIMIT_S:.0f} s", "")
            except OSError as error:
                self._refuse(title, f"it cannot be run: {error}", "")
            log = (done.stdout + done.stderr).strip()
            if done.returncode != 0:
                lines = (line for line in log.splitlines() if "error" in line or "fatal" in line)
                reason = next(lines, f"exit status {done.returncode}")
                self._refuse(title, reason, log)
            if not target.is_file() or not target.stat().st_size:
                self._refuse(title, "it wrote nothing", log)
            return target.read_bytes()

    def _refuse(self, title: str, why: str, log: str) -> NoReturn:
        compiler = f"nvcc {self.version}"
        raise errors.CompileFailed(f"{compiler} fails with {title}: {why}", compiler=compiler, source=title, log=log)


def without_unused_globals(ptx: str) -> str:
    """Return PTX without the global variables that headers define and nothing uses.

    An executor resets every global variable between the requests of two clients.
    """
    return _GLOBAL.sub(lambda found: "" if len(re.findall(rf"{re.escape(found[1])}\b", ptx)) == 1 else found[0], ptx)


def toolchain() -> Toolchain:
    """Return the installed toolchain.

    Raises:
        MissingPackage: nvcc, a C++ compiler or the headers are missing or too old; the error says what to install.
    """
    # a missing part may be installed later: only a complete toolchain is remembered
    return _toolchain(os.environ.get("KAAS_NVCC"), os.environ.get("CUDA_HOME"), os.environ.get("PATH"))


@cache
def _toolchain(chosen: str | None, home: str | None, path: str | None) -> Toolchain:
    nvcc, version = _nvcc(chosen, home, path)
    if shutil.which("g++", path=path) is None and "NVCC_CCBIN" not in os.environ:
        raise _missing("a C++ compiler, which nvcc calls (g++)", "g++", "apt-get install g++")
    return Toolchain(nvcc, version, _headers())


def _nvcc(chosen: str | None, home: str | None, path: str | None) -> tuple[Path, str]:
    """Return the first nvcc that is new enough, and its version: a wheel's may be newer than the system's."""
    if chosen and not os.access(chosen, os.X_OK):
        raise _missing(f"nvcc, which $KAAS_NVCC says is {chosen} and is not there,", "nvcc", f"pip install {WHEELS}")
    refusals = []
    for candidate in [Path(chosen)] if chosen else _candidates(home, path):
        if os.access(candidate, os.X_OK):
            nvcc = candidate.absolute()  # nvcc runs in another folder
            try:
                return nvcc, _nvcc_version(nvcc)
            except errors.MissingPackage as refusal:
                refusals.append(refusal)
    if refusals:
        raise refusals[0]
    raise _missing("nvcc, looked for by $KAAS_NVCC, in $CUDA_HOME/bin, in $PATH and in its wheel,", "nvcc",
                   f"pip install {WHEELS}")  # fmt: skip


def _candidates(home: str | None, path: str | None) -> list[Path]:
    candidates = [Path(home, "bin", "nvcc")] if home else []
    candidates += [Path(found)] if (found := shutil.which("nvcc", path=path)) else []
    candidates += [Path(part, cuda, "bin", "nvcc") for part in _places("nvidia") for cuda in ("cu13", "cuda_nvcc")]
    return candidates


def _nvcc_version(nvcc: Path) -> str:
    try:
        output = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _missing(
            f"nvcc: {nvcc} does not run ({error}), and one that does", "nvcc", f"pip install {WHEELS}"
        ) from error
    found = re.search(r"release (\d+)\.(\d+)(?:, V([\d.]+))?", output)
    if found is None:
        raise _missing(f"nvcc: {nvcc} does not tell its version, and one that does", "nvcc", f"pip install {WHEELS}")
    if (int(found[1]), int(found[2])) < OLDEST_NVCC:
        oldest = "{}.{}".format(*OLDEST_NVCC)
        raise _missing(
            f"nvcc {oldest} or newer; {nvcc} is {found[1]}.{found[2]}, and another", "nvcc", f"pip install {WHEELS}"
        )
    return found[3] or f"{found[1]}.{found[2]}"


def _headers() -> Path:
    package = "nvidia-cutlass=={}.{}.0.0".format(*CUTLASS_VERSION)
    for place in _places("cutlass_library"):
        folder = Path(place, "source", "include")
        try:
            text = (folder / "cutlass" / "version.h").read_text(errors="replace")
        except FileNotFoundError:
            continue
        found = tuple(int(n) for n in re.findall(r"#define CUTLASS_M(?:AJOR|INOR)\s+(\d+)", text))
        if found != CUTLASS_VERSION:
            here = ".".join(map(str, found)) or "it does not tell which"
            raise _missing(f"the headers of CUTLASS, of another version than these ({here}),", "nvidia-cutlass",
                           f"pip install {package}")  # fmt: skip
        return folder
    raise _missing("the headers of CUTLASS,", "nvidia-cutlass", f"pip install {package}")


def _places(package: str) -> list[str]:
    """Return the folders of a package without importing it."""
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []


def _missing(what: str, package: str, how: str) -> errors.MissingPackage:
    install = how.removeprefix("pip install ")
    return errors.MissingPackage(
        f"a kernel of the BLAS library that is not built yet needs {what.rstrip(',')}; to install it: {how}",
        package=package,
        install=install,
    )
