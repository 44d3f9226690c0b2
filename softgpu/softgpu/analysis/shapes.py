"""Shapes: how the value of a register differs between the lanes of a warp, and how arithmetic changes that.

Most addresses and loop counters of a kernel are the same in all lanes or rise by a constant from lane to lane. The
compiler holds such a register as one or a few scalars: they cost less to compute, and an access through them needs no
gather.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

WARP = 32
_SMALL = 1 << 31
_BITS_64 = 1 << 64


@dataclass(frozen=True, slots=True)
class Affine:
    """A base for each group of lanes, plus constant offsets.

    In each aligned group of `segment` lanes (32, 16 or 8), lane i has base[group] + offsets[i % segment], exactly,
    modulo the width of the register; offsets[0] is 0. align: a power of two that divides every base. value: the
    constant, if the value is one. limit: all values are in [0, limit); 0: unknown.
    """

    offsets: tuple[int, ...]
    align: int = 1
    value: int | None = None
    limit: int = 0

    @property
    def segment(self) -> int:
        """Return the number of lanes in a group."""
        return len(self.offsets)

    @property
    def groups(self) -> int:
        """Return the number of groups in a warp."""
        return WARP // self.segment


@dataclass(frozen=True, slots=True)
class Wide:
    """A 64-bit value made from a 32-bit Affine.

    Lane i has extend32(base[group] + offsets[i % segment]) * scale + offset[group]. The 32-bit sum may wrap between two
    lanes, so this is not Affine in 64 bits.
    """

    offsets: tuple[int, ...]
    signed: bool
    scale: int

    @property
    def segment(self) -> int:
        """Return the number of lanes in a group."""
        return len(self.offsets)

    @property
    def groups(self) -> int:
        """Return the number of groups in a warp."""
        return WARP // self.segment


@dataclass(frozen=True, slots=True)
class Varying:
    """A value that is held as a vector of 32."""


Shape = Affine | Wide | Varying
VARYING = Varying()
SEGMENTS = (32, 16, 8)


def ramp(segment: int, step: int) -> tuple[int, ...]:
    """Return the offsets of `segment` lanes that rise by `step`."""
    return tuple(step * lane for lane in range(segment))


def level(segment: int) -> Affine:
    """Return the shape of one unknown value for each group."""
    return Affine((0,) * segment)


UNIFORM = level(WARP)


def constant(value: int) -> Affine:
    """Return the shape of a known value, the same in all lanes.

    Beyond 64 bits only the low ones count: no register has more, and each product of a chain would double the bits.
    """
    if not -_BITS_64 <= value < _BITS_64:
        value %= _BITS_64
    return Affine(UNIFORM.offsets, _power(value), value, value + 1 if 0 <= value < _SMALL else 0)


def is_uniform(shape: Shape) -> bool:
    """Return True for one value in the whole warp."""
    return isinstance(shape, Affine) and shape.segment == WARP and is_flat(shape)


def is_flat(shape: Shape) -> bool:
    """Return True for one value in each group."""
    return isinstance(shape, Affine) and not any(shape.offsets)


def _power(value: int) -> int:
    """Return the largest power of two that divides value, at most 2**31."""
    return min(value & -value, _SMALL) if value else _SMALL


def _narrow_offsets(offsets: tuple[int, ...], segment: int) -> tuple[int, ...] | None:
    """Return the offsets of smaller groups; None if they differ between groups."""
    if len(offsets) <= segment:
        return offsets if len(offsets) == segment else None
    first = offsets[:segment]
    for start in range(segment, len(offsets), segment):
        if any(offsets[start + lane] - offsets[start] != first[lane] for lane in range(segment)):
            return None
    return first


def narrow(shape: Affine, segment: int) -> Affine | None:
    """Return the same value in smaller groups; None if they cannot hold it."""
    if segment == shape.segment:
        return shape
    offsets = _narrow_offsets(shape.offsets, segment)
    if offsets is None:
        return None
    align = min(shape.align, *(_power(start) for start in shape.offsets[::segment]))
    return replace(shape, offsets=offsets, align=align)


def _narrow_wide(shape: Wide, segment: int) -> Wide | None:
    offsets = _narrow_offsets(shape.offsets, segment)
    return None if offsets is None else replace(shape, offsets=offsets)


def flattened(shape: Shape) -> Affine | None:
    """Return the shape with the largest groups that have one value each; None if there is none."""
    if isinstance(shape, Affine):
        for segment in SEGMENTS:
            fitting = narrow(shape, segment)
            if fitting is not None and is_flat(fitting):
                return fitting
    return None


def _in_common(a: Affine, b: Affine) -> Iterator[tuple[Affine, Affine]]:
    """Yield both shapes in groups of the same size, the largest first."""
    for segment in SEGMENTS:
        x, y = narrow(a, segment), narrow(b, segment)
        if x is not None and y is not None:
            yield x, y


def join(a: Shape | None, b: Shape | None) -> Shape | None:
    """Return the narrowest shape that holds both; None is no value yet."""
    if a is None or a == b:
        return b
    if b is None:
        return a
    match a, b:
        case Affine(), Affine():
            value = a.value if a.value == b.value else None
            for x, y in _in_common(a, b):
                if x.offsets == y.offsets:
                    return Affine(x.offsets, min(x.align, y.align), value)
        case Wide(), Wide() if (a.signed, a.scale) == (b.signed, b.scale):
            for segment in SEGMENTS:
                one, other = _narrow_wide(a, segment), _narrow_wide(b, segment)
                if one is not None and one == other:
                    return one
    return VARYING


def flat(shapes: list[Shape]) -> Shape:
    """Return the shape of an operation's result that is the same in lanes with the same inputs."""
    segment = WARP
    for shape in shapes:
        fitting = flattened(shape)
        if fitting is None:
            return VARYING
        segment = min(segment, fitting.segment)
    return level(segment)


