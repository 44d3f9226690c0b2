"""alpha and beta: numbers, or kaas.Scalar that each invocation chooses."""

from __future__ import annotations

from struct import Struct, error
from typing import Any, Final

from cutlass_blas.errors import InvalidScalar
from kaas import KaasError, Scalar, c64, c128, f32, f64

SCALAR_KINDS: Final = {"s": "f32", "d": "f64", "c": "c64", "z": "c128", "h": "f32", "b": "f32", "t": "f32"}
"""Kind of product -> kind of alpha and beta, which is the kind of the sums."""
BYTES: Final = {"f32": 4, "f64": 8, "c64": 8, "c128": 16}
_LITERALS: Final = {"f32": f32, "f64": f64, "c64": c64, "c128": c128}
_PACK: Final = {"f32": Struct("<f").pack, "f64": Struct("<d").pack}
_ZEROS: Final = {
    "f32": {bytes(4), b"\0\0\0\x80"},
    "f64": {bytes(8), bytes(7) + b"\x80"},
    "c64": {bytes(8), bytes(7) + b"\x80", b"\0\0\0\x80" + bytes(4), b"\0\0\0\x80" * 2},
    "c128": {bytes(16), bytes(15) + b"\x80", bytes(7) + b"\x80" + bytes(8), (bytes(7) + b"\x80") * 2},
}


def coefficient(name: str, value: Any, kind: str) -> tuple[bytes, Scalar | None]:
    """Return the bytes of alpha or beta, or for a Scalar zeros and the Scalar. `kind` is one of SCALAR_KINDS' values.

    Raises:
        InvalidScalar: no number, a complex number for real elements, or a Scalar of another kind.
    """
    if type(value) is float or type(value) is int:
        pack = _PACK.get(kind)
        if pack is not None:
            try:
                return pack(value), None
            except (OverflowError, error):
                pass  # the error is raised below
    if isinstance(value, Scalar):
        if value.kind != kind:
            raise InvalidScalar(
                f"{name} is a {kind} here, but kaas.Scalar {value.name!r} is a {value.kind}",
                scalar=name,
                value=repr(value),
                kind=kind,
            )
        return bytes(BYTES[kind]), value
    try:
        return _LITERALS[kind](value).data, None
    except KaasError as refusal:
        raise InvalidScalar(
            f"{name} is a number ({kind}) or a kaas.Scalar: {refusal.message}",
            scalar=name,
            value=repr(value),
            kind=kind,
        ) from refusal


def is_zero(data: bytes, kind: str) -> bool:
    """Return True if the bytes are 0, of either sign."""
    return data in _ZEROS[kind]


def one(kind: str) -> bytes:
    """Return the bytes of 1."""
    return _ONES[kind]


_ONES: Final = {kind: _LITERALS[kind](1).data for kind in BYTES}
