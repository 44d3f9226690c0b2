"""Named arrays as a safetensors file: written without a copy, and read as views of the bytes they lie in.

The format is that of https://github.com/huggingface/safetensors: eight bytes with the length of a JSON header, the
header, and the arrays without gaps. Of our dtypes it lacks a few; arrays of those are bytes there, with one dimension
more for the bytes of an element, and the caller keeps their dtypes.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kaas.arguments import check_name, integer
from kaas.dtypes import DTYPE_BYTES, dtype_name, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

ALIGNMENT_BYTES = 64
"""Of the first array, seen from the file's start."""
HEADER_BYTES = 100 << 20
"""No header is longer; the library's own limit."""
RESERVED = "__metadata__"
"""A name that no array can have."""
DIMENSIONS = 64
"""That a NumPy array has at most."""

NAMES = {
    "bool": "BOOL",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
}
"""Those of our dtypes that safetensors has, as it calls them."""
_DTYPES = {name: dtype for dtype, name in NAMES.items()}


def foreign(arrays: Mapping[str, Array]) -> dict[str, str]:
    """The dtypes of those arrays whose dtype safetensors lacks."""
    found = {name: _dtype(array) for name, array in sorted(arrays.items())}
    return {name: dtype for name, dtype in found.items() if dtype not in NAMES}


def encoded(arrays: Mapping[str, Array]) -> Iterator[memoryview]:
    """The file in pieces, the same for the same arrays. They are contiguous, of our dtypes, and none has the reserved
    name."""
    import numpy as np

    # the widest elements first, so that all of them are aligned
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {}
    end = 0
    for name in order:
        array = arrays[name]
        known = NAMES.get(_dtype(array))
        shape = [*array.shape] if known else [*array.shape, array.itemsize]
        header[name] = {"dtype": known or "U8", "shape": shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % ALIGNMENT_BYTES)
    yield memoryview(struct.pack("<Q", len(text)) + text)
    for name in order:
        if arrays[name].size:
            yield arrays[name].reshape(-1).view(np.uint8).data


def decoded(data: Array, dtypes: Mapping[str, str]) -> dict[str, Array]:
    """The arrays, as views of the file's bytes.

    Args:
        dtypes: of those whose dtype safetensors lacks.

    Raises:
        ValueError: this is no such file, or not all of one.
    """
    if len(data) < 8:
        raise ValueError("no room for the length of a header")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > min(HEADER_BYTES, len(data) - 8):
        raise ValueError(f"a header of {length} bytes in {len(data)} bytes")
    header = _parsed(data[8 : 8 + length].tobytes())
    body = data[8 + length :]
    header.pop(RESERVED, None)
    unknown = dtypes.keys() - header.keys()
    if unknown:
        raise ValueError(f"no tensor {min(unknown)!r}, of which a dtype is told")
    spans = {name: _span(name, entry) for name, entry in header.items()}
    end = 0
    for name in sorted(spans, key=lambda name: spans[name]):
        start, stop = spans[name]
        if start != end or stop < start:
            raise ValueError(f"tensor {name!r} lies at {start} to {stop}, after one that ends at {end}")
        end = stop
    if end != len(body):
        raise ValueError(f"tensors of {end} bytes in {len(body)} bytes")
    return {name: _array(name, header[name], body[slice(*spans[name])], dtypes.get(name)) for name in sorted(header)}


def _dtype(array: Array) -> str:
    name = dtype_name(array.dtype)
    assert name is not None, "constants are of our dtypes"
    return name


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except RecursionError as error:
        raise ValueError("a header without end") from error
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    return header


def _span(name: str, entry: Any) -> tuple[int, int]:
    check_name("a tensor's name", name)
    match entry:
        case {"data_offsets": [start, stop]} if integer(start) is not None and integer(stop) is not None:
            return start, stop
    raise ValueError(f"tensor {name!r} does not say where it lies")


def _array(name: str, entry: Mapping[str, Any], data: Array, foreign_dtype: str | None) -> Array:
    shape = entry.get("shape")
    dtype = _DTYPES.get(str(entry.get("dtype")))
    if dtype is None:
        raise ValueError(f"tensor {name!r} is of dtype {entry.get('dtype')!r}, which no buffer has")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS or any(integer(n) is None or n < 0 for n in shape):
        raise ValueError(f"tensor {name!r} is of shape {shape!r}")
    if math.prod(shape) * DTYPE_BYTES[dtype] != len(data):
        raise ValueError(f"tensor {name!r} is {dtype}{shape}, in {len(data)} bytes")
    if foreign_dtype is None:
        return _viewed(data, dtype, shape)
    if foreign_dtype in NAMES or foreign_dtype not in DTYPE_BYTES:
        raise ValueError(f"tensor {name!r} cannot be of dtype {foreign_dtype!r} in bytes")
    if dtype != "uint8" or shape[-1:] != [DTYPE_BYTES[foreign_dtype]]:
        raise ValueError(f"tensor {name!r} is {dtype}{shape}: no bytes of {foreign_dtype}")
    return _viewed(data, foreign_dtype, shape[:-1])


def _viewed(data: Array, dtype: str, shape: list[int]) -> Array:
    array: Array = data.view(numpy_dtype(dtype)).reshape(shape)
    return array
