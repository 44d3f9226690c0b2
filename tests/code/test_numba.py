"""numba-cuda's kernels: parameters of every type, code that does not depend on earlier compilations, refusals."""

# mypy: ignore-errors

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.code.present import present

if not present("numba_cuda"):
    pytest.skip("needs numba-cuda and what it compiles with", allow_module_level=True)
from numba import cuda, float32, types

import kaas
from kaas.errors import CompileFailed, InvalidGraph, InvalidTarget
from kaas.ktask.library import PTX_COMMENT_OR_STRING
from kaas.ktask.signature import ArrayParameter, ComplexParameter, NumberParameter, PointerParameter
from kaas.ktask.symbols import kernels_of

N = 200


@cuda.jit
def spread(matrix, picked, out, factor, wave, flag, small):
    """out = factor * matrix[picked] + wave's parts, over any strides, through shared memory."""
    row = cuda.shared.array(64, float32)
    t, block = cuda.threadIdx.x, cuda.blockIdx.x
    if t < matrix.shape[1]:
        row[t] = matrix[picked[block], t]
    cuda.syncthreads()
    if t < out.shape[1] and flag:
        out[block, t] = factor * row[t] + wave.real - wave.imag + small


SPREAD = "void(float32[:, :], int32[::1], float64[:, ::1], float64, complex64, boolean, int8)"


def first(values, count):
    values[count - 1] = cuda.gridDim.x


@cuda.jit(device=True)
def doubled(value):
    return 2 * value


def calls(values):
    values[cuda.grid(1)] = doubled(values[cuda.grid(1)])


def buffer(name: str, shape: Any, dtype: str = "float32") -> kaas.Buffer:
    return kaas.Buffer(name, shape, dtype)


def test_the_library_has_the_name_and_the_parameters_of_the_kernel() -> None:
    (entry,) = kaas.Library.from_numba(spread, SPREAD).entries
    assert (entry.symbol, entry.name, entry.block) == ("spread", "spread", None)
    assert entry.parameters == (
        ArrayParameter("matrix", "float32", 2),
        ArrayParameter("picked", "int32", 1),
        ArrayParameter("out", "float64", 2),
        NumberParameter("factor", "f64"),
        ComplexParameter("wave", "c64"),
        NumberParameter("flag", "boolean"),
        NumberParameter("small", "i8"),
    )


@pytest.mark.usefixtures("softgpu")
@pytest.mark.parametrize("skipped", [0, 3])
def test_every_argument_arrives(skipped: int) -> None:
    library = kaas.Library.from_numba(spread, SPREAD)
    matrix, picked, out = buffer("matrix", (9, 50)), buffer("picked", 4, "int32"), buffer("out", (4, 50), "float64")
    arguments = {
        "matrix": kaas.In(matrix, skipped * 200),
        "picked": kaas.In(picked),
        "out": kaas.Out(out),
        "factor": kaas.Scalar("factor", "f64"),
        "wave": 2 + 5j,
        "flag": True,
        "small": -7,
    }
    task = kaas.KTask([library.kernel(grid=4, block=64, args=arguments)], outputs=[out])
    values = np.random.default_rng(1).random((9, 50), np.float32)
    order = np.array([5, 0, 3, 3], np.int32)
    result = kaas.run_local(task, {"matrix": values, "picked": order}, scalars={"factor": 0.5})["out"]
    np.testing.assert_allclose(result, 0.5 * values[skipped:][order] + 2 - 5 - 7, rtol=1e-6)


def every_kind(a, b, c, d, e, f, g, out):
    out[0], out[1], out[2], out[3] = a, b, c, d
    out[4], out[5], out[6] = e, f, g.real + g.imag


@pytest.mark.usefixtures("softgpu")
def test_numbers_of_every_kind() -> None:
    signature = "void(int16, uint8, uint64, boolean, float16, float32, complex128, float64[::1])"
    library = kaas.Library.from_numba(every_kind, signature)
    out = buffer("out", 7, "float64")
    numbers = [-300, 200, 1 << 40, True, 1.5, -0.25, 3 + 0.5j]
    kernel = library.kernel(grid=1, block=1, args=[*numbers, kaas.Out(out)])
    result = kaas.run_local(kaas.KTask([kernel], outputs=[out]))["out"]
    assert result.tolist() == [-300, 200, 1 << 40, 1, 1.5, -0.25, 3.5]


def test_code_depends_on_the_function_only() -> None:
    one = kaas.Library.from_numba(spread, SPREAD)
    kaas.Library.from_numba(first, "void(int32[::1], int32)")
    assert kaas.Library.from_numba(spread.py_func, types.void(*spread_types())) == one
    (image,) = one.images
    assert not re.search("_ZN|_cudapy_", PTX_COMMENT_OR_STRING.sub("", image.data.decode()))


def spread_types() -> tuple[Any, ...]:
    return (
        types.float32[:, :],
        types.int32[::1],
        types.float64[:, ::1],
        types.float64,
        types.complex64,
        types.boolean,
        types.int8,
    )


@pytest.mark.usefixtures("softgpu")
def test_pointers() -> None:
    library = kaas.Library.from_numba(first, (types.CPointer(types.int32), types.uint8), arch="compute_90")
    assert library.entries[0].parameters == (PointerParameter("values", "int32"), NumberParameter("count", "u8"))
    values = buffer("values", 2, "int32")
    task = kaas.KTask([library.kernel(grid=5, block=1, args=[kaas.InOut(values, 4), 1])], outputs=[values])
    assert kaas.run_local(task, {"values": np.zeros(2, np.int32)})["values"].tolist() == [0, 5]


@pytest.mark.usefixtures("softgpu")
def test_device_functions_need_no_device() -> None:
    library = kaas.Library.from_numba(calls, "void(float32[::1])")
    values = buffer("values", 32)
    task = kaas.KTask([library.kernel(grid=1, block=32, args=[kaas.InOut(values)])], outputs=[values])
    assert (kaas.run_local(task, {"values": np.ones(32, np.float32)})["values"] == 2).all()


def test_a_function_without_a_name_has_a_symbol() -> None:
    library = kaas.Library.from_numba(lambda: None, "void()")
    assert kernels_of(library.images) == ("_lambda_",)
    assert library.kernel("<lambda>", grid=1, block=1, args=[]) == library.kernel(grid=1, block=1, args=[])


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("void(float32[::1, :], int32)", "Fortran"),
        ("void(UniTuple(int32, 2), int32)", "UniTuple"),
        ("void(float32[::1], no_such_type)", "signature"),
        ("void(complex64, int32)", "refuses first"),
    ],
)
def test_an_unsupported_signature_is_refused(signature: str, words: str) -> None:
    with pytest.raises(CompileFailed, match=words) as raised:
        kaas.Library.from_numba(first, signature)
    assert raised.value.compiler.startswith("numba-cuda ")
    assert raised.value.source == "first"


@pytest.mark.parametrize("given", [3, "first", int, np.sin])
def test_a_value_that_is_no_function_is_refused(given: Any) -> None:
    with pytest.raises(CompileFailed, match="is no Python function"):
        kaas.Library.from_numba(given, "void(float32)")


def test_types_for_every_parameter() -> None:
    with pytest.raises(InvalidGraph, match="values, count"):
        kaas.Library.from_numba(first, "void(float32[::1])")


@pytest.mark.parametrize("arch", ["sm_80", "sm_80+ptx"])
def test_a_target_without_ptx_is_refused(arch: str) -> None:
    with pytest.raises(InvalidTarget, match="PTX"):
        kaas.Library.from_numba(first, "void(int32[::1], int32)", arch=arch)
