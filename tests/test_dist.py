"""The wheel: everything inside that a machine without a C compiler needs."""

from __future__ import annotations

import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.wheels import ROOT, install, run

pytestmark = pytest.mark.full

COMPILERS = {"cc", "gcc", "clang", "c99", "tcc"}


@pytest.fixture
def installed(wheels: dict[str, Path], tmp_path: Path) -> Path:
    """The commands of an environment that has the wheels."""
    return install(tmp_path / "venv", wheels.values())


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


def test_the_wheel_of_the_driver_is_for_this_machine_and_any_python(wheels: dict[str, Path]) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheels["softgpu"].name.endswith(f"-py3-none-{platform}.whl")
    names = zipfile.ZipFile(wheels["softgpu"]).namelist()
    assert "softgpu/packed/libcuda.so.1" in names
    assert not [name for name in names if "tests" in name.split("/")]


def test_the_wheel_of_kaas_is_for_any_machine_and_holds_only_kaas(wheels: dict[str, Path]) -> None:
    assert wheels["kaas"].name.endswith("-py3-none-any.whl")
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheels["kaas"]).namelist()}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"kaas"}


def test_the_demonstration_runs_without_a_compiler(installed: Path, tmp_path: Path) -> None:
    caches = tmp_path / "caches"
    environment = {"PATH": str(without_compiler(tmp_path)), "XDG_CACHE_HOME": str(caches)}
    where = run(
        tmp_path, installed / "python", "-c", "import softgpu.build as b; print(b.build())", **environment
    ).strip()
    assert where.startswith(str(tmp_path))
    out = run(tmp_path, installed / "kaas", "demo", "--no-ray", "--seconds", "1", "--vertices", "64", **environment)
    assert "all equal to NumPy's" in out
    assert not (caches / "softgpu" / "driver").exists()


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
