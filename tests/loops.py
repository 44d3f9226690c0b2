"""The loop that a pool lives on, for tests of what runs there."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from kaas.pool.loop import PoolLoop

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`."""
    with asyncio.Runner(loop_factory=PoolLoop) as runner:
        return runner.run(work)
