"""The wheel of the BLAS library: with kernels inside it needs no compiler, without kernels it is for any machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from cutlass_blas import building, store
from cutlass_blas.instances import parse
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.full

SOURCE = Path(__file__).parents[2] / "libraries" / "cutlass_blas"
NAME = "sgemm_nn_64x64x8_2"
FILES = {store.kernels_file(NAME), store.adapter_file((parse(NAME),))}
PROGRAM = f"""
import numpy as np
from cutlass_blas import adapter, provider
from cutlass_blas.instances import parse
one = np.float32(1).tobytes()
launch = adapter.launch(parse("{NAME}"), 0, 65, 65, 65, 1, (0,) * 4, (65,) * 4, one, one, False)
named = provider.library("{NAME}").images[0].data.decode().split("\\0")
print(launch.grid, provider.images(*named[1:]).images[0].kind, provider.__file__)
"""


def run(folder: Path, *command: str | Path, **environment: str) -> str:
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        command, cwd=folder, env=base | environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def wheel(folder: Path, packed: str, source: Path = SOURCE, **environment: str) -> Path:
    root = str(SOURCE.parents[1])
    run(source, sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, KAAS_BLAS_PACK=packed,
        PYTHONPATH=root, **environment)  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


def in_wheel(made: Path) -> set[str]:
    """Return the built files of a wheel."""
    with zipfile.ZipFile(made) as file:
        return {name.rpartition("/")[2] for name in file.namelist() if name.startswith("cutlass_blas/packed/")}


def test_a_wheel_with_kernels_needs_no_compiler(tmp_path: Path) -> None:
    made = wheel(tmp_path, NAME)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert made.name.endswith(f"-py3-none-{platform}.whl")
    assert in_wheel(made) == FILES
    folder, home = tmp_path / "installed", tmp_path / "home"
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    run(tmp_path, *pip, "--target", folder, made)
    where = os.pathsep.join((str(folder), str(SOURCE.parents[1])))
    out = run(tmp_path, sys.executable, "-c", PROGRAM, PYTHONPATH=where, PATH="/nowhere", XDG_CACHE_HOME=str(home))
    assert out == f"(4, 1, 1) fatbin {folder / 'cutlass_blas' / 'provider.py'}\n"
    assert not (home / "kaas" / "blas").exists()


def test_a_wheel_contains_files_packed_in_the_sources_only_if_named(tmp_path: Path) -> None:
    """The folder has a kernel that was copied there for the editable package, and an older one."""
    source = tmp_path / "source"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__", "packed"))
    packed = source / "cutlass_blas" / "packed"
    building.build(building.jobs([NAME]), packed)
    (packed / "older.fatbin").touch()
    nothing = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path / "home")}
    assert in_wheel(wheel(tmp_path / "with", NAME, source, **nothing)) == FILES
    assert in_wheel(wheel(tmp_path / "without", "", source, **nothing)) == set()


def test_a_wheel_without_kernels_is_for_any_machine(tmp_path: Path) -> None:
    made = wheel(tmp_path, "")
    assert made.name.endswith("-py3-none-any.whl")
    folder = tmp_path / "installed"
    with zipfile.ZipFile(made) as file:
        file.extractall(folder)
    modules = {path.relative_to(SOURCE) for path in (SOURCE / "cutlass_blas").rglob("*.py")}
    headers = {path.relative_to(SOURCE) for path in (SOURCE / "cutlass_blas").rglob("*.cuh")}
    assert modules | headers <= {path.relative_to(folder) for path in folder.rglob("*.*")}
    (found,) = metadata.distributions(path=[str(folder)])
    assert [(point.group, point.name, point.value) for point in found.entry_points] == [
        ("kaas.libraries", "cutlass_blas", "cutlass_blas.provider:images")
    ]
