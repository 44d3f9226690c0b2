"""Inputs and scalars of an invocation: names, bytes and values; each fault is a typed error with its fields."""

from __future__ import annotations

import array
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kaas
from kaas.errors import (
    InvalidRequest,
    KaasError,
    MissingInput,
    MissingScalar,
    NotContiguous,
    UnexpectedInput,
    WrongDtype,
    WrongScalar,
    WrongShape,
    WrongSize,
)
from kaas.ktask.request import check_names, encode_scalars, input_bytes, iterations_of
from tests.ktask.strategies import PTX

LIBRARY = kaas.Library.from_ptx(PTX)
FLOATS = kaas.Buffer("floats", (2, 3), "float32")
BYTES = kaas.Buffer("bytes", 24)
OUT = kaas.Buffer("out", 4)
SIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def task(iterations: int | kaas.Scalar = 1) -> kaas.KTask:
    alpha, count = kaas.Scalar("alpha", "f32"), kaas.Scalar("count", "u8")
    kernel = kaas.Kernel(LIBRARY, "k", 1, 1, [kaas.In(FLOATS), kaas.In(BYTES), kaas.Out(OUT), alpha, count])
    return kaas.KTask([kernel], [OUT], iterations, name="t")


def fields(error: KaasError, *names: str) -> tuple[Any, ...]:
    return tuple(error.fields[name] for name in names)


def test_names_must_be_the_inputs() -> None:
    check_names(task(), ["bytes", "floats"])
    with pytest.raises(MissingInput) as missing:
        check_names(task(), ["bytes"])
    assert fields(missing.value, "task", "buffer") == ("t", "floats")
    with pytest.raises(UnexpectedInput) as extra:
        check_names(task(), ["bytes", "floats", "float"])
    assert fields(extra.value, "task", "buffer", "near") == ("t", "float", ("floats",))


