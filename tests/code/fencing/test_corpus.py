"""Kernels of nvcc, Triton, numba, TVM and CUTLASS give the same results in a window."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from kaas.code.fencing import fence
from kaas.errors import CannotFence
from softgpu.tests.compiler.corpus.registry import CASES
from tests.code.fencing import window
from tests.code.fencing.checks import unconfined
from tests.lanes import spread

ROOT = Path(__file__).parents[3]
TEXTS = sorted(path for part in ("benchmarks", "examples", "kaas", "softgpu", "tests")
               for path in (ROOT / part).rglob("*.ptx"))  # fmt: skip
REFUSED = {
    "output.ptx": "printf of %s",
    "conditions.ptx": "a call of cudaGraphSetConditional",
    "device_runtime.ptx": "the address of the function _Z5childPj",
}
"""Texts that are refused, with the reason."""
ASSEMBLED = ("call_tables.ptx", "hgemm.ptx", "softmax.ptx")
SAMPLE = {*[*CASES][::9], "functions-variables", "functions-machine", "call_tables-pointers",
          "call_tables-virtual_calls", "library-complex_math"}  # fmt: skip


@pytest.mark.parametrize("path", spread(TEXTS, 40), ids=lambda path: path.name)
def test_no_address_of_a_tenant_reaches_memory(path: Path) -> None:
    if path.name in REFUSED:
        with pytest.raises(CannotFence, match=REFUSED[path.name]):
            fence(path.read_text())
        return
    assert unconfined(fence(path.read_text()).ptx) == []


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
@pytest.mark.usefixtures("softgpu")
def test_kernels_give_the_same_results_in_a_window(name: str) -> None:
    case = CASES[name]()
    case.check(window.run(case))


@pytest.mark.processes
@pytest.mark.parametrize(
    "path",
    [path if path.name in ASSEMBLED else pytest.param(path, marks=pytest.mark.full)
     for path in TEXTS if path.name not in REFUSED],
    ids=lambda path: path.name,
)  # fmt: skip
def test_nvidias_assembler_takes_confined_texts(ptxas: str, tmp_path: Path, path: Path) -> None:
    made = fence(path.read_text()).ptx
    target = re.search(r"^\.target (\w+)", made, re.M)
    assert target is not None
    (tmp_path / "confined.ptx").write_text(made)
    command = [ptxas, f"-arch={target[1]}", "-O1", "confined.ptx", "-o", "made"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
