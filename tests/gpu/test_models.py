"""Compiled models from their files, by cubin or PTX, give NumPy's results on a GPU and on the software GPU."""

from __future__ import annotations

import numpy as np
import pytest

import kaas
from kaas.config import Device
from tests.gpu.models import FOLDER, INPUTS, expected, inputs

pytest.importorskip("safetensors")  # the format of the files of constants

TOLERANCE = 1e-5


@pytest.mark.parametrize("name", INPUTS)
def test_results_are_numpys(kind: str, name: str) -> None:
    model = kaas.load(FOLDER / f"{name}.kaas")
    for _ in range(3):  # the plan is made, then its graph is launched again
        np.testing.assert_allclose(model.run_local(inputs(name), device=Device(kind)), expected(name), atol=TOLERANCE)
