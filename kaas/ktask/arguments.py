"""Buffers and the arguments of kernels, as immutable values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, ClassVar

from kaas.errors import InvalidGraph, InvalidLiteral, StructFieldOutside
from kaas.ktask.dtypes import DTYPE_BYTES, KIND_BYTES, decode, dtype_name, encode, which_kinds

POINTER_BYTES = 8
LIMIT = 1 << 62
"""No size or extent reaches this number: no device has as many bytes, and messages can still carry it."""


def integer(value: Any) -> int | None:
    """Return an integer of any library as an int; None if the value is no integer below LIMIT."""
    if type(value) is int:  # the usual case, and a gemm has many integers
        return value if -LIMIT < value < LIMIT else None
    try:
        number = int(value.__index__())
    except (AttributeError, TypeError):
        return None
    return number if abs(number) < LIMIT and not isinstance(value, bool) else None


def integers(value: Any) -> tuple[int, ...] | None:
    """Return one integer or several as a tuple; None for any other value."""
    if type(value) is int:
        return (value,) if -LIMIT < value < LIMIT else None
    given = tuple(integer(n) for n in (value if isinstance(value, Iterable) else (value,)))
    return None if None in given else tuple(n for n in given if n is not None)


def items(what: str, values: Any) -> tuple[Any, ...]:
    """Return the values of an iterable.

    Raises:
        InvalidGraph: the value is no iterable.
    """
    try:
        return tuple(values)
    except TypeError as error:
        raise InvalidGraph(f"{what} takes a list, not one {type(values).__name__}") from error


def check_name(what: str, name: Any) -> str:
    """Return a name that every encoding can carry and C can read: non-empty, valid Unicode, no NUL.

    Raises:
        InvalidGraph: the name is none of that kind.
    """
    if not is_text(name) or not name or "\0" in name:
        raise InvalidGraph(f"{what} is a non-empty string of Unicode characters without NUL, not {name!r}")
    return str(name)


def is_text(value: Any) -> bool:
    """Return True for a string that UTF-8 can carry."""
    return isinstance(value, str) and (value.isascii() or _is_unicode(value))


def _is_unicode(name: str) -> bool:
    """Return True if a string has no half of a surrogate pair."""
    return name.encode(errors="replace").decode() == name


@dataclass(frozen=True, slots=True, init=False)
class Buffer:
    """A named array on the device.

    Args:
        name: the name of the input or output.
        shape: elements in each dimension, C order; () is a single element. An int is one dimension.
        dtype: a name of `kaas.ktask.dtypes.DTYPE_BYTES` or anything that NumPy takes for one. An input of a
            "uint8" buffer may have any dtype.
        init: "zero" clears the buffer once in each request, before the first iteration; it is then never an input.

    `nbytes` is the size in bytes that follows from shape and dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: str | None
    nbytes: int = field(init=False, repr=False, compare=False)

    def __init__(self, name: str, shape: int | Sequence[int], dtype: Any = "uint8", *, init: str | None = None) -> None:
        check_name("a buffer's name", name)
        known = dtype_name(dtype)
        if known is None:
            raise InvalidGraph(f"buffer {name!r}: no dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}", buffer=name)
        if init not in (None, "zero"):
            raise InvalidGraph(f'buffer {name!r}: init is None or "zero", not {init!r}', buffer=name)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "shape", _shape(name, shape))
        object.__setattr__(self, "dtype", known)
        object.__setattr__(self, "init", init)
        object.__setattr__(self, "nbytes", math.prod(self.shape) * DTYPE_BYTES[known])


def _shape(name: str, shape: int | Sequence[int]) -> tuple[int, ...]:
    dimensions = integers(shape)
    if dimensions is None or any(n < 0 for n in dimensions) or math.prod(dimensions) * 16 >= LIMIT:
        raise InvalidGraph(f"buffer {name!r}: a shape is non-negative integers, not {shape!r}", buffer=name)
    return dimensions


# --- arguments


