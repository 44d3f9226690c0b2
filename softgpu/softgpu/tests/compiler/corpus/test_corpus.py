"""Kernels that real compilers made, on the software GPU, against NumPy."""

from __future__ import annotations

import pytest

from softgpu.tests.compiler.corpus import device, printing
from softgpu.tests.compiler.corpus.registry import CASES

SAMPLE = {*[*CASES][::3]}
"""Of `make test`, from all compilers."""


@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.full) for name in CASES]
)
@pytest.mark.usefixtures("softgpu")
def test_kernels_of_real_compilers_give_numpys_results(name: str) -> None:
    case = CASES[name]()
    before = {name: case.arrays[name].ravel() for name in case.expected}
    assert any((before[name] != value.ravel()).any() for name, value in case.expected.items())
    case.check(device.run(case))


@pytest.mark.usefixtures("softgpu")
def test_printing(capfd: pytest.CaptureFixture[str]) -> None:
    printing.check(capfd)
