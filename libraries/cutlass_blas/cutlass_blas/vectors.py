"""Vectors within buffers: the factor and the result of `gemv`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import index
from typing import Any

from cutlass_blas.errors import InvalidOperand
from cutlass_blas.operands import LIMIT
from kaas import Buffer


@dataclass(frozen=True, slots=True, init=False)
class Vector:
    """A part of a buffer as a vector, or as a batch of vectors.

    Element i of entry b is the buffer's element `offset + i * inc + b * stride`, for any shape of the buffer.

    Args:
        buffer: of any shape.
        size: the number of elements.
        inc: from one element to the next; a negative one goes backwards from `offset`, as NumPy's `x[::-1]` does.
        offset: of element 0.
        count, stride: entries of a batch, and elements from one to the next (`size * abs(inc)` unless given).

    Raises:
        InvalidOperand: it does not lie within its buffer, or has a stride and no count.
    """

    buffer: Buffer
    size: int
    inc: int
    offset: int
    count: int | None
    stride: int

    def __init__(
        self,
        buffer: Buffer,
        size: int,
        inc: int = 1,
        offset: int = 0,
        *,
        count: int | None = None,
        stride: int | None = None,
    ) -> None:
        if not isinstance(buffer, Buffer):
            raise InvalidOperand(f"a Vector takes a kaas.Buffer, not {buffer!r}")
        optional = {name: value for name, value in (("count", count), ("stride", stride)) if value is not None}
        given = {"size": size, "inc": inc, "offset": offset} | optional
        numbers = {name: _integer(buffer, name, value) for name, value in given.items()}
        for name in ("size", "offset", "count", "stride"):
            if numbers.get(name, 0) < 0:
                raise _wrong(buffer, f"{name} is not negative: {numbers[name]}")
        if numbers["inc"] == 0:
            raise _wrong(buffer, "inc is not 0")
        if stride is not None and count is None:
            raise _wrong(buffer, f"a stride of {stride} says nothing without a count of vectors")
        object.__setattr__(self, "buffer", buffer)
        object.__setattr__(self, "size", numbers["size"])
        object.__setattr__(self, "inc", numbers["inc"])
        object.__setattr__(self, "offset", numbers["offset"])
        object.__setattr__(self, "count", numbers.get("count"))
        object.__setattr__(self, "stride", numbers.get("stride", numbers["size"] * abs(numbers["inc"])))
        self._check()

    def _check(self) -> None:
        elements = _elements(self.buffer)
        along = (self.size - 1) * self.inc
        last = self.offset + (self.entries - 1) * self.stride
        if not self.size or not self.entries:
            inside = self.offset <= elements and self.stride < LIMIT
        else:
            inside = self.offset + min(0, along) >= 0 and last + max(0, along) < elements
        if not inside:
            raise _wrong(self.buffer, f"{self.words} does not lie within its {elements} elements")

    @property
    def entries(self) -> int:
        """The number of vectors, 1 without a batch."""
        return 1 if self.count is None else self.count

    @property
    def words(self) -> str:
        """A description for error messages."""
        batch = "" if self.count is None else f", {self.count} of them {self.stride} apart"
        return f"a vector of {self.size} with inc {self.inc} from {self.offset} on{batch}"

    @property
    def shape(self) -> tuple[int, ...]:
        """(size,), or (count, size) for a batch."""
        return (self.size,) if self.count is None else (self.count, self.size)

    @property
    def covers(self) -> bool:
        """True if it has every element of the buffer, provided that it does not overlap itself."""
        return self.size * self.entries == _elements(self.buffer)

    @property
    def overlaps(self) -> bool:
        """True if two of its elements may have one address."""
        steps = sorted((step, n) for step, n in ((abs(self.inc), self.size), (self.stride, self.entries)) if n != 1)
        reached = 0
        for step, n in steps if self.size * self.entries else ():
            if step <= reached:
                return True
            reached += step * (n - 1)
        return False


def vector(name: str, given: Any) -> Vector:
    """Return the vector for an argument: a Vector, a buffer of one dimension, or of two for a batch.

    Raises:
        InvalidOperand: none of these.
    """
    match given:
        case Vector():
            return given
        case Buffer(shape=(size,)):
            return Vector(given, size)
        case Buffer(shape=(count, size)):
            return Vector(given, size, count=count, stride=size)
        case Buffer():
            why = f"{name} is a vector, or a batch of them: not {given.name!r} of shape {given.shape}"
            raise InvalidOperand(why, operand=name, buffer=given.name, shape=given.shape)
    raise InvalidOperand(f"{name} is a kaas.Buffer or a Vector, not {given!r}", operand=name)


def _elements(buffer: Buffer) -> int:
    return math.prod(buffer.shape)


def _integer(buffer: Buffer, name: str, value: Any) -> int:
    try:
        number = index(value)
    except TypeError as error:
        raise _wrong(buffer, f"{name} is an integer, not {value!r}") from error
    if isinstance(value, bool) or abs(number) >= LIMIT:
        raise _wrong(buffer, f"{name} is an integer below 2**62, not {value!r}")
    return number


def _wrong(buffer: Buffer, why: str) -> InvalidOperand:
    return InvalidOperand(f"buffer {buffer.name!r}: {why}", buffer=buffer.name, shape=buffer.shape)
