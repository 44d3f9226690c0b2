"""A whole network on the software GPU: 105 launches of 38 compiled kernels, against what PyTorch made of it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.models import resnet50
from kaas.executor.local import run_local


@pytest.mark.usefixtures("softgpu")
def test_resnet50() -> None:
    expected = np.load(resnet50.LOGITS)
    logits = run_local(resnet50.ktask(), resnet50.inputs())["logits"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
