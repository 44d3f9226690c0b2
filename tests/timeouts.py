"""The one timeout of all tests that wait. No test passes sooner or later by its length.

A machine many times slower than any known one needs no longer; only a test that fails takes that long.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

TIMEOUT_S = 300.0


def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that has no event."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s


def readable(file: FileDescriptorLike) -> bool:
    """Wait until a pipe, a socket or the descriptor of a process can be read. Return False after the timeout.

    Unlike `select.select`, which refuses them, this takes descriptors above 1023: a process of tests has so many.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(TIMEOUT_S))
