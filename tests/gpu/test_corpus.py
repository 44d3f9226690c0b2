"""On a GPU: kernels of real compilers give NumPy's results, as they do on the software GPU."""

from __future__ import annotations

import pytest

from softgpu.tests.compiler.corpus import device, printing
from softgpu.tests.compiler.corpus.registry import CASES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", CASES)
def test_results_are_numpys(name: str) -> None:
    case = CASES[name]()
    case.check(device.run(case))


def test_printing(capfd: pytest.CaptureFixture[str]) -> None:
    printing.check(capfd)
