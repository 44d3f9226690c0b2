"""How long tests wait for what has to come: one time for all, since none passes sooner or later by it.

It is what a machine many times slower than any that we know of needs; only a test that fails takes it.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

PATIENCE_S = 300.0


def until(condition: Callable[[], bool]) -> None:
    """For what tells nobody when it has happened."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s


def readable(file: FileDescriptorLike) -> bool:
    """Wait until a pipe, a socket or the descriptor of a process can be read. Return False when patience is over.

    Unlike `select.select`, which refuses them, this takes descriptors above 1023: a process of tests has so many.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(file, selectors.EVENT_READ)
        return bool(selector.select(PATIENCE_S))
