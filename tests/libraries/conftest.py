"""Tests of the BLAS library run on the software GPU, whose devices the tests of one process share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def device(softgpu: tuple[int, ...]) -> tuple[int, ...]:
    """The software devices; nothing here runs on another, though a GPU may be there."""
    return softgpu
