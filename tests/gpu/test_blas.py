"""Every kernel of the BLAS library's core, tensor cores included, and `gemm` for all its types, on a GPU.

Matrices have small integers, whose products every type sums exactly: results equal NumPy's to the last bit. A few
kernels also run on the software GPU, which checks the test.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.config import Device
from kaas.executor.executor import InputSource, RunRequest
from kaas.executor.local import run_local
from kaas.ktask.dtypes import numpy_dtype
from kaas.ktask.images import Provided
from tests.gpu.fences import fenced
from tests.gpu.missing import skipped_if_missing
from tests.lanes import spread
from tests.providers import installed, write_metadata

cutlass_blas = pytest.importorskip("cutlass_blas")

from cutlass_blas import adapter, gemms, provider, store  # noqa: E402 - it may be missing
from cutlass_blas.instances import CORE, OUTS, Instance  # noqa: E402

DTYPES = {kind: outs[0] for kind, outs in OUTS.items()}
SCALARS = {"d": "float64", "c": "complex64", "z": "complex128"}
SIZES = (152, 168, 136)
"""m, n, k: not multiples of a tile, but of every alignment."""

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module", autouse=True)
def provided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Provide the kernels of this folder's library, even if it is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        if not installed("cutlass_blas"):
            folder = tmp_path_factory.mktemp("metadata")
            write_metadata(folder, "cutlass_blas", "cutlass_blas.provider:images")
            patch.syspath_prepend(folder)
        yield


def built(name: str) -> None:
    """Skip a test whose kernel is not built and cannot be built."""
    with skipped_if_missing():
        store.kernels(name)


def integers(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    numbers = rng.integers(-3, 4, shape) + (1j * rng.integers(-3, 4, shape) if dtype.startswith("complex") else 0)
    return numbers.astype(numpy_dtype(dtype))


def operand(matrix: Array, op: str) -> Array:
    """Return the stored matrix of which op(stored) is this matrix."""
    return np.ascontiguousarray({"n": matrix, "t": matrix.T, "c": matrix.conj().T}[op])


def exact(*operands: Array, dtype: str) -> Array:
    """Return the product, computed exactly and then rounded once."""
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    a, b = (matrix.astype(wide) for matrix in operands)
    product: Array = (a @ b).astype(numpy_dtype(dtype))
    return product


def task_of(instance: Instance) -> tuple[kaas.KTask, dict[str, Array], Array]:
    """Return a kTask C = 2 A B - C with this kernel, its inputs and its expected result."""
    m, n, k = SIZES
    dtype = DTYPES[instance.kind]
    a, b, c = integers((m, k), dtype, 1), integers((k, n), dtype, 2), integers((m, n), instance.out, 3)
    arrays = {"a": operand(a, instance.op_a), "b": operand(b, instance.op_b), "c": c}
    scalar = np.dtype(SCALARS.get(instance.kind, "float32")).type
    leading = (arrays["a"].shape[1], arrays["b"].shape[1], n, n)
    alpha, beta = scalar(2).tobytes(), scalar(-1).tobytes()
    launch = adapter.launch(instance, 0, m, n, k, 1, (0, 0, 0, 0), leading, alpha, beta, False)
    buffers = {name: kaas.Buffer(name, array.shape, array.dtype) for name, array in arrays.items()}
    written = kaas.InOut(buffers["c"])
    pointers = {launch.a: kaas.In(buffers["a"]), launch.b: kaas.In(buffers["b"]), launch.c: written, launch.d: written}
    struct = kaas.Struct(launch.params, pointers)
    library = provider.library(instance.name)
    kernel = kaas.Kernel(library, instance.name, launch.grid, launch.block, [struct], launch.shared_bytes)
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    expected = 2 * exact(a, b, dtype=np.dtype(wide).name) - c.astype(wide)
    return kaas.KTask([kernel], [buffers["c"]]), arrays, expected


def check(instance: Instance, device: Device) -> None:
    check_by(partial(run_local, device=device), instance)


def check_by(run: Callable[[kaas.KTask, dict[str, Array]], dict[str, Array]], instance: Instance) -> None:
    built(instance.name)
    task, arrays, expected = task_of(instance)
    given = run(task, arrays)["c"]
    if instance.gelu:
        erf = np.vectorize(math.erf)
        expected = expected * (1 + erf(expected / np.sqrt(2))) / 2
        np.testing.assert_allclose(given.astype(np.float64), expected, rtol=2e-3, atol=1e-3)
    else:
        np.testing.assert_array_equal(given, expected.astype(given.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("instance", CORE, ids=lambda instance: instance.name)
def test_kernel_of_the_core(instance: Instance) -> None:
    check(instance, Device("gpu"))


SOME = [instance for instance in CORE if instance.name in ("sgemm_nn_64x64x8_2", "cgemm_cn_64x64x8_3")]


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("instance", spread(SOME, 1), ids=lambda instance: instance.name)
def test_kernels_on_the_software_gpu(instance: Instance) -> None:
    check(instance, Device("software"))


@pytest.mark.gpu
@pytest.mark.parametrize("instance", CORE, ids=lambda instance: instance.name)
def test_kernel_of_the_core_in_a_window(instance: Instance) -> None:
    check_fenced(instance, "gpu")


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("instance", spread(SOME, 1), ids=lambda instance: instance.name)
def test_kernels_in_a_window_on_the_software_gpu(instance: Instance) -> None:
    check_fenced(instance, "software")


def check_fenced(instance: Instance, kind: str) -> None:
    executor = fenced(kind)

    def run(task: kaas.KTask, arrays: dict[str, Array]) -> dict[str, Array]:
        return executor.run(RunRequest(task, {name: InputSource(array) for name, array in arrays.items()}, {})).outputs

    try:
        check_by(run, instance)
    finally:
        executor.close()


ODD = (77, 130, 1203)
EVEN = (80, 136, 1208)
"""m, n, k: of every alignment, so that the core has kernels for them."""


def through_gemm(
    dtype: str, out: str, device: Device, sizes: tuple[int, int, int] = ODD, slices: int = 4, **options: Any
) -> None:
    """Compute C = relu(alpha A op(B) + bias), with the matrices given in each way.

    The invocation chooses alpha. B is transposed if sizes are odd.
    """
    (m, n, k), count, trans_b = sizes, 3, "t" if sizes == ODD else "n"
    inner = (n, k) if trans_b == "t" else (k, n)
    a, b = integers((count, m, k), dtype, 1), integers((count, *inner), dtype, 2)
    bias, kind = integers((n,), out, 3), {"float64": "f64", "complex64": "c64", "complex128": "c128"}.get(dtype, "f32")
    arrays = {"a": a, "b": b, "bias": bias}
    a_, b_, bias_ = (kaas.Buffer(name, array.shape, array.dtype) for name, array in arrays.items())
    c_, d_, e_ = (kaas.Buffer(name, (count, m, n), out, init="zero") for name in "cde")
    ending = None if out.startswith("complex") else cutlass_blas.Epilogue(bias_, "relu")

    def views(buffer: kaas.Buffer, rows: int, columns: int) -> list[Any]:
        return [cutlass_blas.Matrix(buffer, rows, columns, offset=entry * rows * columns) for entry in range(count)]

    options |= {"alpha": kaas.Scalar("alpha", kind), "trans_b": trans_b, "epilogue": ending}
    with warnings.catch_warnings(), skipped_if_missing():
        warnings.simplefilter("ignore", cutlass_blas.AlignmentWarning)  # odd sizes are wanted here
        kernels = [
            *cutlass_blas.gemm(a_, b_, c_, **options),
            *cutlass_blas.gemm(views(a_, m, k), views(b_, *inner), views(d_, m, n), **options),
            *(
                kernel
                for one in zip(views(a_, m, k), views(b_, *inner), views(e_, m, n), strict=True)
                for kernel in cutlass_blas.gemm(*one, split_k=slices, **options)
            ),
        ]
    for kernel in kernels:
        built(provider_name(kernel))
    task = kaas.KTask(kernels, [c_, d_, e_])
    given = {buffer.name: arrays[buffer.name] for buffer in task.inputs}
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    right = b.astype(wide)
    expected = -1 * (a.astype(wide) @ (right.transpose(0, 2, 1) if trans_b == "t" else right))
    if ending is not None:
        expected = np.maximum(expected + bias.astype(wide), 0)
    for name, result in run_local(task, given, scalars={"alpha": -1}, device=device).items():
        np.testing.assert_array_equal(result, expected.astype(result.dtype), err_msg=name)


def provider_name(kernel: kaas.Kernel) -> str:
    """Return the provider's name of a kernel's library."""
    (image,) = kernel.library.images
    return Provided.of(image).name


TYPES = [
    ("float32", "float32", {}),
    ("float32", "float32", {"compute": "tf32"}),
    ("float64", "float64", {}),
    ("complex64", "complex64", {}),
    ("complex128", "complex128", {}),
    ("float16", "float32", {}),
    ("bfloat16", "float32", {}),
]


@pytest.mark.gpu
@pytest.mark.parametrize("arch", [None, "sm_90"])
@pytest.mark.parametrize(("dtype", "out", "options"), TYPES)
def test_gemm(dtype: str, out: str, options: dict[str, Any], arch: str | None) -> None:
    through_gemm(dtype, out, Device("gpu"), arch=arch, **options)


CORE_TYPES = [*TYPES[:-1], ("bfloat16", "bfloat16", {"slices": 1})]
"""Types for which the core has all kernels that aligned sizes need."""


@pytest.mark.gpu
@pytest.mark.parametrize("arch", [None, "sm_90"])
@pytest.mark.parametrize(("dtype", "out", "options"), CORE_TYPES)
def test_gemm_by_the_core(dtype: str, out: str, options: dict[str, Any], arch: str | None) -> None:
    through_gemm(dtype, out, Device("gpu"), EVEN, arch=arch, **options)


@pytest.mark.usefixtures("softgpu")
def test_gemm_on_the_software_gpu() -> None:
    through_gemm("float32", "float32", Device("software"))


@pytest.mark.parametrize("arch", [None, "sm_90"])
@pytest.mark.parametrize(("dtype", "out", "options"), spread(CORE_TYPES, 2))
def test_aligned_sizes_take_the_core(
    monkeypatch: pytest.MonkeyPatch, dtype: str, out: str, options: dict[str, Any], arch: str | None
) -> None:
    """A machine without a compiler has no other kernels."""
    taken: list[str] = []

    def record(task: kaas.KTask, *_: Any, **__: Any) -> dict[str, Array]:
        taken.extend(provider_name(kernel) for kernel in task.kernels)
        return {}

    monkeypatch.setitem(globals(), "run_local", record)
    through_gemm(dtype, out, Device("software"), EVEN, arch=arch, **options)
    assert set(taken) <= {"finish", *(instance.name for instance in CORE)}


def test_kernels_that_cannot_be_built_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gemms.forget()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("KAAS_NVCC", str(tmp_path / "nvcc"))
    with pytest.raises(pytest.skip.Exception, match="nvcc"):
        through_gemm("float16", "float32", Device("software"))
