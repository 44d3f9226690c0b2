"""Payloads fit the function that they are for."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_LZMA, ZIP_STORED, ZipFile

import numpy as np
import pytest

import kaas
from kaas.bench.payloads import from_file, payload
from kaas.errors import InvalidRequest
from kaas.ktask.arguments import Buffer
from kaas.ktask.dtypes import DTYPE_BYTES, numpy_dtype
from kaas.ktask.request import input_bytes


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_an_input_of_each_dtype_fits_and_is_no_special_number(dtype: str) -> None:
    buffer = kaas.Buffer("x", (7, 33), dtype)
    made = payload([buffer])["x"]
    assert (made.dtype, made.shape) == (numpy_dtype(dtype), (7, 33))
    assert len(input_bytes(buffer, made)) == buffer.nbytes
    wide = made.astype(np.complex128)
    assert np.isfinite(wide).all()
    assert 0 <= wide.real.min() < wide.real.max() <= 1


def test_a_seed_chooses_the_values() -> None:
    inputs = [kaas.Buffer("x", 64), kaas.Buffer("y", 64)]
    first, again, other = payload(inputs, 1), payload(inputs, 1), payload(inputs, 2)
    np.testing.assert_equal(first, again)
    assert (first["x"] != other["x"]).any()
    assert (first["x"] != first["y"]).any()


def damaged(compression: int) -> bytes:
    """Return an archive of an array, with another byte in the middle of the array."""
    archive, array = BytesIO(), BytesIO()
    np.save(array, np.arange(1000, dtype=np.float32))
    with ZipFile(archive, "w", compression) as made:
        made.writestr("x.npy", array.getvalue())
    data = bytearray(archive.getvalue())
    data[len(data) // 2] ^= 0xFF
    return bytes(data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("x.npz", b"no archive"),
        ("x.npz", b""),
        ("x.npz", damaged(ZIP_LZMA)),
        ("x.npz", damaged(ZIP_DEFLATED)),
        ("x.npz", damaged(ZIP_STORED)),
        ("x.json", b"[" * 200_000),
        ("x.json", b'{"x": {"a": 1}}'),
        ("x.json", b'{"x": [null, 1]}'),
        ("x.json", b'{"n": [' + b"9" * 400 + b"]}"),
        ("x.json", b"\xff"),
        ("x.json", b'{"y": 1}'),
        ("x.json", b'{"n": [1.7]}'),
        ("x.json", b'{"n": [true]}'),
        ("x.json", b'{"x": ["7", 1]}'),
        ("x.json", b'{"x": [true, 1.5]}'),
        ("x.json", b'{"x": [1, [2]]}'),
    ],
)
def test_a_file_without_inputs_is_refused(tmp_path: Path, name: str, data: bytes) -> None:
    file = tmp_path / name
    file.write_bytes(data)
    with pytest.raises(InvalidRequest, match="has no inputs"):
        from_file(file, [Buffer("x", 2, "float32"), Buffer("n", 1, "int32")])


def test_arrays_of_another_dtype_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.npz"
    np.savez(file, x=np.ones(2, np.complex64))
    with pytest.raises(InvalidRequest, match="input 'x' takes float32, not complex64"):
        from_file(file, [Buffer("x", 2, "float32")])


def test_lists_become_arrays_of_the_inputs_dtype(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text('{"x": [1, 2.5], "n": [[3]], "b": [true, false], "c": [1.5]}')
    inputs = [
        Buffer("x", 2, "float32"),
        Buffer("n", (1, 1), "int8"),
        Buffer("b", 2, "bool"),
        Buffer("c", 1, "complex64"),
    ]
    found = from_file(file, inputs)
    assert {name: (array.dtype.name, array.tolist()) for name, array in found.items()} == {
        "x": ("float32", [1, 2.5]), "n": ("int8", [[3]]), "b": ("bool", [True, False]), "c": ("complex64", [1.5]),
    }  # fmt: skip


def test_inputs_that_numpy_cannot_make_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="NumPy cannot make"):
        payload([Buffer("x", (1,) * 100)])


def test_inputs_that_no_memory_holds_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="do not fit"):
        payload([Buffer("x", 1 << 50, "float32")])


def test_the_values_of_a_step_have_any_names_and_are_arrays_or_texts(tmp_path: Path) -> None:
    text, arrays = tmp_path / "x.json", tmp_path / "x.npz"
    text.write_text('{"text": "1 2"}')
    np.savez(arrays, pixels=np.arange(3, dtype=np.uint8))
    assert from_file(text, None) == {"text": b"1 2"}
    np.testing.assert_equal(from_file(arrays, None), {"pixels": np.arange(3, dtype=np.uint8)})
    text.write_text('{"text": [1, 2]}')
    with pytest.raises(InvalidRequest, match="value 'text' of a step is a text in JSON"):
        from_file(text, None)
