"""Arrays of other libraries in host memory: the bytes that they hold, without a copy, or a typed error."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kaas
from kaas.errors import NotContiguous, WrongDtype, WrongSize
from kaas.executor.device.host_arrays import on_host
from kaas.ktask.dlpack import _pointer, _Versioned, is_exporter, tensor_of
from kaas.ktask.dtypes import DLPACK_DTYPES, DTYPE_BYTES, numpy_dtype
from kaas.ktask.request import input_bytes
from tests.exporters import Exporter, strides

FLOATS = kaas.Buffer("floats", (2, 3), "float32")
SIX = np.arange(6, dtype=np.float32).reshape(2, 3)


def address_of(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("old", [False, True])
def test_the_same_memory_in_either_version(old: bool) -> None:
    view = input_bytes(FLOATS, Exporter(SIX, old=old))
    assert (bytes(view), address_of(view), view.readonly) == (SIX.tobytes(), SIX.ctypes.data, True)


def test_a_read_only_array_is_read() -> None:
    frozen = SIX.copy()
    frozen.flags.writeable = False
    assert bytes(input_bytes(FLOATS, Exporter(frozen))) == SIX.tobytes()


def test_a_view_of_an_exporter() -> None:
    view = input_bytes(FLOATS, kaas.View(Exporter(np.arange(8, dtype=np.float32)), 8))
    assert np.frombuffer(view, np.float32).tolist() == [2, 3, 4, 5, 6, 7]


def test_the_memory_stays_until_the_last_use() -> None:
    array = SIX.copy()
    end = weakref.ref(array)
    view = input_bytes(FLOATS, Exporter(array))
    del array
    gc.collect()
    assert end() is not None
    assert bytes(view) == SIX.tobytes()
    del view
    gc.collect()
    assert end() is None


@pytest.mark.parametrize(("code", "name"), DLPACK_DTYPES.items())
def test_every_dtype_by_its_name(code: tuple[int, int], name: str) -> None:
    stands_in = np.complex128 if DTYPE_BYTES[name] == 16 else f"u{DTYPE_BYTES[name]}"
    array = np.arange(16 * DTYPE_BYTES[name], dtype=np.uint8).view(stands_in)
    exported = Exporter(array, dtype_code=code[0], dtype_bits=code[1])
    assert bytes(input_bytes(kaas.Buffer("b", 16, name), exported)) == array.tobytes()
    kept = on_host("b", exported)
    assert (kept.dtype, kept.shape, kept.ctypes.data) == (numpy_dtype(name), (16,), array.ctypes.data)


def test_the_dtypes_are_all_that_buffers_have() -> None:
    assert set(DLPACK_DTYPES.values()) == DTYPE_BYTES.keys()
    assert all(DTYPE_BYTES[name] * 8 == bits for (_, bits), name in DLPACK_DTYPES.items())


def test_bfloat16_that_numpy_will_not_export() -> None:
    array = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    exported = Exporter(array.view(np.uint16), dtype_code=4)
    kept = on_host("b", exported)
    assert kept.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(kept, array)
    with pytest.raises(WrongDtype) as wrong:
        input_bytes(FLOATS, exported)
    assert wrong.value.fields["given"] == "bfloat16"


def test_an_unknown_dtype_fits_plain_bytes_only() -> None:
    exported = Exporter(np.arange(24, dtype=np.uint8), dtype_code=17, dtype_bits=4, dtype_lanes=2)
    assert bytes(input_bytes(kaas.Buffer("b", 24), exported)) == bytes(range(24))
    assert on_host("b", exported).dtype == np.uint8
    with pytest.raises(WrongDtype):
        input_bytes(FLOATS, exported)


class Refusing(Exporter):
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it needs its gradient")


class Strange(Exporter):
    def __dlpack__(self, **_: Any) -> Any:
        return object()


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (Exporter(SIX.T), NotContiguous, "strides"),
        (Exporter(np.zeros((2, 6), np.float32)[:, ::2]), NotContiguous, "strides"),
        (Exporter(SIX.astype(np.float64)), WrongDtype, "float64"),
        (Exporter(SIX[:1]), WrongSize, "12"),
        (Exporter(SIX, (12, 0)), NotContiguous, "kind 12"),
        (Exporter(SIX, (2, 0)), NotContiguous, "lies on a device"),
        (Refusing(SIX), NotContiguous, "gradient"),
        (np.ndarray, NotContiguous, "not exported"),
        (Strange(SIX), NotContiguous, "no DLPack tensor"),
    ],
)
def test_an_array_that_does_not_fit_is_a_typed_error(value: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        input_bytes(FLOATS, value)


def test_another_version_of_the_protocol() -> None:
    class Later(Exporter):
        def __dlpack__(self, **options: Any) -> Any:
            capsule = super().__dlpack__(**options)
            managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
            managed.major = 2
            return capsule

    with pytest.raises(NotContiguous, match="version 1"):
        input_bytes(FLOATS, Later(SIX))


@pytest.mark.parametrize(
    ("shape", "given"),
    [((2, 3), (3, 1)), ((1, 6), (99, 1)), ((6, 1), (1, 99)), ((2, 1, 3), (3, 7, 1)), ((0, 5), (1, 1)), ((), ())],
)
def test_strides_that_leave_no_gaps(shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    exported = Exporter(np.zeros(shape, np.float32), strides=strides(*given))
    assert tensor_of("t", exported).nbytes == 4 * int(np.prod(shape))
    assert on_host("t", exported).shape == shape


def test_without_strides_there_are_no_gaps() -> None:
    assert bytes(input_bytes(FLOATS, Exporter(SIX, strides=None))) == SIX.tobytes()


def test_an_offset_in_bytes_counts() -> None:
    array = np.arange(8, dtype=np.float32)
    exported = Exporter(array[:6], byte_offset=8)
    assert np.frombuffer(input_bytes(FLOATS, exported), np.float32).tolist() == [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("value", [SIX, SIX.tobytes(), bytearray(24), 5, None, np.ma.masked_array(SIX)])
def test_values_without_the_protocol_stay_unchanged(value: Any) -> None:
    assert not is_exporter(value)
    assert on_host("x", value) is value


def test_a_view_of_an_array_stays_unchanged_and_a_view_of_an_exporter_is_read() -> None:
    view = kaas.View(SIX, 4)
    assert on_host("x", view) is view
    kept = on_host("x", kaas.View(Exporter(SIX), 4))
    assert (kept.offset_bytes, kept.source.ctypes.data) == (4, SIX.ctypes.data)


def test_torch_in_host_memory() -> None:
    torch = pytest.importorskip("torch")
    for dtype in ("float32", "bfloat16", "int64", "bool", "float8_e4m3fn", "float8_e5m2"):
        tensor = torch.arange(6).to(getattr(torch, dtype))
        buffer = kaas.Buffer("b", 6, dtype)
        view = input_bytes(buffer, tensor)
        assert address_of(view) == tensor.data_ptr()
        assert on_host("b", tensor).dtype == numpy_dtype(dtype)
    with pytest.raises(NotContiguous):
        input_bytes(kaas.Buffer("b", 6), torch.zeros(6, requires_grad=True))
