"""Signatures of kernels, as compilers give them: their parameters, and the arguments that the code takes for these."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kaas.errors import InvalidGraph, InvalidLiteral
from kaas.ktask.arguments import Access, Argument, Buffer, Literal, Null, Out, Pointers, Scalar, Struct, literal
from kaas.ktask.dtypes import DTYPE_BYTES, KIND_BYTES, decode, is_integer_kind


@dataclass(frozen=True, slots=True)
class PointerParameter:
    """A parameter that takes In, Out, InOut, Pointers or Null.

    Fields:
        dtype: the dtype of the buffer; None for any. divisor: it divides the address in bytes, as the code relies on.
    """

    name: str
    dtype: str | None = None
    divisor: int = 1

    def expanded(self, given: Any) -> tuple[Argument, ...]:
        """Return the kernel's arguments for a given one; raise InvalidGraph if it does not fit."""
        if given == Null or isinstance(given, Pointers):
            return (given,)
        access = _access(self.name, given)
        if self.dtype is not None and access.buffer.dtype not in (self.dtype, "uint8"):
            raise _wrong(self.name, f"points to {self.dtype}, not to {access.buffer.dtype}", access.buffer)
        if access.offset_bytes % self.divisor:
            raise _wrong(
                self.name, f"is compiled for addresses that {self.divisor} divides; this offset is not", access.buffer
            )
        return (access,)


@dataclass(frozen=True, slots=True)
class NumberParameter:
    """A parameter that takes a number: a Literal or Scalar of its kind, or any Python number that the kind can hold.

    Fields:
        divisor: it divides the value. The code relies on this, so that a Scalar cannot be given.
    """

    name: str
    kind: str
    divisor: int = 1

    def expanded(self, given: Any) -> tuple[Argument, ...]:
        """Return the kernel's arguments for a given one; raise InvalidGraph if it does not fit."""
        match given:
            case Scalar():
                if not _fits(given.kind, self.kind):
                    raise _wrong(self.name, f"is {self.kind}, and scalar {given.name!r} is {given.kind}")
                if self.divisor > 1:
                    raise _wrong(self.name, f"is compiled for multiples of {self.divisor}, which no Scalar promises")
                return (given,)
            case Literal():
                if not _fits(given.kind, self.kind):
                    raise _wrong(self.name, f"is {self.kind}, and {given!r} is not")
                value = given
            case Access() | Struct() | Pointers():
                raise _wrong(self.name, f"takes a number ({self.kind}), not {type(given).__name__}")
            case _:
                value = _literal(self.name, self.kind, given)
        if self.divisor > 1 and decode(value.kind, value.data) % self.divisor:
            raise _wrong(self.name, f"is compiled for multiples of {self.divisor}, which {value!r} is not")
        return (value,)


