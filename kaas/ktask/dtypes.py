"""Element types of buffers and kinds of by-value arguments: names, sizes, bytes."""

from __future__ import annotations

import math
import struct
from functools import cache
from numbers import Complex, Real
from operator import index
from typing import Any

from kaas.errors import InvalidLiteral

DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
"""Bytes of one element, by dtype name: NumPy's numeric types and bool, bfloat16, and ml_dtypes' float8 kinds."""

DLPACK_DTYPES: dict[tuple[int, int], str] = {
    **{(0, bits): f"int{bits}" for bits in (8, 16, 32, 64)},
    **{(1, bits): f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{(2, bits): f"float{bits}" for bits in (16, 32, 64)},
    (4, 16): "bfloat16",
    (5, 64): "complex64",
    (5, 128): "complex128",
    (6, 8): "bool",
    (7, 8): "float8_e3m4",
    (8, 8): "float8_e4m3",
    (9, 8): "float8_e4m3b11fnuz",
    (10, 8): "float8_e4m3fn",
    (11, 8): "float8_e4m3fnuz",
    (12, 8): "float8_e5m2",
    (13, 8): "float8_e5m2fnuz",
    (14, 8): "float8_e8m0fnu",
}
"""Dtype names by DLPack's (type code, bits)."""

_INTEGERS = {"i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q"}
_FLOATS = {"f16": "e", "f32": "f", "f64": "d"}
_COMPLEX = {"c64": "f", "c128": "d"}

_PACK = {kind: struct.Struct("<" + code).pack for kind, code in (_INTEGERS | _FLOATS).items()}

KIND_BYTES: dict[str, int] = {
    **{kind: struct.calcsize(code) for kind, code in (_INTEGERS | _FLOATS).items()},
    "bf16": 2,
    **{kind: 2 * struct.calcsize(code) for kind, code in _COMPLEX.items()},
    "boolean": 1,
}
"""Bytes of one by-value argument, by kind."""

_KIND_OF = {
    **{f"{name}{bits}": f"{name[0]}{bits}" for name in ("int", "uint") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    "bfloat16": "bf16",
    "complex64": "c64",
    "complex128": "c128",
    "bool": "boolean",
    "int": "i32",
    "float": "f32",
    "double": "f64",
}
"""Kinds by the names of NumPy's types, and of C's types where these differ."""


def which_kinds(given: Any) -> str:
    """Return the end of a message about an unknown kind: the kind that may be meant, or all kinds."""
    meant = _KIND_OF.get(given) if isinstance(given, str) else None
    return f"did you mean {meant!r}?" if meant else f"the kinds are {', '.join(KIND_BYTES)}"


def is_integer_kind(kind: str) -> bool:
    """Return True if values of a kind are integers."""
    return kind in _INTEGERS


def dtype_name(dtype: Any) -> str | None:
    """Return the name of a dtype given as a name, a NumPy dtype or a scalar type; None if no buffer can have it.

    Byte order counts: a big-endian dtype has no name here. Nor has the text "float": it is float64 to NumPy and float32
    to CUDA C++.
    """
    if isinstance(dtype, str) and dtype in DTYPE_BYTES:
        return dtype
    if dtype is None or (isinstance(dtype, str) and dtype in ("float", "complex")):  # NumPy would take None for float64
        return None
    import numpy as np

    try:
        return _known_name(np.dtype(dtype))
    except TypeError:
        return None


@cache
def _known_name(dtype: Any) -> str | None:
    """Return a dtype's name if buffers can have it. Cached, since NumPy computes the name at each access."""
    name: str = dtype.name
    return name if name in DTYPE_BYTES and dtype.isnative else None


@cache
def numpy_dtype(name: str) -> Any:
    """Return the NumPy dtype of a name of DTYPE_BYTES; bfloat16 and float8 come from ml_dtypes."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def encode(kind: str, value: Any) -> bytes:
    """Return the little-endian bytes of a value as a kernel receives them.

    Raises:
        InvalidLiteral: no such kind, a value of the wrong type, or one out of range. Floats are rounded, never refused
            for precision, but a finite value that would become infinite is.
    """
    try:
        if kind in _INTEGERS:
            return _PACK[kind](index(value))
        if kind in _FLOATS:
            return _PACK[kind](_real(value))
        if kind == "bf16":
            return _bfloat16(_real(value))
        if kind in _COMPLEX:
            if isinstance(value, str | bytes):
                raise TypeError("not a number")
            number = complex(value)
            return struct.pack("<2" + _COMPLEX[kind], number.real, number.imag)
        if kind == "boolean" and value in (False, True):
            return b"\x01" if value else b"\x00"
    except (TypeError, ValueError, AttributeError, struct.error, OverflowError) as error:
        raise InvalidLiteral(f"{value!r} is no {kind}: {error}", kind=kind, value=value) from error
    known = "" if kind in KIND_BYTES else f"; {which_kinds(kind)}"
    raise InvalidLiteral(f"{value!r} is no {kind}{known}", kind=kind, value=value)


def decode(kind: str, data: bytes) -> Any:
    """Return the Python value of bytes that `encode` made."""
    if kind in _INTEGERS or kind in _FLOATS:
        return struct.unpack("<" + (_INTEGERS | _FLOATS)[kind], data)[0]
    if kind == "bf16":
        return struct.unpack("<f", b"\0\0" + data)[0]
    if kind in _COMPLEX:
        return complex(*struct.unpack("<2" + _COMPLEX[kind], data))
    return bool(data[0])


def _real(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, str | bytes) or (isinstance(value, Complex) and not isinstance(value, Real)):
        raise TypeError("not a real number")
    return float(value)


def _bfloat16(value: float) -> bytes:
    """Round to nearest even, as the hardware does; NaN keeps its sign and becomes quiet."""
    bits = int.from_bytes(struct.pack("<f", value), "little")
    if math.isnan(value):
        return ((bits >> 16) | 0x40).to_bytes(2, "little")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    if rounded & 0x7FFF == 0x7F80 and not math.isinf(value):
        raise OverflowError("too large for bfloat16")
    return rounded.to_bytes(2, "little")
