"""An output holds what this request's kernels wrote there, and zeros everywhere else."""

from __future__ import annotations

import numpy as np
import pytest

import kaas
from tests.api.conftest import STEPS

N = 1000
pytestmark = pytest.mark.usefixtures("softgpu")
SECRET = np.full(N, 7, np.float32)


def sum_of(first: int, iterations: int = 1) -> kaas.KTask:
    """y = x + x, of the first elements only, through a temporary; buffers share memory where the edges allow it."""
    x, t, u, y = (kaas.Buffer(name, N, "float32") for name in "xtuy")
    kernels = [
        kaas.Kernel(STEPS, "add", 4, 256, [kaas.In(source), kaas.In(source), kaas.Out(target), kaas.i32(count)])
        for source, target, count in ((x, t, N), (t, u, N), (u, y, first))
    ]
    return kaas.KTask(kernels, [y], iterations)


@pytest.mark.parametrize("iterations", [1, 3])
def test_an_output_that_is_written_in_part_is_zero_elsewhere(iterations: int) -> None:
    for _ in range(2):
        assert (kaas.run_local(sum_of(N), {"x": SECRET})["y"] == 8 * SECRET).all()
        y = kaas.run_local(sum_of(10, iterations), {"x": SECRET})["y"]
        assert (y[:10] == 8 * SECRET[:10]).all()
        assert not y[10:].any()


def test_an_output_that_no_thread_writes_is_zero() -> None:
    kaas.run_local(sum_of(N), {"x": SECRET})
    assert not kaas.run_local(sum_of(0), {"x": SECRET})["y"].any()


@pytest.mark.processes
def test_a_pool_gives_no_bytes_of_another_ktask() -> None:
    device = kaas.Device("software", memory_bytes=64 << 20)
    kaas.init(ray=False, name="outcomes-outputs", config=kaas.Config(devices=(device,)))
    try:
        whole, part = kaas.register(sum_of(N)), kaas.register(sum_of(10))
        for _ in range(3):
            assert (whole.call(SECRET).result() == 8 * SECRET).all()
            y = part.call(SECRET).result()
            assert (y[:10] == 8 * SECRET[:10]).all()
            assert not y[10:].any()
    finally:
        kaas.shutdown()
