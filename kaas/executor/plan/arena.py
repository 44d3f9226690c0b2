"""The static layout of a kTask's buffers in a slot's arena, from the buffers' users and the edges between these.

Two buffers share memory only where a path of edges leads from every kernel that uses the one to every kernel that uses
the other. Kernels without a path between them thus stay free to run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALIGNMENT_BYTES = 256
"""The alignment that cuMemAlloc guarantees, and that kernels may rely on."""

GAP_BYTES = 4096
"""The gap after every buffer if accesses are checked: an overrun must not end in another buffer."""


@dataclass(frozen=True, slots=True)
class ArenaBuffer:
    """A buffer in the arena.

    Fields:
        index: the caller's number of the buffer.
        kernels: indices of the kernels that use it.
        from_start: the buffer has a content before the first kernel runs.
        to_end: the buffer is read after the last kernel.
    """

    index: int
    nbytes: int
    kernels: frozenset[int]
    from_start: bool = False
    to_end: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The offset of each buffer, a multiple of ALIGNMENT_BYTES, and the size of the arena, both in bytes."""

    offsets: Mapping[int, int]
    nbytes: int


class HappensBefore:
    """The certain order of the users of memory: the start, the kernels with their edges, the end.

    Sets are bit masks: bit 0 is the start, bit k + 1 is kernel k, the last bit is the end.
    """

    __slots__ = ("_end", "_later")

    def __init__(self, kernels: int, edges: Iterable[tuple[int, int]]) -> None:
        self._end = 1 << (kernels + 1)
        later = [self._end] * (kernels + 1) + [0]
        for before, after in sorted(edges, reverse=True):
            later[before + 1] |= 1 << (after + 1) | later[after + 1]
        later[0] = (self._end << 1) - 2
        self._later = later

    def users(self, buffer: ArenaBuffer) -> int:
        """Return the mask of all users of a buffer."""
        mask = sum(1 << (kernel + 1) for kernel in buffer.kernels)
        return mask | (1 if buffer.from_start else 0) | (self._end if buffer.to_end else 0)

    def after(self, users: int) -> int:
        """Return the mask of the users that come after each of these users."""
        common = -1
        while users:
            lowest = users & -users
            common &= self._later[lowest.bit_length() - 1]
            users ^= lowest
        return common


def lay_out(buffers: Iterable[ArenaBuffer], order: HappensBefore) -> Layout:
    """Place the buffers, the largest first, each as low as the buffers allow that may be in use at the same time."""
    sized = sorted(buffers, key=lambda buffer: (-buffer.nbytes, buffer.index))
    placed: list[tuple[int, int, int, int]] = []  # offset, end, users, after
    offsets: dict[int, int] = {}
    for buffer in sized:
        users = order.users(buffer)
        after = order.after(users)
        spans = sorted(
            (start, end)
            for start, end, others, others_after in placed
            if others & ~after and users & ~others_after  # neither buffer has ended before the other begins
        )
        offset = _first_gap(spans, buffer.nbytes)
        offsets[buffer.index] = offset
        placed.append((offset, offset + buffer.nbytes, users, after))
    return Layout(offsets, _aligned(max((end for _, end, _, _ in placed), default=0)))


def lay_apart(buffers: Iterable[ArenaBuffer]) -> Layout:
    """Place the buffers one after the other, with gaps. No two share memory.

    An access past the end of a buffer must not end in another buffer, even one that is used at other times.
    """
    offsets: dict[int, int] = {}
    nbytes = 0
    for buffer in buffers:
        offsets[buffer.index] = nbytes
        nbytes = _aligned(nbytes + buffer.nbytes) + GAP_BYTES
    return Layout(offsets, nbytes)


def _first_gap(spans: Iterable[tuple[int, int]], nbytes: int) -> int:
    offset = 0
    for start, end in spans:
        if start >= offset + nbytes:
            break
        offset = max(offset, _aligned(end))
    return offset


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
