"""Errors of importers whose packages are not installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kaas
from kaas.errors import CompileFailed, MissingPackage

WITHOUT_NVRTC = """
import cuda.pathfinder

def nowhere(name):
    raise cuda.pathfinder.DynamicLibNotFoundError(name)

cuda.pathfinder.load_nvidia_dynamic_lib = nowhere
import kaas
try:
    kaas.Library.from_cuda("")
except kaas.errors.MissingPackage as error:
    print(error.package, error.install)
"""


def kernel() -> None:
    """An empty stand-in."""


@pytest.mark.parametrize(
    ("module", "make", "package"),
    [
        ("triton", lambda: kaas.Library.from_triton(kernel, ""), "triton"),
        ("numba_cuda", lambda: kaas.Library.from_numba(kernel, "void()"), "numba-cuda[cu13]"),
    ],
)
def test_python_packages(
    module: str, make: Callable[[], kaas.Library], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackage, match=f"pip install {package.partition('[')[0]}") as raised:
        make()
    assert raised.value.install == package


def test_without_cupy_any_kernel_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    with pytest.raises(CompileFailed, match="neither a RawKernel nor a RawModule"):
        kaas.Library.from_cupy(kernel)


@pytest.mark.processes
def test_nvrtc() -> None:
    root = Path(kaas.__file__).parent.parent
    ended = subprocess.run([sys.executable, "-c", WITHOUT_NVRTC], cwd=root, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["NVRTC", "nvidia-cuda-nvrtc"]