@pytest.mark.parametrize(
    ("buffer", "value"),
    [
        (FLOATS, SIX),
        (FLOATS, SIX.reshape(-1)),  # its elements are in C order
        (FLOATS, SIX[None]),
        (kaas.Buffer("b", 6, "float32"), SIX),
        (FLOATS, SIX.tobytes()),
        (FLOATS, bytearray(24)),
        (FLOATS, memoryview(SIX.data)),
        (FLOATS, array.array("f", range(6))),
        (BYTES, SIX),
        (kaas.Buffer("bytes", (4, 6)), SIX),
        (BYTES, np.zeros((4, 3), ml_dtypes.bfloat16)),
        (BYTES, np.zeros(3, "complex64")),
        (kaas.Buffer("b", 3, "bfloat16"), np.ones(3, ml_dtypes.bfloat16)),
        (kaas.Buffer("b", (), "float64"), np.float64(2)),
        (kaas.Buffer("b", 0, "float64"), np.empty(0)),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_inputs_are_their_bytes_without_a_copy(buffer: kaas.Buffer, value: Any) -> None:
    view = input_bytes(buffer, value)
    assert (view.nbytes, view.format, view.ndim) == (buffer.nbytes, "B", 1)
    assert bytes(view) == (value.tobytes() if hasattr(value, "tobytes") else bytes(value))


def test_input_bytes_share_memory() -> None:
    source = SIX.copy()
    view = input_bytes(FLOATS, source)
    source[0, 0] = 9
    assert bytes(view) == source.tobytes()


@pytest.mark.parametrize(
    ("buffer", "value", "error", "expected"),
    [
        (FLOATS, SIX[:1], WrongSize, {"buffer": "floats", "expected_bytes": 24, "given_bytes": 12}),
        (FLOATS, bytes(25), WrongSize, {"buffer": "floats", "expected_bytes": 24, "given_bytes": 25}),
        (FLOATS, SIX.astype(np.float64), WrongDtype, {"buffer": "floats", "expected": "float32", "given": "float64"}),
        (FLOATS, SIX.astype(">f4"), WrongDtype, {"expected": "float32", "given": ">f4"}),
        (FLOATS, SIX.view(np.int32), WrongDtype, {"expected": "float32", "given": "int32"}),
        (FLOATS, SIX.reshape(3, 2), WrongShape, {"expected_shape": (2, 3), "given_shape": (3, 2)}),
        (FLOATS, SIX.T, NotContiguous, {"buffer": "floats"}),
        (BYTES, np.zeros(48, np.uint8)[::2], NotContiguous, {"buffer": "bytes"}),
        (BYTES, [0] * 24, NotContiguous, {"buffer": "bytes"}),
        (BYTES, None, NotContiguous, {"buffer": "bytes"}),
        (BYTES, np.array([None] * 3), NotContiguous, {"buffer": "bytes"}),
        (FLOATS, kaas.View(SIX, 4), WrongSize, {"expected_bytes": 24, "given_bytes": 20}),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit(buffer: kaas.Buffer, value: Any, error: type[KaasError], expected: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        input_bytes(buffer, value)
    assert type(caught.value) is error
    assert expected.items() <= caught.value.fields.items()


def test_views_take_a_part_whatever_its_dtype() -> None:
    whole = np.arange(20, dtype=np.int16)
    assert bytes(input_bytes(FLOATS, kaas.View(whole, 16))) == whole.tobytes()[16:40]
    with pytest.raises(InvalidRequest):
        kaas.View(whole, -1)


def test_scalars_are_encoded_by_kind() -> None:
    encoded = encode_scalars(task(), {"alpha": 0.5, "count": 7})
    assert encoded == {"alpha": np.float32(0.5).tobytes(), "count": b"\x07"}


@pytest.mark.parametrize(
    ("scalars", "error", "expected"),
    [
        (None, MissingScalar, {"task": "t", "scalar": "alpha"}),
        ({"alpha": 1.0}, MissingScalar, {"scalar": "count"}),
        ({"alpha": 1.0, "count": 256}, WrongScalar, {"scalar": "count", "kind": "u8", "value": 256}),
        ({"alpha": "1", "count": 1}, WrongScalar, {"scalar": "alpha", "kind": "f32", "value": "1"}),
        ({"alpha": 1, "count": 1, "beta": 1}, WrongScalar, {"scalar": "beta"}),
    ],
)
def test_scalars_that_do_not_fit(scalars: Any, error: type[KaasError], expected: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        encode_scalars(task(), scalars)
    assert type(caught.value) is error
    assert expected.items() <= caught.value.fields.items()


def test_iterations_may_be_chosen_but_not_zero() -> None:
    chosen = task(kaas.Scalar("n", "i32"))
    others = {"alpha": 1, "count": 1}
    assert iterations_of(chosen, encode_scalars(chosen, others | {"n": 5})) == 5
    assert iterations_of(task(3), {}) == 3
    for n in (0, -1):
        with pytest.raises(WrongScalar) as caught:
            encode_scalars(chosen, others | {"n": n})
        assert fields(caught.value, "scalar", "value") == ("n", n)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_subclasses_of_arrays() -> None:
    buffer = kaas.Buffer("x", (2, 3), "float32")
    assert len(input_bytes(buffer, np.asmatrix(np.zeros((2, 3), np.float32)))) == 24
    with pytest.raises(NotContiguous, match="masked"):
        input_bytes(buffer, np.ma.zeros((2, 3), np.float32))


@pytest.mark.processes
def test_inputs_do_not_wait_for_imports() -> None:
    """A first request would take 40 ms longer for numpy.ma, which a program with a masked array has imported."""
    program = (
        "import sys, numpy, kaas, kaas.ktask.request\n"
        "kaas.ktask.request.input_bytes(kaas.Buffer('x', 4, 'float32'), numpy.zeros(4, numpy.float32))\n"
        "sys.exit('numpy.ma' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
