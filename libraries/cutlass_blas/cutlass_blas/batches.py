"""Batches: addresses of their matrices, a check that written matrices do not overlap, and the split into launches."""

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
"""The most products in one launch: the grid's third dimension counts them."""
LAUNCH_TILES: Final = 8 * 65_535
"""The most tiles next to each other in one launch: the grid's second dimension counts groups of eight tiles."""

Access = In | Out | InOut


class Piece(NamedTuple):
    """The part of a product that one launch computes: these entries of the batch, these columns."""

    first: int
    entries: int
    column: int
    columns: int


def pieces(count: int, columns: int, tile_columns: int, launch_count: int) -> Sequence[Piece]:
    """Return the launches for a product that is not empty, each of at most `launch_count` entries."""
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
    """Return the argument for an operand that a kernel only reads or only writes: an address, or a table of addresses.

    `shift` is the distance from the operand's first element to the piece's, in elements.
    """
    if not table:
        buffer, offset = operand.place(piece.first)
        return access(buffer, (offset + shift) * element_bytes)
    places = map(operand.place, range(piece.first, piece.first + piece.entries))
    return Pointers([access(buffer, (offset + shift) * element_bytes) for buffer, offset in places])


def target(c: Operand, piece: Piece, shift: int, element_bytes: int, table: bool, fresh: Set[str]) -> Access | Pointers:
    """Return the same for C, which is written: Out in the buffers named in `fresh`, whose contents do not count."""
    if not table:
        buffer, offset = c.place(piece.first)
        return (Out if buffer.name in fresh else InOut)(buffer, (offset + shift) * element_bytes)
    entries: list[Access] = []
    for entry in range(piece.first, piece.first + piece.entries):
        buffer, offset = c.place(entry)
        entries.append((Out if buffer.name in fresh else InOut)(buffer, (offset + shift) * element_bytes))
    return Pointers(entries)


def covered(c: Operand, elements: int) -> frozenset[str]:
    """Return the buffers that C fills completely; its matrices of so many elements must not overlap."""
    if not c.table:
        buffer = c.buffers[0]
        total = elements if c.count is None else elements * c.count
        return frozenset((buffer.name,)) if math.prod(buffer.shape) == total else frozenset()
    sizes = {buffer.name: math.prod(buffer.shape) for buffer in c.buffers}
    filled = Counter(buffer.name for buffer in c.buffers)
    return frozenset(name for name, size in sizes.items() if filled[name] * elements == size)


def check_apart(c: Operand, inner: int, outer: int) -> None:
    """Check that the matrices of a written batch do not overlap; each has `outer` rows of `inner` elements.

    Raises:
        OverlappingOperands: two of them overlap.
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
    """Return True if two matrices with the same leading dimension, `distance` elements apart, share an element."""
    rows, columns = divmod(distance, ld)
    return (rows < outer and columns < inner) or (rows + 1 < outer and columns + inner > ld)


def _overlap(buffer: Buffer, one: str, other: str) -> OverlappingOperands:
    return OverlappingOperands(
        f"{one} and {other} overlap in buffer {buffer.name!r}; both are written",
        operands=(one, other),
        buffer=buffer.name,
    )
