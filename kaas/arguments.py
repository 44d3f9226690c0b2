"""Buffers and the arguments of kernels: what a launch is given, as immutable values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kaas.dtypes import DTYPE_BYTES, KIND_BYTES, decode, dtype_name, encode
from kaas.errors import InvalidGraph, InvalidLiteral, StructFieldOutside

POINTER_BYTES = 8


@dataclass(frozen=True, slots=True, init=False)
class Buffer:
    """A named array on the device.

    Args:
        name: what inputs and outputs are called by.
        shape: elements in each dimension, C order; () is a single element. An int is one dimension.
        dtype: a name of `kaas.dtypes.DTYPE_BYTES` or anything NumPy makes one of. An input of a "uint8" buffer may have
            any dtype.
        init: "zero" clears the buffer once in each request, before the first iteration; it is then never an input.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: str | None

    def __init__(self, name: str, shape: int | Sequence[int], dtype: Any = "uint8", *, init: str | None = None) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidGraph(f"a buffer's name is a non-empty string, not {name!r}")
        known = dtype_name(dtype)
        if known is None:
            raise InvalidGraph(f"buffer {name!r}: no dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}", buffer=name)
        if init not in (None, "zero"):
            raise InvalidGraph(f'buffer {name!r}: init is None or "zero", not {init!r}', buffer=name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", _shape(name, shape))
        object.__setattr__(self, "dtype", known)
        object.__setattr__(self, "init", init)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


def _shape(name: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    try:
        dimensions = tuple(n.__index__() for n in (shape if isinstance(shape, Iterable) else (shape,)))
    except AttributeError:
        dimensions = (-1,)
    if any(n < 0 for n in dimensions):
        raise InvalidGraph(f"buffer {name!r}: a shape is non-negative integers, not {shape!r}", buffer=name)
    return dimensions


# --- arguments


@dataclass(frozen=True, slots=True)
class Access:
    """A pointer to a buffer, offset_bytes into it. Use In, Out or InOut, which say what the kernel does there."""

    buffer: Buffer
    offset_bytes: int = 0

    reads: ClassVar[bool] = False
    writes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Buffer):
            raise InvalidGraph(f"{type(self).__name__} takes a kaas.Buffer, not {self.buffer!r}")
        if not isinstance(self.offset_bytes, int) or not 0 <= self.offset_bytes < max(1, self.buffer.nbytes):
            raise InvalidGraph(
                f"offset {self.offset_bytes!r} lies outside buffer {self.buffer.name!r} of {self.buffer.nbytes} bytes",
                buffer=self.buffer.name,
            )


@dataclass(frozen=True, slots=True)
class In(Access):
    """The kernel reads the buffer."""

    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Out(Access):
    """The kernel writes the *whole* buffer, whatever it held before. A kernel that writes a part of it says InOut."""

    writes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class InOut(Access):
    """The kernel reads the buffer and writes it, or writes only a part of it."""

    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Literal:
    """A value fixed in the kTask, by its bytes. Made by kaas.i8 ... kaas.boolean; kaas.Null is the null pointer."""

    kind: str
    data: bytes

    def __post_init__(self) -> None:
        expected = POINTER_BYTES if self.kind == "null" else KIND_BYTES.get(self.kind)
        if len(self.data) != expected:
            raise InvalidLiteral(f"{len(self.data)} bytes are no {self.kind}", kind=self.kind, value=self.data)

    def __repr__(self) -> str:
        return "Null" if self.kind == "null" else f"{self.kind}({decode(self.kind, self.data)!r})"


Null = Literal("null", bytes(POINTER_BYTES))


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value chosen at each invocation; it is outside the plan's key. kind is one of `kaas.dtypes.KIND_BYTES`."""

    name: str
    kind: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidGraph(f"a scalar's name is a non-empty string, not {self.name!r}")
        if self.kind not in KIND_BYTES:
            raise InvalidGraph(f"scalar {self.name!r}: no kind {self.kind!r}; known: {', '.join(KIND_BYTES)}")


@dataclass(frozen=True, slots=True, init=False)
class Pointers:
    """A table of device pointers, by its address: what batched BLAS calls take (`const float *const *`)."""

    entries: tuple[Access, ...]

    def __init__(self, entries: Iterable[Access]) -> None:
        entries = tuple(entries)
        if not entries or not all(isinstance(entry, Access) for entry in entries):
            raise InvalidGraph("Pointers takes one or more of In, Out and InOut")
        object.__setattr__(self, "entries", entries)


@dataclass(frozen=True, slots=True, init=False)
class Struct:
    """A struct passed by value whose pointer and scalar fields are patched; CUTLASS `Params` are such structs.

    Args:
        blob: the bytes of the struct. Patched bytes do not count: they are kept, and hashed, as zeros.
        pointers: byte offset -> In, Out, InOut (a device pointer) or Pointers (the address of a table of them).
        scalars: byte offset -> Scalar.
        align: alignment in bytes, a power of two.
    """

    blob: bytes = field(repr=False)
    pointers: tuple[tuple[int, Access | Pointers], ...]
    scalars: tuple[tuple[int, Scalar], ...]
    align: int

    def __init__(
        self,
        blob: bytes,
        pointers: Mapping[int, Access | Pointers] | None = None,
        scalars: Mapping[int, Scalar] | None = None,
        align: int = 16,
    ) -> None:
        pointers, scalars = dict(pointers or {}), dict(scalars or {})
        if align < 1 or align & (align - 1):
            raise InvalidGraph(f"a struct's alignment is a power of two, not {align}")
        if not blob:
            raise InvalidGraph("a struct has at least one byte")
        if not all(isinstance(target, Access | Pointers) for target in pointers.values()):
            raise InvalidGraph("pointer fields of a struct are In, Out, InOut or Pointers")
        if not all(isinstance(scalar, Scalar) for scalar in scalars.values()):
            raise InvalidGraph("scalar fields of a struct are kaas.Scalar")
        spans = sorted(
            [(offset, POINTER_BYTES) for offset in pointers]
            + [(offset, KIND_BYTES[scalar.kind]) for offset, scalar in scalars.items()]
        )
        object.__setattr__(self, "blob", _clear(bytes(blob), spans))
        object.__setattr__(self, "pointers", tuple(sorted(pointers.items())))
        object.__setattr__(self, "scalars", tuple(sorted(scalars.items())))
        object.__setattr__(self, "align", align)


def _clear(blob: bytes, spans: list[tuple[int, int]]) -> bytes:
    """blob with the spans (offset, bytes), sorted, zeroed; they must lie inside and apart."""
    cleared = bytearray(blob)
    end = 0
    for offset, size in spans:
        if offset < end or offset + size > len(blob):
            why = "overlaps the field before it" if 0 <= offset < end else "does not lie inside it"
            raise StructFieldOutside(
                f"the field of {size} bytes at {offset} of a struct of {len(blob)} bytes {why}",
                offset_bytes=offset,
                field_bytes=size,
                struct_bytes=len(blob),
            )
        end = offset + size
        cleared[offset:end] = bytes(size)
    return bytes(cleared)


Argument = Access | Literal | Scalar | Struct | Pointers


def accesses(argument: Argument) -> Iterator[Access]:
    """Every In, Out and InOut inside an argument."""
    match argument:
        case Access():
            yield argument
        case Pointers():
            yield from argument.entries
        case Struct():
            for _, target in argument.pointers:
                yield from accesses(target)


def scalars_of(argument: Argument) -> Iterator[Scalar]:
    """Every Scalar inside an argument."""
    match argument:
        case Scalar():
            yield argument
        case Struct():
            yield from (scalar for _, scalar in argument.scalars)


def argument_bytes(argument: Argument) -> int:
    """Size in the kernel's parameter space."""
    match argument:
        case Access() | Pointers():
            return POINTER_BYTES
        case Literal():
            return len(argument.data)
        case Scalar():
            return KIND_BYTES[argument.kind]
        case Struct():
            return len(argument.blob)


def literal(kind: str, value: Any) -> Literal:
    """The literal of a kind; kaas.i32(5) is literal("i32", 5).

    Raises:
        InvalidLiteral: a value of the wrong type or out of the kind's range.
    """
    return Literal(kind, encode(kind, value))
