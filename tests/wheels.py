"""The distributions as users get them: wheels, and environments that have these and nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from pathlib import Path

from tests.timeouts import TIMEOUT_S

ROOT = Path(__file__).parent.parent
DISTRIBUTIONS = {
    "kaas": ROOT,
    "softgpu": ROOT / "softgpu",
    "tvm_backend": ROOT / "compilers/tvm_backend",
    "cutlass_blas": ROOT / "libraries/cutlass_blas",
}
"""Modules and where their distributions are made."""


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    """Return the output of a command that succeeds in a folder, without a Python path or a compiler of the tests."""
    base = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    ended = subprocess.run(
        command,
        cwd=folder,
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def build(module: str, folder: Path) -> Path:
    """The wheel of a distribution, made in a folder; that of the BLAS library without kernels, which are found or built
    where they are used."""
    inside = folder / module
    inside.mkdir()
    run(
        DISTRIBUTIONS[module],
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "-t",
        "wheel",
        "-d",
        inside,
        KAAS_BLAS_PACK="",
    )
    (made,) = inside.glob("*.whl")
    return made


def install(folder: Path, wheels: Iterable[Path]) -> Path:
    """The commands of a new environment that has wheels, and what they depend on from that of the tests."""
    venv.create(folder)
    python = folder / "bin" / "python"
    options = ("install", "--quiet", "--no-deps", "--no-index")
    run(folder, sys.executable, "-m", "pip", "--python", python, *options, *wheels)
    packages = Path(run(folder, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    dependencies = Path(sysconfig.get_path("purelib"))
    # behind the environment's own packages; what a .pth names is not searched for .pth files, so not for this checkout
    (packages / "dependencies.pth").write_text(f"{dependencies}\n")
    if (dependencies / "nvidia").is_dir():  # its libraries are looked for among the environment's own packages
        (packages / "nvidia").symlink_to(dependencies / "nvidia")
    return python.parent
