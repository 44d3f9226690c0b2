"""CuPy's kernels: source, options and names are those of the object; others than a kTask's kernels are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

cupy: Any = pytest.importorskip("cupy")

import kaas  # noqa: E402
from kaas.errors import CompileFailed, UnknownSymbol  # noqa: E402

SOURCE = """
#include <cupy/complex.cuh>
#ifndef FACTOR
#error FACTOR is missing
#endif
template <class T> __global__ void turn(T *values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] *= T(FACTOR);
}
extern "C" __global__ void conjugate(complex<float> *values) {
    values[threadIdx.x] = conj(values[threadIdx.x]);
}
"""
NAMES = ("turn<complex<float>>", "turn<double>")
Z = kaas.Buffer("z", 64, "complex64")


def module() -> Any:
    return cupy.RawModule(code=SOURCE, options=("-DFACTOR=3",), name_expressions=NAMES)


@pytest.mark.usefixtures("softgpu")
def test_a_module_runs() -> None:
    library = kaas.Library.from_cupy(module())
    assert [entry.name for entry in library.entries] == list(NAMES)
    turn = library.kernel(NAMES[0], grid=2, block=32, args=[kaas.InOut(Z), kaas.i32(64)])
    conjugate = library.kernel("conjugate", grid=1, block=64, args=[kaas.InOut(Z)])
    z = (np.arange(64) + 2j).astype(np.complex64)
    result = kaas.run_local(kaas.KTask([turn, conjugate], outputs=[Z]), {"z": z})["z"]
    np.testing.assert_array_equal(result, 3 * z.conj())


def test_a_kernel_is_known_by_its_name() -> None:
    kernel = cupy.RawKernel(SOURCE, "conjugate", options=("-DFACTOR=1", "--std=c++20"))
    library = kaas.Library.from_cupy(kernel, "compute_90")
    assert [image.kind for image in library.images] == ["ptx"]
    assert library.kernel("conjugate", grid=1, block=64, args=[kaas.InOut(Z)]).symbol == "conjugate"
    with pytest.raises(UnknownSymbol):
        library.kernel("turn", grid=1, block=64, args=[kaas.InOut(Z)])


def test_a_module_of_a_file_is_that_file(tmp_path: Path) -> None:
    (text,) = (image.data for image in kaas.Library.from_cuda("__global__ void k() {}", "ptx").images)
    (tmp_path / "k.ptx").write_bytes(text)
    library = kaas.Library.from_cupy(cupy.RawModule(path=str(tmp_path / "k.ptx")))
    assert library == kaas.Library.from_ptx(text)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda: cupy.RawKernel(SOURCE, "conjugate", backend="nvcc"), "nvcc"),
        (lambda: cupy.RawKernel(SOURCE, "conjugate", enable_cooperative_groups=True), "whole"),
        (lambda: cupy.RawKernel(SOURCE, "conjugate"), "FACTOR"),
        (lambda: cupy.ElementwiseKernel("T x", "T y", "y = x"), "neither"),
        (lambda: SOURCE, "neither"),
    ],
)
def test_an_unsupported_kernel_is_refused(kernel: Any, words: str) -> None:
    with pytest.raises(CompileFailed, match=words):
        kaas.Library.from_cupy(kernel())