@dataclass(frozen=True, slots=True)
class Access:
    """A pointer to a buffer, offset_bytes into it. Use In, Out or InOut, which say if the kernel reads or writes it."""

    buffer: Buffer
    offset_bytes: int = 0

    reads: ClassVar[bool] = False
    writes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not isinstance(self.buffer, Buffer):
            raise InvalidGraph(f"{type(self).__name__} takes a kaas.Buffer, not {self.buffer!r}")
        if self.offset_bytes == 0 and type(self.offset_bytes) is int:
            return
        offset_bytes = integer(self.offset_bytes)
        if offset_bytes is None or not 0 <= offset_bytes < max(1, self.buffer.nbytes):
            raise InvalidGraph(
                f"offset {self.offset_bytes!r} lies outside buffer {self.buffer.name!r} of {self.buffer.nbytes} bytes",
                buffer=self.buffer.name,
            )
        object.__setattr__(self, "offset_bytes", offset_bytes)


@dataclass(frozen=True, slots=True)
class In(Access):
    """The kernel reads the buffer."""

    reads: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Out(Access):
    """The kernel writes the *whole* buffer, whatever it held before.

    A kernel that writes a part of a buffer says InOut. The bytes that no kernel of a request has written are zero in an
    output, and undefined in a temporary without `init="zero"`.
    """

    writes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class InOut(Access):
    """The kernel reads the buffer and writes it, or writes only a part of it."""

    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Literal:
    """A value fixed in the kTask, by its bytes. kaas.i8 ... kaas.boolean make one; kaas.Null is the null pointer."""

    kind: str
    data: bytes

    def __post_init__(self) -> None:
        expected = POINTER_BYTES if self.kind == "null" else KIND_BYTES.get(self.kind)
        if not isinstance(self.data, bytes) or len(self.data) != expected:
            raise InvalidLiteral(f"{self.data!r} are no bytes of {self.kind}", kind=self.kind, value=self.data)

    def __repr__(self) -> str:
        return "Null" if self.kind == "null" else f"{self.kind}({decode(self.kind, self.data)!r})"


Null = Literal("null", bytes(POINTER_BYTES))


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value chosen at each invocation, outside the plan's key. kind is one of `kaas.ktask.dtypes.KIND_BYTES`."""

    name: str
    kind: str

    def __post_init__(self) -> None:
        check_name("a scalar's name", self.name)
        if not isinstance(self.kind, str) or self.kind not in KIND_BYTES:
            raise InvalidGraph(f"scalar {self.name!r}: no kind {self.kind!r}; {which_kinds(self.kind)}")


@dataclass(frozen=True, slots=True, init=False)
class Pointers:
    """A table of device pointers, passed by its address, as batched BLAS calls take it (`const float *const *`)."""

    entries: tuple[Access, ...]

    def __init__(self, entries: Iterable[Access]) -> None:
        entries = items("Pointers", entries)
        if not entries or not all(isinstance(entry, Access) for entry in entries):
            raise InvalidGraph("Pointers takes one or more of In, Out and InOut")
        object.__setattr__(self, "entries", entries)


_BYTES = (bytes, bytearray, memoryview)
_POINTERS = (Access, Pointers)
_offset: Any = itemgetter(0)
_ZEROS = {size: bytes(size) for size in {POINTER_BYTES, *KIND_BYTES.values()}}


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
        power = integer(align)
        if power is None or power < 1 or power & (power - 1):
            raise InvalidGraph(f"a struct's alignment is a power of two, not {align!r}")
        if not isinstance(blob, _BYTES) or not len(blob):
            raise InvalidGraph(f"a struct is one or more bytes, not {blob!r}")
        targets, chosen = _fields("pointers", pointers), _fields("scalars", scalars)
        for _, target in targets:
            if not isinstance(target, _POINTERS):
                raise InvalidGraph("pointer fields of a struct are In, Out, InOut or Pointers")
        for _, scalar in chosen:
            if not isinstance(scalar, Scalar):
                raise InvalidGraph("scalar fields of a struct are kaas.Scalar")
        spans = [(offset, POINTER_BYTES) for offset, _ in targets]
        if chosen:
            spans = sorted(spans + [(offset, KIND_BYTES[scalar.kind]) for offset, scalar in chosen])
        put = object.__setattr__
        put(self, "blob", _clear(bytes(blob), spans))
        put(self, "pointers", targets)
        put(self, "scalars", chosen)
        put(self, "align", power)


def _fields(what: str, targets: Any) -> tuple[tuple[int, Any], ...]:
    """Return pairs of an offset and the argument that is patched there, sorted by offset."""
    if targets is None:
        return ()
    if type(targets) is not dict and not isinstance(targets, Mapping):  # the test for dict is quicker
        raise _invalid_fields(what, targets)
    found = []
    for offset, target in targets.items():
        at = integer(offset)
        if at is None:
            raise _invalid_fields(what, targets)
        found.append((at, target))
    if len(found) > 1:
        found.sort(key=_offset)
    return tuple(found)


