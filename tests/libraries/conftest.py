"""Tests of the BLAS library run on the software GPU, whose devices the tests of one process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cutlass_blas import records


@pytest.fixture(scope="session", autouse=True)
def device(softgpu: tuple[int, ...]) -> tuple[int, ...]:
    """The software devices, for every test here."""
    return softgpu


@pytest.fixture(scope="session", autouse=True)
def nothing_measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What was tuned on this machine before does not choose kernels here."""
    records.use(tmp_path_factory.mktemp("records") / "blas.sqlite3")
    yield
    records.use(None)
