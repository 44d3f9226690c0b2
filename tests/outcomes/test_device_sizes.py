"""A pool of a small and a large device runs models that only the large one has memory for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kaas
from tests.api.conftest import add_task, numbers
from tests.timeouts import TIMEOUT_S

pytestmark = pytest.mark.processes

MB = 1 << 20
LARGE_ELEMENTS = 12 * MB  # of 4 bytes: more than the small device has


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    yield
    kaas.shutdown()


@pytest.mark.parametrize("policy", ["fcfs", "adaptive"])
def test_a_large_model_runs_where_it_fits_however_often_the_small_device_is_free(policy: str) -> None:
    kaas.init(ray=False, policy=policy, devices=[kaas.Device("software", size) for size in (32 * MB, 256 * MB)])
    weights, x = numbers(LARGE_ELEMENTS), numbers(LARGE_ELEMENTS, seed=1)
    large = kaas.register(add_task(LARGE_ELEMENTS), constants={"a": weights})
    small = kaas.register(add_task(), constants={"a": numbers()})
    sums = [large.call(b=x) for _ in range(4)]
    small_sums = [small.call(b=numbers()) for _ in range(4)]
    for future in sums:
        np.testing.assert_array_equal(future.result(TIMEOUT_S), weights + x)
    for future in small_sums:
        np.testing.assert_array_equal(future.result(TIMEOUT_S), numbers() + numbers())