def add(a: Shape, b: Shape, sign: int = 1) -> Shape:
    """Return the shape of a + sign * b."""
    if isinstance(a, Wide):
        fitting = flattened(b)
        segment = min(a.segment, fitting.segment) if fitting else 0
        return _narrow_wide(a, segment) or VARYING if segment else VARYING
    if isinstance(b, Wide):
        return add(b, a) if sign == 1 else VARYING
    if not isinstance(a, Affine) or not isinstance(b, Affine):
        return VARYING
    if a.value is not None and b.value is not None:
        return constant(a.value + sign * b.value)
    limit = a.limit + b.limit - 1 if a.limit and b.limit and sign == 1 else 0
    for x, y in _in_common(a, b):
        offsets = tuple(i + sign * j for i, j in zip(x.offsets, y.offsets, strict=True))
        return _checked(Affine(offsets, min(x.align, y.align), None, limit))
    return VARYING


def multiply(a: Shape, b: Shape) -> Shape:
    """Return the shape of a * b."""
    if isinstance(b, Affine) and b.value is not None:
        factor = b.value
        if isinstance(a, Wide):
            return replace(a, scale=a.scale * factor) if 0 < abs(a.scale * factor) < _SMALL else VARYING
        if isinstance(a, Affine):
            if a.value is not None:
                return constant(a.value * factor)
            limit = (a.limit - 1) * factor + 1 if a.limit and factor > 0 else 0
            align = min(a.align * _power(factor), _SMALL)
            return _checked(Affine(tuple(offset * factor for offset in a.offsets), align, None, limit))
        return VARYING
    if isinstance(a, Affine) and a.value is not None:
        return multiply(b, a)
    x, y = flattened(a), flattened(b)
    if x is None or y is None:
        return VARYING
    x, y = next(_in_common(x, y))
    return Affine(x.offsets, min(x.align * y.align, _SMALL))


def _checked(shape: Affine) -> Shape:
    if max(shape.offsets) - min(shape.offsets) >= _SMALL:
        return VARYING
    return shape if shape.limit < _SMALL else replace(shape, limit=0)


