"""The wheel: everything inside that a machine without a C compiler needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).parent.parent
COMPILERS = {"cc", "gcc", "clang", "c99", "tcc"}


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    base = {name: value for name, value in os.environ.items() if name not in ("CC", "PYTHONPATH")}
    ended = subprocess.run(
        command,
        cwd=folder,
        env=base | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(ROOT, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Path:
    """The commands of an environment that has the wheel, and what it depends on from that of the tests."""
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    run(
        tmp_path,
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
    )
    packages = Path(run(tmp_path, python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # behind the environment's own packages; what a .pth names is not searched for .pth files, so not for this checkout
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def without_compiler(tmp_path: Path) -> Path:
    """A folder with the machine's programs but no compiler, for PATH."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not COMPILERS & {program.name, program.name.split("-")[0]} and not link.is_symlink():
                link.symlink_to(program)
    return programs


def test_the_wheel_is_for_this_machine_and_any_python(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name.endswith(f"-py3-none-{platform}.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "kaas/softgpu/packed/libcuda.so.1" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_demonstration_runs_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    environment = {"PATH": str(without_compiler(tmp_path)), "XDG_CACHE_HOME": str(caches)}
    where = run(
        tmp_path, installed / "python", "-c", "import kaas.softgpu.build as b; print(b.build())", **environment
    ).strip()
    assert where.startswith(str(tmp_path))
    out = run(tmp_path, installed / "kaas", "demo", "--no-ray", "--seconds", "1", "--vertices", "64", **environment)
    assert "all equal to NumPy's" in out
    assert not (caches / "kaas" / "driver").exists()


def test_the_compiler_s_wheel_installs_and_is_found(tmp_path: Path) -> None:
    """By its entry point, through which `kaas compile` looks for compilers."""
    source, folder = ROOT / "compilers" / "tvm_backend", tmp_path / "installed"
    run(source, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    (made,) = tmp_path.glob("kaas_gpu_tvm-*-py3-none-any.whl")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(tmp_path, *pip, "--target", folder, made)
    modules = {path.relative_to(source) for path in (source / "tvm_backend").rglob("*.py")}
    assert {path.relative_to(folder) for path in folder.rglob("*.py")} == modules
    (found,) = metadata.distributions(path=[str(folder)])
    assert [(point.group, point.name, point.value) for point in found.entry_points] == [
        ("kaas.compilers", "tvm", "tvm_backend:compile")
    ]
