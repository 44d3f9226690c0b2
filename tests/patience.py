"""How long tests wait for what has to come: one time for all, since none passes sooner or later by it.

It is what a machine many times slower than any that we know of needs; only a test that fails takes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 300.0


def until(condition: Callable[[], bool]) -> None:
    """For what tells nobody when it has happened."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s
