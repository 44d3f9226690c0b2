"""Limits of the system on this process, lowered for a while."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def limited(limit: int, soft: int) -> Iterator[None]:
    """Lower one limit of this process. limit: `resource.RLIMIT_...`."""
    before = resource.getrlimit(limit)
    resource.setrlimit(limit, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(limit, before)


def address_space_bytes() -> int:
    """Return the size of this process's address space, as RLIMIT_AS counts it."""
    pages = Path("/proc/self/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()
