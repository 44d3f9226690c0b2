"""`gemv`, `matmul` and `tune` on a GPU, with small integers, whose sums are exact in every dtype.

The same tests run on the software GPU, which checks them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.executor.local import run_local
from kaas.ktask.dtypes import numpy_dtype
from tests.gpu.missing import skipped_if_missing
from tests.lanes import spread
from tests.providers import installed, write_metadata

cutlass_blas = pytest.importorskip("cutlass_blas")

from cutlass_blas import gemms, records, store, tuning  # noqa: E402 - it may be missing

Array = np.ndarray[Any, Any]

DTYPES = ["float32", "float64", "complex64", "complex128", "float16", "bfloat16"]
SHAPES = [(1000, 700), (3, 50_001), (50_001, 3), (4096, 4096), (1, 1)]
DEVICES = [pytest.param("gpu", marks=pytest.mark.gpu), "software"]


@pytest.fixture(scope="module", autouse=True)
def provided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Provide the kernels of this folder's library, even if it is not installed, with records of the tests' own."""
    folder = tmp_path_factory.mktemp("blas")
    with pytest.MonkeyPatch.context() as patch:
        if not installed("cutlass_blas"):
            write_metadata(folder, "cutlass_blas", "cutlass_blas.provider:images")
            patch.syspath_prepend(folder)
        with skipped_if_missing():
            for name in ("gemv", "sgemm_nn_64x64x8_2"):
                store.kernels(name)
        records.use(folder / "blas.sqlite3")
        yield
        records.use(None)
        gemms.forget()


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Device:
    if request.param == "software":
        request.getfixturevalue("softgpu")
    return Device(request.param)


def integers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-2, 3, shape) + (1j * rng.integers(-2, 3, shape) if dtype.startswith("complex") else 0)
    return numbers.astype(numpy_dtype(dtype))


def wide(array: Array) -> Array:
    made: Array = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return made


@pytest.mark.parametrize("dtype", spread(DTYPES, 2))
@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_gemv(device: Device, dtype: str) -> None:
    for m, n in SHAPES if device.kind == "gpu" else SHAPES[1:3]:
        memory, vector = integers((m, n), dtype, 1), integers((m + n,), dtype, 2)
        a, v = kaas.Buffer("a", (m, n), dtype), kaas.Buffer("v", m + n, dtype)
        y, z = kaas.Buffer("y", m, dtype), kaas.Buffer("z", 2 * n, dtype, init="zero")
        backwards = cutlass_blas.Vector(v, m, inc=-1, offset=m + n - 1)
        kernels = [
            *cutlass_blas.gemv(a, cutlass_blas.Vector(v, n), y, alpha=2),
            *cutlass_blas.gemv(a, backwards, cutlass_blas.Vector(z, n, inc=2), trans="c"),
        ]
        given = run_local(kaas.KTask(kernels, [y, z]), {"a": memory, "v": vector}, device=device)
        along = 2 * wide(memory) @ wide(vector[:n])
        across = wide(memory).conj().T @ wide(vector[::-1][:m])
        np.testing.assert_array_equal(given["y"], along.astype(memory.dtype))
        np.testing.assert_array_equal(given["z"][::2], across.astype(memory.dtype))
        np.testing.assert_array_equal(given["z"][1::2], 0)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_matmul(device: Device) -> None:
    pairs = [((70,), (70,)), ((5, 1, 30, 40), (6, 40, 20)), ((5, 6, 30, 40), (40, 20)), ((6, 1, 40), (6, 40, 20))]
    for first, second in pairs:
        left, right = integers(first, "float32", 1), integers(second, "float32", 2)
        wanted = left @ right
        buffers = [kaas.Buffer(name, shape, "float32") for name, shape in zip("ab", (first, second), strict=True)]
        c = kaas.Buffer("c", wanted.shape, "float32")
        task = kaas.KTask(cutlass_blas.matmul(*buffers, c), [c])
        given = run_local(task, {"a": left, "b": right}, device=device)
        np.testing.assert_array_equal(given["c"], wanted)


@pytest.mark.parametrize("device", DEVICES, indirect=True)
def test_tune(device: Device, tmp_path: Path) -> None:
    records.use(tmp_path / "blas.sqlite3")
    on_gpu = device.kind == "gpu"
    size = 512 if on_gpu else 32
    found = cutlass_blas.tune((size, size, size), arch="sm_80", device=device, most=None if on_gpu else 1)
    assert all(isinstance(each, tuning.Measured) for tuned in found for each in tuned.candidates)
    assert records.best(found[0].key) == found[0].best.choice
