"""Literals and dtypes: the bytes that a kernel receives."""

from __future__ import annotations

import math
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kaas
from kaas.errors import InvalidLiteral
from kaas.ktask.arguments import argument_bytes
from kaas.ktask.dtypes import DTYPE_BYTES, KIND_BYTES, decode, dtype_name, encode, numpy_dtype

INTEGERS = {"i8": (8, True), "i16": (16, True), "i32": (32, True), "i64": (64, True)} | {
    "u8": (8, False), "u16": (16, False), "u32": (32, False), "u64": (64, False),
}  # fmt: skip


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_cover_exactly_their_range(kind: str) -> None:
    bits, signed = INTEGERS[kind]
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    for value in (low, high, 0, 1):
        literal = getattr(kaas, kind)(value)
        assert literal.data == value.to_bytes(bits // 8, "little", signed=signed)
        assert decode(kind, literal.data) == value
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidLiteral) as caught:
            getattr(kaas, kind)(value)
        assert caught.value.fields == {"kind": kind, "value": value}


@pytest.mark.parametrize(
    ("kind", "value"),
    [("i32", 1.0), ("i32", "1"), ("i32", None), ("f32", "1"), ("f32", 1j), ("f64", None), ("f64", b"1"), ("f16", [1.0]),
     ("f16", 65520.0), ("f32", 1e39), ("bf16", 3.4e38), ("bf16", 1e39), ("c64", 1e39j), ("c64", "1"), ("c128", None),
     ("boolean", 2), ("boolean", "yes"), ("boolean", None), ("boolean", np.zeros(2)), ("i31", 1)],
)  # fmt: skip
def test_a_value_that_a_kind_cannot_hold_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(InvalidLiteral) as caught:
        encode(kind, value)
    assert caught.value.fields["kind"] == kind


@given(st.floats(-(2.0**127), 2.0**127, width=32))
def test_bfloat16_rounds_to_nearest_even(value: float) -> None:
    assert kaas.bf16(value).data == np.array(value, ml_dtypes.bfloat16).tobytes()


@given(st.floats(-60000, 60000))
def test_floats_round_as_numpy_does(value: float) -> None:
    assert kaas.f16(value).data == np.float16(value).tobytes()
    assert kaas.f32(value).data == np.float32(value).tobytes()
    assert kaas.f64(value).data == np.float64(value).tobytes()


@given(st.complex_numbers(max_magnitude=1e30))
def test_complex_is_real_then_imaginary(value: complex) -> None:
    assert kaas.c64(value).data == np.complex64(value).tobytes()
    assert kaas.c128(value).data == struct.pack("<2d", value.real, value.imag)


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_infinities_and_nan_pass(kind: str) -> None:
    assert decode(kind, encode(kind, math.inf)) == math.inf
    assert decode(kind, encode(kind, -math.inf)) == -math.inf
    assert math.isnan(decode(kind, encode(kind, math.nan)))


def test_numpy_scalars_are_values_too() -> None:
    assert kaas.i32(np.int64(-1)) == kaas.i32(-1)
    assert kaas.f32(np.float64(0.1)) == kaas.f32(0.1)
    assert kaas.boolean(np.bool_(True)) == kaas.boolean(True)
    assert kaas.c64(np.complex64(1j)) == kaas.c64(1j)


def test_null_is_a_pointer_of_zeros() -> None:
    assert kaas.Null.data == bytes(8)
    assert argument_bytes(kaas.Null) == 8
    assert repr(kaas.Null) == "Null"


def test_literals_show_their_values() -> None:
    assert repr(kaas.i16(-3)) == "i16(-3)"
    assert repr(kaas.boolean(False)) == "boolean(False)"


@pytest.mark.parametrize("kind", KIND_BYTES)
def test_sizes_of_kinds(kind: str) -> None:
    assert len(encode(kind, 1)) == KIND_BYTES[kind] == argument_bytes(kaas.Scalar("s", kind))
    with pytest.raises(InvalidLiteral):
        kaas.Literal(kind, bytes(KIND_BYTES[kind] + 1))


@pytest.mark.parametrize("name", DTYPE_BYTES)
def test_dtypes_are_numpys(name: str) -> None:
    dtype = numpy_dtype(name)
    assert dtype.itemsize == DTYPE_BYTES[name]
    assert dtype_name(dtype) == dtype_name(dtype.type) == name
    assert kaas.Buffer("b", (2, 3), dtype) == kaas.Buffer("b", (2, 3), name)
    assert kaas.Buffer("b", (2, 3), name).nbytes == 6 * dtype.itemsize


@pytest.mark.parametrize("dtype", ["float7", None, object, "S4", "datetime64[s]", ">i4", "longdouble"])
def test_other_dtypes_have_no_name(dtype: Any) -> None:
    assert dtype_name(dtype) is None


def test_shapes() -> None:
    assert kaas.Buffer("b", 3).shape == (3,)
    assert kaas.Buffer("b", (), "float64").nbytes == 8
    assert kaas.Buffer("b", np.array([2, 3])).shape == (2, 3)  # type: ignore[arg-type]
    assert kaas.Buffer("b", (0, 3)).nbytes == 0
