"""A process's heap on huge pages.

A small request reads a thousand places of the heap, and a processor caches the addresses of few pages at a time.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Iterator

SETTLED_S = 5.0
"""After this time a process has allocated the memory that it uses for each request."""
HUGE_BYTES = 2 << 20
LARGEST_BYTES = 64 << 20
"""The largest mapping of a heap: a larger one has buffers, which may never be touched."""

_COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1."""
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \d+ *(.*)\n")


def use_huge_pages_soon() -> None:
    """Call `use_huge_pages` after SETTLED_S."""
    timer = threading.Timer(SETTLED_S, use_huge_pages)
    timer.daemon = True
    timer.start()


def use_huge_pages() -> int:
    """Have the kernel move the present heap to huge pages: a few milliseconds, during which the process goes on.

    Return the number of huge pages: 0 if the kernel is too old for it, or has none to give.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    moved = 0
    for begin, end in _heap():
        for address in range(-(-begin // HUGE_BYTES) * HUGE_BYTES, end - HUGE_BYTES + 1, HUGE_BYTES):
            moved += madvise(address, HUGE_BYTES, _COLLAPSE) == 0
    return moved


def _heap() -> Iterator[tuple[int, int]]:
    """Yield the addresses of the process's own memory, but for stacks of threads, which lie behind guard pages."""
    guard_end = 0
    with open("/proc/self/maps") as maps:
        for begin, end, access, name in _MAPPING.findall(maps.read()):
            first, last = int(begin, 16), int(end, 16)
            if access == "---p":
                guard_end = last
            elif access == "rw-p" and name in ("", "[heap]") and first != guard_end and last - first <= LARGEST_BYTES:
                yield first, last