@dataclass(frozen=True, slots=True)
class ComplexParameter:
    """A parameter that takes a complex number, which the code takes as two: its real and its imaginary part."""

    name: str
    kind: str

    def expanded(self, given: Any) -> tuple[Argument, ...]:
        """Return the kernel's arguments for a given one; raise InvalidGraph if it does not fit."""
        if isinstance(given, Access | Struct | Pointers | Scalar):
            raise _wrong(self.name, f"takes a fixed number ({self.kind}), not {type(given).__name__}")
        if isinstance(given, Literal) and given.kind != self.kind:
            raise _wrong(self.name, f"is {self.kind}, and {given!r} is not")
        value = given if isinstance(given, Literal) else _literal(self.name, self.kind, given)
        half = {"c64": "f32", "c128": "f64"}[self.kind]
        data = value.data
        return Literal(half, data[: len(data) // 2]), Literal(half, data[len(data) // 2 :])


@dataclass(frozen=True, slots=True)
class ArrayParameter:
    """A parameter that takes a whole array: the code gets its shape and strides too, as numba's struct has them.

    The struct is (meminfo, parent, elements, bytes of one, data, shape, strides in bytes). An offset of In, Out or
    InOut skips whole rows: the array is what follows.
    """

    name: str
    dtype: str
    dimensions: int

    def expanded(self, given: Any) -> tuple[Argument, ...]:
        """Return the kernel's arguments for a given one; raise InvalidGraph if it does not fit."""
        access = _access(self.name, given)
        buffer = access.buffer
        if buffer.dtype != self.dtype:
            raise _wrong(self.name, f"is an array of {self.dtype}, not of {buffer.dtype}", buffer)
        if len(buffer.shape) != self.dimensions:
            raise _wrong(self.name, f"has {self.dimensions} dimensions, not {len(buffer.shape)}", buffer)
        itemsize = DTYPE_BYTES[self.dtype]
        shape = self._shape(access)
        strides = [itemsize * math.prod(shape[position + 1 :]) for position in range(len(shape))]
        numbers = [literal("i64", number) for number in (math.prod(shape), itemsize, *shape, *strides)]
        return Null, Null, *numbers[:2], access, *numbers[2:]

    def _shape(self, access: Access) -> tuple[int, ...]:
        shape = access.buffer.shape
        if not access.offset_bytes:
            return shape
        row_bytes = DTYPE_BYTES[self.dtype] * math.prod(shape[1:])
        if not shape or access.offset_bytes % row_bytes:
            raise _wrong(self.name, f"is an array: an offset skips rows of {row_bytes} bytes", access.buffer)
        return (shape[0] - access.offset_bytes // row_bytes, *shape[1:])


Parameter = PointerParameter | NumberParameter | ComplexParameter | ArrayParameter


@dataclass(frozen=True, slots=True)
class ScratchParameter:
    """Scratch memory that the code takes after its parameters: bytes for each block; with 0, a null pointer."""

    bytes_per_block: int

    def argument(self, symbol: str, blocks: int) -> Argument:
        """Return the argument for a launch of this number of blocks."""
        if not self.bytes_per_block:
            return Null
        return Out(Buffer(f"{symbol}.scratch{self.bytes_per_block}x{blocks}", self.bytes_per_block * blocks))


@dataclass(frozen=True, slots=True)
class KernelSignature:
    """A kernel of a library, as its compiler describes it. It counts in no hash: it only helps to write launches.

    Fields:
        symbol: the name in the code image.
        name: the name for users: a C++ name such as "scale<float>", or that of a Python function.
        block, shared_bytes: those of every launch, where the code fixes them.
        parameters: those that a user gives, in order; None if they are not known: arguments then pass as they are.
        scratch: the memory that follows the parameters.
    """

    symbol: str
    name: str
    block: tuple[int, int, int] | None = None
    shared_bytes: int | None = None
    parameters: tuple[Parameter, ...] | None = None
    scratch: tuple[ScratchParameter, ...] = ()


def shown_name(entries: Iterable[KernelSignature], symbol: str) -> str:
    """Return the name of a kernel for users: the compiler's, if one of the signatures has it, or else the symbol."""
    return next((entry.name for entry in entries if entry.symbol == symbol), symbol)


def _access(name: str, given: Any) -> Access:
    if not isinstance(given, Access):
        raise _wrong(name, f"takes a buffer in In, Out or InOut, not {_shown(given)}")
    return given


def _shown(given: Any) -> str:
    return f"a bare buffer {given.name!r}" if isinstance(given, Buffer) else repr(given)


def _literal(name: str, kind: str, given: Any) -> Literal:
    try:
        return literal(kind, given)
    except InvalidLiteral as error:
        raise InvalidLiteral(f"parameter {name!r}: {error.message}", kind=kind, value=given) from error


def _fits(kind: str, wanted: str) -> bool:
    """Return True if bytes of a kind pass for those of another: integers of one size do, signed or not."""
    both_integers = is_integer_kind(kind) and is_integer_kind(wanted)
    return kind == wanted or (both_integers and KIND_BYTES[kind] == KIND_BYTES[wanted])


def _wrong(name: str, why: str, buffer: Buffer | None = None) -> InvalidGraph:
    named = {} if buffer is None else {"buffer": buffer.name}
    return InvalidGraph(f"parameter {name!r} {why}" + (f" (buffer {buffer.name!r})" if buffer else ""), **named)
