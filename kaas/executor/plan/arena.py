"""Where the buffers of a kTask lie in a slot's arena: a static layout from who uses what and which edges there are.

Two buffers share memory only where a path of edges leads from every kernel that uses the one to every kernel that uses
the other. Kernels without a path between them thus stay free to run at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

ALIGNMENT_BYTES = 256
"""What cuMemAlloc guarantees, and so what kernels may rely on."""

GAP_BYTES = 4096
"""Behind every buffer, where accesses are checked: what goes past one must not lie in another."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A buffer in the arena.

    Fields:
        index: whatever the caller knows it by.
        kernels: indices of the kernels that use it.
        from_start: it holds something before the first kernel runs.
        to_end: it is read after the last kernel.
    """

    index: int
    nbytes: int
    kernels: frozenset[int]
    from_start: bool = False
    to_end: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Offset of each tenant, a multiple of ALIGNMENT_BYTES, and the size of the whole, both in bytes."""

    offsets: Mapping[int, int]
    nbytes: int


class HappensBefore:
    """Which users of memory certainly come after which: the start, the kernels with their edges, the end.

    Sets are bit masks: bit 0 is the start, bit k + 1 kernel k, the last one the end.
    """

    __slots__ = ("_end", "_later")

    def __init__(self, kernels: int, edges: Iterable[tuple[int, int]]) -> None:
        self._end = 1 << (kernels + 1)
        later = [self._end] * (kernels + 1) + [0]
        for before, after in sorted(edges, reverse=True):
            later[before + 1] |= 1 << (after + 1) | later[after + 1]
        later[0] = (self._end << 1) - 2
        self._later = later

    def users(self, tenant: Tenant) -> int:
        """The mask of all that use the tenant."""
        mask = sum(1 << (kernel + 1) for kernel in tenant.kernels)
        return mask | (1 if tenant.from_start else 0) | (self._end if tenant.to_end else 0)

    def after(self, users: int) -> int:
        """The mask of those that come after every one of the users."""
        common = -1
        while users:
            lowest = users & -users
            common &= self._later[lowest.bit_length() - 1]
            users ^= lowest
        return common


def lay_out(tenants: Iterable[Tenant], order: HappensBefore) -> Layout:
    """Places the tenants, the largest first, each as low as those allow that may hold something while it does."""
    sized = sorted(tenants, key=lambda tenant: (-tenant.nbytes, tenant.index))
    placed: list[tuple[int, int, int, int]] = []  # offset, end, users, after
    offsets: dict[int, int] = {}
    for tenant in sized:
        users = order.users(tenant)
        after = order.after(users)
        spans = sorted(
            (start, end)
            for start, end, others, others_after in placed
            if others & ~after and users & ~others_after  # neither is over before the other begins
        )
        offset = _first_gap(spans, tenant.nbytes)
        offsets[tenant.index] = offset
        placed.append((offset, offset + tenant.nbytes, users, after))
    return Layout(offsets, _aligned(max((end for _, end, _, _ in placed), default=0)))


def lay_apart(tenants: Iterable[Tenant]) -> Layout:
    """Places the tenants one behind the other, with gaps. Nothing shares memory: an access past the end of a buffer
    must not lie in another one that is there at other times."""
    offsets: dict[int, int] = {}
    nbytes = 0
    for tenant in tenants:
        offsets[tenant.index] = nbytes
        nbytes = _aligned(nbytes + tenant.nbytes) + GAP_BYTES
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
