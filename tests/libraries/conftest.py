"""Tests of the BLAS library run on the software GPU, whose devices the tests of one process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cutlass_blas import records


@pytest.fixture(scope="session", autouse=True)
def device(softgpu: tuple[int, ...]) -> tuple[int, ...]:
    """Every test of this folder runs on the software devices."""
    return softgpu


@pytest.fixture(scope="session", autouse=True)
def nothing_measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Earlier tuning on this machine does not choose kernels in these tests."""
    records.use(tmp_path_factory.mktemp("records") / "blas.sqlite3")
    yield
    records.use(None)
