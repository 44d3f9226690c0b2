"""A process's heap on huge pages: a small request looks at a thousand places of it, and a processor knows the places of
few pages at a time."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator

SETTLED_S = 5.0
"""After so long what a process needs for each request is there."""
HUGE_BYTES = 2 << 20
LARGEST_BYTES = 64 << 20
"""Of a mapping: what is larger is no heap, but buffers, which may never be touched."""

_COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)\n")


def use_huge_pages_soon() -> None:
    """Once this process has settled."""
    timer = threading.Timer(SETTLED_S, use_huge_pages)
    timer.daemon = True
    timer.start()


def use_huge_pages() -> int:
    """Has the kernel move what is on the heap by now, a few milliseconds' work during which the process goes on; gives
    how many huge pages that are: none where the kernel is too old for it, or has none to give."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    moved = 0
    for begin, end in _heap():
        for address in range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES):
            moved += madvise(address, HUGE_BYTES, _COLLAPSE) == 0
    return moved


def _heap() -> Iterator[tuple[int, int]]:
    """Addresses of memory of the process's own, but for its threads' stacks, which lie behind pages that guard them."""
    guard_end = 0
    with open("/proc/self/maps") as maps:
        for begin, end, access, name in _MAPPING.findall(maps.read()):
            first, last = int(begin, 16), int(end, 16)
            if access == "---p":
                guard_end = last
            elif access == "rw-p" and name in ("", "[heap]") and first != guard_end and last - first <= LARGEST_BYTES:
                yield first, last