def _invalid_fields(what: str, targets: Any) -> InvalidGraph:
    return InvalidGraph(f"{what} of a struct maps byte offsets to what is patched there, not {targets!r}")


def _clear(blob: bytes, spans: list[tuple[int, int]]) -> bytes:
    """Return a blob with sorted spans (offset, bytes) zeroed; they must lie inside and apart."""
    cleared, limit, end = bytearray(blob), len(blob), 0
    for offset, size in spans:
        if offset < end or offset + size > limit:
            raise _outside(offset, size, limit, end)
        end = offset + size
        cleared[offset:end] = _ZEROS[size]
    return bytes(cleared)


def _outside(offset: int, size: int, limit: int, end: int) -> StructFieldOutside:
    why = "overlaps the field before it" if 0 <= offset < end else "does not lie inside it"
    return StructFieldOutside(
        f"the field of {size} bytes at {offset} of a struct of {limit} bytes {why}",
        offset_bytes=offset,
        field_bytes=size,
        struct_bytes=limit,
    )


Argument = Access | Literal | Scalar | Struct | Pointers

ARGUMENTS = (Struct, Access, Literal, Scalar, Pointers)
"""The same types for isinstance, which is faster with a tuple than with a union."""


def accesses(argument: Argument) -> Iterator[Access]:
    """Yield every In, Out and InOut inside an argument."""
    match argument:
        case Access():
            yield argument
        case Pointers():
            yield from argument.entries
        case Struct():
            for _, target in argument.pointers:
                yield from accesses(target)


def scalars_of(argument: Argument) -> Iterator[Scalar]:
    """Yield every Scalar inside an argument."""
    match argument:
        case Scalar():
            yield argument
        case Struct():
            yield from (scalar for _, scalar in argument.scalars)


def argument_bytes(argument: Argument) -> int:
    """Return the bytes of an argument in the kernel's parameter space."""
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
    """Return a literal of a kind: `kaas.i32(5)` is `literal("i32", 5)`.

    Raises:
        InvalidLiteral: a value of the wrong type or out of the kind's range.
    """
    return Literal(kind, encode(kind, value))


def _literal_function(kind: str, what: str, example: str) -> Callable[[Any], Literal]:
    def make(value: Any) -> Literal:
        return literal(kind, value)

    make.__name__ = make.__qualname__ = kind
    make.__doc__ = f"""A kernel's by-value argument that is {what}, fixed in the kTask: `kaas.{kind}({example})`.

    `kaas.Scalar(name, "{kind}")` leaves the value to each invocation.

    Raises:
        InvalidLiteral: value is no such number, or out of range.
    """
    return make


i8 = _literal_function("i8", "a signed integer of 8 bits", "-5")
i16 = _literal_function("i16", "a signed integer of 16 bits", "-5")
i32 = _literal_function("i32", "a signed integer of 32 bits, C's int", "-5")
i64 = _literal_function("i64", "a signed integer of 64 bits, C's long long", "-5")
u8 = _literal_function("u8", "an unsigned integer of 8 bits", "5")
u16 = _literal_function("u16", "an unsigned integer of 16 bits", "5")
u32 = _literal_function("u32", "an unsigned integer of 32 bits, C's unsigned int", "5")
u64 = _literal_function("u64", "an unsigned integer of 64 bits, C's unsigned long long or size_t", "5")
f16 = _literal_function("f16", "a floating-point number of 16 bits, CUDA's __half", "0.5")
bf16 = _literal_function("bf16", "a floating-point number of 16 bits, CUDA's __nv_bfloat16", "0.5")
f32 = _literal_function("f32", "a floating-point number of 32 bits, C's float", "0.5")
f64 = _literal_function("f64", "a floating-point number of 64 bits, C's double", "0.5")
c64 = _literal_function("c64", "a complex number of two floats, CUDA's cuFloatComplex", "1 + 2j")
c128 = _literal_function("c128", "a complex number of two doubles, CUDA's cuDoubleComplex", "1 + 2j")
boolean = _literal_function("boolean", "a truth value, C's bool", "True")
