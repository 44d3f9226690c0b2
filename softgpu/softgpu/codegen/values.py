"""Values in LLVM code: a scalar for each group of lanes, or a vector."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from softgpu.analysis.shapes import UNIFORM, WARP, Shape, constant

SIZES = {"i1": 1, "i8": 8, "i16": 16, "half": 16, "i32": 32, "float": 32, "i64": 64, "double": 64}

AS_INTEGER = {"half": "i16", "float": "i32", "double": "i64"}


@dataclass(frozen=True, slots=True)
class Width:
    """The width of an elementwise operation, scalar or vector: it decides the text of types and constants."""

    lanes: int

    def of(self, element: str) -> str:
        """Return the type of such values."""
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def name(self, element: str) -> str:
        """Return the type in the name of an LLVM intrinsic."""
        short = {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)
        return short if self.lanes == 1 else f"v{self.lanes}{short}"

    def const(self, element: str, value: int | str) -> str:
        """Return a constant, in all lanes."""
        text = integer(element, value) if isinstance(value, int) else value
        return text if self.lanes == 1 else f"splat ({element} {text})"


SCALAR, VECTOR = Width(1), Width(WARP)


def integer(element: str, value: int) -> str:
    """Return the LLVM text of the integer with these low bits, or of the floating-point constant with these bits."""
    bits = SIZES[element]
    if element == "i1":
        return "true" if value & 1 else "false"
    value &= (1 << bits) - 1
    return f"bitcast (i{bits} {value} to {element})" if element in AS_INTEGER else str(value)


@dataclass(slots=True)
class Value:
    """A value. parts: a scalar for each group of an Affine; bases, then offsets of a Wide; the vector of a Varying."""

    shape: Shape
    type: str
    parts: list[str]
    vector: str = ""  # the value as a vector of 32, once it is made


def immediate(bits: int, float_bits: int, element: str) -> Value:
    """Return a constant of PTX as `element`.

    float_bits: 32 or 64 for a constant that PTX writes as a number of that precision, else 0.
    """
    if float_bits == 64 and element == "float":
        bits = int.from_bytes(struct.pack("<f", struct.unpack("<d", bits.to_bytes(8, "little"))[0]), "little")
    shape = UNIFORM if element in AS_INTEGER else constant(bits)
    return Value(shape, element, [integer(element, bits)])