def _apart(a: Affine) -> Affine | None:
    """Return the shape with the largest groups whose offsets lie in the zero bits of the base: no addition carries."""
    for segment in SEGMENTS:
        fitting = narrow(a, segment)
        if fitting is not None and min(fitting.offsets) >= 0 and max(fitting.offsets) < fitting.align:
            return fitting
    return None


def shift_right(a: Shape, b: Shape) -> Shape:
    """Return the shape of a shifted right by b, with the sign or with zeros."""
    if not isinstance(a, Affine) or not isinstance(b, Affine) or b.value is None:
        return flat([a, b])
    by = min(b.value & 0xFFFFFFFF, 64)
    if a.limit and a.limit <= 1 << by:
        return constant(0)
    fitting = _apart(a)
    if fitting is None:
        return flat([a, b])
    limit = (a.limit - 1 >> by) + 1 if a.limit else 0
    return Affine(tuple(offset >> by for offset in fitting.offsets), max(1, fitting.align >> by), None, limit)


def bit_and(a: Shape, b: Shape) -> Shape:
    """Return the shape of a & b."""
    if isinstance(a, Affine) and a.value is not None and not (isinstance(b, Affine) and b.value is not None):
        a, b = b, a
    if not isinstance(a, Affine) or not isinstance(b, Affine) or b.value is None:
        return flat([a, b])
    mask = b.value
    fitting = _apart(a)
    if fitting is None:
        return flat([a, b])
    limit = min(mask + 1, a.limit or mask + 1) if 0 <= mask < _SMALL else a.limit
    offsets = tuple(offset & mask for offset in fitting.offsets)
    return _checked(Affine(offsets, max(fitting.align, _power(mask)), None, limit))


def bit_or(a: Shape, b: Shape) -> Shape:
    """Return the shape of a | b: that of the sum if no bit is set on both sides."""
    if isinstance(a, Affine) and isinstance(b, Affine):
        apart = (a.limit and a.limit <= _divisor(b)) or (b.limit and b.limit <= _divisor(a))
        return add(a, b) if apart else flat([a, b])
    return flat([a, b])


def _divisor(shape: Affine) -> int:
    """Return a power of two that divides all values."""
    return min(shape.align, *(_power(offset) for offset in shape.offsets))


def widen(a: Shape, signed: bool) -> Shape:
    """Return the shape of a 32-bit integer that is extended to 64 bits."""
    if not isinstance(a, Affine):
        return VARYING
    if a.value is not None:
        value = a.value & 0xFFFFFFFF
        return constant(value - (1 << 32) if signed and value >> 31 else value)
    if a.limit:
        return a
    return flattened(a) or Wide(a.offsets, signed, 1)


def truncate(a: Shape) -> Shape:
    """Return the shape of the low 32 bits of a 64-bit integer."""
    if isinstance(a, Wide):
        return _checked(Affine(tuple(offset * a.scale for offset in a.offsets)))
    if isinstance(a, Affine):
        return a
    return VARYING


def thread_index(axis: int, block: tuple[int, int, int]) -> Shape:
    """Return the shape of %tid.x, .y or .z in a block of this shape; lanes beyond the block may hold any value."""
    extent = block[axis]
    if extent == 1:
        return constant(0)
    below = 1
    for size in block[:axis]:
        below *= size
    total = block[0] * block[1] * block[2]
    is_outermost = below * extent == total
    lanes = (total + WARP - 1) // WARP * WARP
    limit = (lanes + below - 1) // below if is_outermost else extent
    for segment in SEGMENTS:
        if below % segment == 0:  # a group has one index
            return Affine((0,) * segment, 1, None, limit)
        if segment % below:
            continue
        indices = segment // below  # of a group, if none of them wraps
        if is_outermost or extent % indices == 0:
            return Affine(tuple(lane // below for lane in range(segment)), indices & -indices, None, limit)
        if indices % extent == 0:
            return Affine(tuple(lane // below % extent for lane in range(segment)), extent & -extent, None, limit)
    return VARYING
