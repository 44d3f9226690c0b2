"""The PTX that ships is what nvcc makes of the CUDA sources beside it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lanes import spread

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("kaas", "softgpu", "examples", "benchmarks", "tests")
SOURCES = sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.cu"))
NVCC = shutil.which("nvcc")


def code(ptx: str) -> str:
    """PTX without what says nothing about the code: comments that name the compiler, and the number by which it tells
    the private names of one file in one folder from those of others."""
    named = "\n".join(line for line in ptx.splitlines() if not line.startswith("//"))
    return re.sub(r"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}_", r"\1", named)


def compiler(ptx: str) -> str:
    """The version of the compiler that made it: another one's code may differ."""
    found = re.search(r"^// Cuda compilation tools, (.*)$", ptx, re.MULTILINE)
    return found[1] if found else "unknown"


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_every_source_has_its_ptx(source: Path) -> None:
    assert (ROOT / source).with_suffix(".ptx").exists()


@pytest.mark.processes
@pytest.mark.skipif(NVCC is None, reason="nvcc is not installed")
@pytest.mark.parametrize("source", spread(SOURCES, 2), ids=str)
def test_ptx_is_up_to_date(source: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.ptx"
    subprocess.run([str(NVCC), "-ptx", "-arch=sm_80", str(source), "-o", str(made)], cwd=ROOT, check=True)
    shipped = (ROOT / source).with_suffix(".ptx").read_text()
    if compiler(made.read_text()) != compiler(shipped):
        pytest.skip(f"this nvcc is {compiler(made.read_text())}; the PTX was made by {compiler(shipped)}")
    assert code(made.read_text()) == code(shipped), "run: make kernels"
