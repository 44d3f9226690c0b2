"""Tasks of a pool that end with the pool."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """The tasks of one event loop. failed: called with the error of a task that no caller awaits."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        # tasks must not run in a caller's context: Ray cancels all work that a cancelled call began
        self._context = contextvars.Context()
        self._tasks: set[asyncio.Task[Any]] = set()

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task that a caller awaits, and that does not end with the pool."""
        return self._loop.create_task(work, context=self._context)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task that a caller awaits."""
        task = self.task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task that no caller awaits."""
        self.begin(work).add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def close(self) -> None:
        """Cancel the tasks, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
