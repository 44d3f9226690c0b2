"""On a GPU: libraries from CUDA C++, and the examples of libraries from other packages, if these are installed."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.errors import MissingPackage
from kaas.executor.local import executor_for, run_local

N = 1000
SOURCE = """
#include <cuda_fp16.h>
template <class T> __global__ void twice(const T *x, T *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + x[i];
}
"""


def architecture(kind: str) -> str:
    """Return the architecture of machine code for the device; "ptx" for the software GPU, which takes none."""
    if kind == "software":
        return "ptx"
    major, minor = executor_for(Device(kind)).device.info().compute_capability
    return f"sm_{major}{minor}"


@pytest.mark.parametrize("images", ["ptx", "machine code"])
def test_cuda_in_a_string(kind: str, images: str) -> None:
    x, y = (kaas.Buffer(name, N, "float16") for name in "xy")
    try:
        library = kaas.Library.from_cuda(
            SOURCE, "ptx" if images == "ptx" else architecture(kind), names=["twice<__half>"]
        )
    except MissingPackage as error:
        pytest.skip(str(error))
    arguments = [kaas.In(x), kaas.Out(y), kaas.i32(N)]
    task = kaas.KTask([library.kernel("twice<__half>", grid=8, block=128, args=arguments)], [y])
    given = np.linspace(-9, 9, N).astype(np.float16)
    np.testing.assert_array_equal(run_local(task, {"x": given}, device=Device(kind))["y"], 2 * given)


@pytest.mark.gpu
@pytest.mark.parametrize(("package", "example"), [
    ("cupy", "from_cupy"), ("triton", "from_triton"), ("numba_cuda", "from_numba"),
])  # fmt: skip
def test_examples(package: str, example: str) -> None:
    """Each example compares its own results."""
    pytest.importorskip(package)
    if package == "numba_cuda" and not hasattr(np, "row_stack"):
        pytest.skip(f"numba-cuda does not work with NumPy {np.__version__}")
    made = import_module(f"examples.{example}")
    try:
        made.main()
    except MissingPackage as error:  # a compiler that the package needs
        pytest.skip(str(error))
