"""How long the pool waits for a worker that answers nothing any more, since somebody has stopped its process, say."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class Silent(Exception):
    """A worker gave no answer for as long as it may."""


class Patience:
    """A worker takes its orders in turn, so that each may wait for many before it: what counts is that answers come."""

    def __init__(self) -> None:
        self._waits: dict[int, dict[asyncio.Timeout, float]] = {}

    async def answer(self, worker: int, asked: Coroutine[object, object, T], limit_s: float) -> T:
        """What a worker answers, as long as within each limit_s some answer of it comes.

        Raises:
            Silent; whatever comes instead of the answer.
        """
        waits = self._waits.setdefault(worker, {})
        try:
            async with asyncio.timeout(limit_s) as wait:
                waits[wait] = limit_s
                return await asked
        except TimeoutError as error:
            if wait.expired():
                raise Silent(f"it answered nothing for {limit_s:g} s") from error
            raise
        finally:
            waits.pop(wait, None)
            self._prolong(worker, waits)

    def _prolong(self, worker: int, waits: dict[asyncio.Timeout, float]) -> None:
        now_s = asyncio.get_running_loop().time()
        for wait, limit_s in waits.items():
            if not wait.expired():
                wait.reschedule(now_s + limit_s)
        if not waits:
            self._waits.pop(worker, None)
