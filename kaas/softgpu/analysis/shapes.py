"""How the value of a register differs between the lanes of a warp, and how arithmetic carries that along.

Most addresses and loop counters of a kernel are the same in all lanes or rise by a constant from lane to lane. Such a
register is held as one or a few scalars: it costs less to compute, and an access through it needs no gather.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

WARP = 32
_SMALL = 1 << 31


@dataclass(frozen=True, slots=True)
class Affine:
    """In each aligned group of `segment` lanes (32, 16 or 8), lane i has base[group] + step * (i % segment), exactly,
    modulo the width of the register. align: a power of two that divides every base. value: the constant, if it is one.
    limit: all values are known to be in [0, limit); 0: unknown."""

    segment: int
    step: int
    align: int = 1
    value: int | None = None
    limit: int = 0

    @property
    def groups(self) -> int:
        return WARP // self.segment


@dataclass(frozen=True, slots=True)
class Wide:
    """A 64-bit value made from a 32-bit Affine: lane i has extend32(base[group] + step * (i % segment)) * scale +
    offset[group]. The 32-bit sum may wrap between two lanes, so this is not Affine in 64 bits."""

    segment: int
    step: int
    signed: bool
    scale: int

    @property
    def groups(self) -> int:
        return WARP // self.segment


@dataclass(frozen=True, slots=True)
class Varying:
    """Held as a 32-wide vector."""


Shape = Affine | Wide | Varying
VARYING = Varying()
UNIFORM = Affine(WARP, 0)


def constant(value: int) -> Affine:
    return Affine(WARP, 0, _power(value), value, value + 1 if 0 <= value < _SMALL else 0)


def is_uniform(shape: Shape) -> bool:
    """One value for the whole warp."""
    return isinstance(shape, Affine) and shape.segment == WARP and shape.step == 0


def is_flat(shape: Shape) -> bool:
    """One value for each group."""
    return isinstance(shape, Affine) and shape.step == 0


def _power(value: int) -> int:
    """The largest power of two that divides value, at most 2**31."""
    return min(value & -value, _SMALL) if value else _SMALL


def narrow(shape: Affine, segment: int) -> Affine:
    """The same value in smaller groups."""
    if segment == shape.segment:
        return shape
    align = min(shape.align, _power(shape.step * segment))
    return replace(shape, segment=segment, align=align)


def join(a: Shape | None, b: Shape | None) -> Shape | None:
    """The narrowest shape that holds both; None is no value yet."""
    if a is None or a == b:
        return b
    if b is None:
        return a
    match a, b:
        case Affine(), Affine() if a.step == b.step:
            segment = min(a.segment, b.segment)
            a, b = narrow(a, segment), narrow(b, segment)
            value = a.value if a.value == b.value else None
            return Affine(segment, a.step, min(a.align, b.align), value)
        case Wide(), Wide() if (a.step, a.signed, a.scale) == (b.step, b.signed, b.scale):
            return replace(a, segment=min(a.segment, b.segment))
    return VARYING


def flat(shapes: list[Shape]) -> Shape:
    """The result of any operation that is the same in lanes with the same inputs."""
    segment = WARP
    for shape in shapes:
        if not isinstance(shape, Affine) or shape.step:
            return VARYING
        segment = min(segment, shape.segment)
    return Affine(segment, 0)


def add(a: Shape, b: Shape, sign: int = 1) -> Shape:
    """a + sign * b."""
    if isinstance(a, Wide) and is_flat(b):
        assert isinstance(b, Affine)
        return replace(a, segment=min(a.segment, b.segment))
    if isinstance(b, Wide) and is_flat(a) and sign == 1:
        return add(b, a)
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return VARYING
    segment = min(a.segment, b.segment)
    a, b = narrow(a, segment), narrow(b, segment)
    if a.value is not None and b.value is not None:
        return constant(a.value + sign * b.value)
    limit = a.limit + b.limit - 1 if a.limit and b.limit and sign == 1 else 0
    return _checked(Affine(segment, a.step + sign * b.step, min(a.align, b.align), None, limit))


def multiply(a: Shape, b: Shape) -> Shape:
    if isinstance(b, Affine) and b.value is not None:
        factor = b.value
        if isinstance(a, Wide):
            return replace(a, scale=a.scale * factor) if 0 < abs(a.scale * factor) < _SMALL else VARYING
        if isinstance(a, Affine):
            if a.value is not None:
                return constant(a.value * factor)
            limit = (a.limit - 1) * factor + 1 if a.limit and factor > 0 else 0
            align = min(a.align * _power(factor), _SMALL)
            return _checked(Affine(a.segment, a.step * factor, align, None, limit))
        return VARYING
    if isinstance(a, Affine) and a.value is not None:
        return multiply(b, a)
    shape = flat([a, b])
    if isinstance(shape, Affine) and isinstance(a, Affine) and isinstance(b, Affine):
        return replace(shape, align=min(a.align * b.align, _SMALL))
    return shape


def _checked(shape: Affine) -> Shape:
    if abs(shape.step) >= _SMALL:
        return VARYING
    return shape if shape.limit < _SMALL else replace(shape, limit=0)


def shift_right(a: Shape, b: Shape) -> Shape:
    """Both kinds: a base aligned to the group has its lane numbers in its low bits, without carries."""
    if not isinstance(a, Affine) or not isinstance(b, Affine) or b.value is None:
        return flat([a, b])
    size = 1 << max(0, min(b.value, 64))
    if a.limit and a.limit <= size:
        return constant(0)
    limit = (a.limit - 1) // size + 1 if a.limit else 0
    if a.step == 0:
        return Affine(a.segment, 0, max(1, a.align // size), None, limit)
    segment = min(a.segment, size)
    if a.step == 1 and segment >= 8 and a.align >= segment:
        return Affine(segment, 0, 1, None, limit)
    return VARYING


def bit_and(a: Shape, b: Shape) -> Shape:
    if isinstance(a, Affine) and a.value is not None and not (isinstance(b, Affine) and b.value is not None):
        a, b = b, a
    if not isinstance(a, Affine) or not isinstance(b, Affine) or b.value is None or a.step == 0:
        return flat([a, b])
    mask = b.value
    low = mask > 0 and mask & (mask + 1) == 0
    size = mask + 1 if low else _power(mask)
    high = not low and ((mask < 0 and -mask == size) or (mask + size) in (1 << 32, 1 << 64))
    segment = min(a.segment, size)
    if a.step != 1 or segment < 8 or a.align < segment or not (low or high):
        return VARYING
    if low:
        return Affine(segment, 1, segment, None, size if size < _SMALL else 0)
    return Affine(segment, 0, size, None, a.limit)


def bit_or(a: Shape, b: Shape) -> Shape:
    """An addition where no bit is set on both sides."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        apart = (a.limit and a.limit <= b.align and not b.step) or (b.limit and b.limit <= a.align and not a.step)
        return add(a, b) if apart else flat([a, b])
    return flat([a, b])


