"""Batches: where their matrices lie, whether what is written lies apart, and how many one launch takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from itertools import pairwise
from typing import Final, NamedTuple

from cutlass_blas.errors import OverlappingOperands
from cutlass_blas.operands import Operand
from kaas import Buffer, In, InOut, Out, Pointers

LAUNCH_COUNT: Final = 65_535
"""Products in one launch at most: they are counted in the grid's third dimension."""
LAUNCH_TILES: Final = 8 * 65_535
"""Tiles side by side in one launch at most: the grid's second dimension counts eights of them."""

Access = In | Out | InOut


class Piece(NamedTuple):
    """What one launch does of a product: these entries of the batch, these columns."""

    first: int
    entries: int
    column: int
    columns: int


def pieces(count: int, columns: int, tile_columns: int, launch_count: int) -> Sequence[Piece]:
    """All launches that a product needs, which is not empty, each of at most `launch_count` entries."""
    wide = LAUNCH_TILES * tile_columns
    if count <= launch_count and columns <= wide:  # nearly always
        return (Piece(0, count, 0, columns),)
    return [
        Piece(first, min(launch_count, count - first), column, min(wide, columns - column))
        for first in range(0, count, launch_count)
        for column in range(0, columns, wide)
    ]


def pointer(
    access: type[Access], operand: Operand, piece: Piece, shift: int, element_bytes: int, table: bool
) -> Access | Pointers:
    """What a kernel is given for an operand that it only reads, or only writes: an address, or a table of them.

    Args:
        shift: from the operand's first element to the piece's, in elements.
    """
    if not table:
        buffer, offset = operand.place(piece.first)
        return access(buffer, (offset + shift) * element_bytes)
    places = map(operand.place, range(piece.first, piece.first + piece.entries))
    return Pointers([access(buffer, (offset + shift) * element_bytes) for buffer, offset in places])


def target(c: Operand, piece: Piece, shift: int, element_bytes: int, table: bool, fresh: Set[str]) -> Access | Pointers:
    """The same for C, which is written: Out in buffers named in `fresh`, whose contents do not count."""
    if not table:
        buffer, offset = c.place(piece.first)
        return (Out if buffer.name in fresh else InOut)(buffer, (offset + shift) * element_bytes)
    entries: list[Access] = []
    for entry in range(piece.first, piece.first + piece.entries):
        buffer, offset = c.place(entry)
        entries.append((Out if buffer.name in fresh else InOut)(buffer, (offset + shift) * element_bytes))
    return Pointers(entries)


def covered(c: Operand, elements: int) -> frozenset[str]:
    """The buffers that matrices of so many elements, which lie apart, fill to the last element."""
    if not c.table:
        buffer = c.buffers[0]
        total = elements if c.count is None else elements * c.count
        return frozenset((buffer.name,)) if math.prod(buffer.shape) == total else frozenset()
    sizes = {buffer.name: math.prod(buffer.shape) for buffer in c.buffers}
    filled = Counter(buffer.name for buffer in c.buffers)
    return frozenset(name for name, size in sizes.items() if filled[name] * elements == size)


def check_apart(c: Operand, inner: int, outer: int) -> None:
    """Whether the matrices of a batch that is written lie apart; each is `outer` rows of `inner` elements.

    Raises:
        OverlappingOperands
    """
    if c.count is None or c.count < 2 or not inner or not outer:
        return
    extent = (outer - 1) * c.ld + inner
    if not c.table:
        for distance in range(1, c.count):
            if distance * c.stride >= extent:
                return
            if _meet(distance * c.stride, inner, outer, c.ld):
                raise _overlap(c.buffers[0], "c[0]", f"c[{distance}]")
        return
    by_buffer: dict[str, list[tuple[int, int]]] = {}
    for entry, (buffer, offset) in enumerate(zip(c.buffers, c.offsets, strict=True)):
        by_buffer.setdefault(buffer.name, []).append((offset, entry))
    for name, places in by_buffer.items():
        places.sort()
        if all(later[0] - earlier[0] >= extent for earlier, later in pairwise(places)):
            continue
        for position, (offset, entry) in enumerate(places):
            for other, later in places[position + 1 :]:
                if other - offset >= extent:
                    break
                if _meet(other - offset, inner, outer, c.ld):
                    raise _overlap(next(b for b in c.buffers if b.name == name), f"c[{entry}]", f"c[{later}]")


def _meet(distance: int, inner: int, outer: int, ld: int) -> bool:
    """Whether two matrices of one leading dimension, so far apart, share an element."""
    rows, columns = divmod(distance, ld)
    return (rows < outer and columns < inner) or (rows + 1 < outer and columns + inner > ld)


def _overlap(buffer: Buffer, one: str, other: str) -> OverlappingOperands:
    return OverlappingOperands(
        f"{one} and {other} overlap in buffer {buffer.name!r}; both are written",
        operands=(one, other),
        buffer=buffer.name,
    )