def widen(a: Shape, signed: bool) -> Shape:
    """A 32-bit integer as 64 bits."""
    if isinstance(a, Affine) and a.step:
        return a if a.limit else Wide(a.segment, a.step, signed, 1)
    if isinstance(a, Affine) and a.value is not None:
        value = a.value & 0xFFFFFFFF
        return constant(value - (1 << 32) if signed and value >> 31 else value)
    return a if is_flat(a) else VARYING


def truncate(a: Shape) -> Shape:
    """A 64-bit integer as 32 bits."""
    if isinstance(a, Wide):
        return _checked(Affine(a.segment, a.step * a.scale))
    if isinstance(a, Affine):
        return a
    return VARYING


def thread_index(axis: int, block: tuple[int, int, int]) -> Shape:
    """%tid.x, .y or .z in a block of this shape; lanes beyond the block are dead and may hold anything."""
    extent = block[axis]
    if extent == 1:
        return constant(0)
    below = 1
    for size in block[:axis]:
        below *= size
    total = block[0] * block[1] * block[2]
    for segment in (32, 16, 8):
        if below % segment == 0:
            return Affine(segment, 0, 1, None, extent)
    if below == 1:
        if extent == total:  # nothing wraps inside the block
            return Affine(32, 1, 32, None, (extent + 31) // 32 * 32)
        for segment in (32, 16, 8):
            if extent % segment == 0:
                return Affine(segment, 1, segment, None, extent)
    return VARYING
