"""An event loop on its own thread. Other loops can await its work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from time import monotonic
from typing import Any, TypeVar

import uvloop

from kaas.pool.immediate_future import ImmediateFuture

NAME = "kaas-pool"

T = TypeVar("T")


class PoolLoop(uvloop.Loop):
    """The event loop of a pool. Its timers have a resolution of 1 ms, and are early by up to 2 ms.

    A turn takes a third of the time of a turn of asyncio's own loop, which is written in Python.
    """

    time = staticmethod(monotonic)
    """The time in seconds. uvloop's own clock has a resolution of 1 ms, and stands still while a callback runs."""


class PoolThread:
    """The thread of a pool's event loop. Ray's loop, or another, only passes work to it."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = PoolLoop()
        # work must not run in a caller's context: Ray cancels all work that a cancelled call began
        self._context = Context()
        self._thread = threading.Thread(target=self._serve, name=NAME, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread, and cancel its work. Call it from another thread."""
        self.post(self.loop.stop)
        self._thread.join()

    def post(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function on the thread."""
        self.loop.call_soon_threadsafe(function, *args, context=self._context)

    def task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin a task, from the thread itself."""
        return self.loop.create_task(work, context=self._context)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread, and return its result in another loop. A cancelled wait cancels it."""
        return await self.ask(self.task, work)

    async def ask(self, begin: Callable[..., asyncio.Future[T] | ImmediateFuture[T]], *args: Any) -> T:
        """Return the result of a future that `begin` makes on the thread, or raise the error of `begin`.

        As `run`, but cheaper than a task.
        """
        here = asyncio.get_running_loop()
        answer: asyncio.Future[T] = here.create_future()
        crossing = _Crossing(here, answer)
        self.post(crossing.begin, begin, args)
        try:
            return await answer
        except asyncio.CancelledError:
            self.post(crossing.cancel)
            raise

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        rest = asyncio.all_tasks(self.loop)
        for task in rest:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        self.loop.close()


class _Crossing:
    """A wait of one loop for a future of another. The other loop calls all methods but the last."""

    __slots__ = ("_answer", "_here", "_work")

    def __init__(self, here: asyncio.AbstractEventLoop, answer: asyncio.Future[Any]) -> None:
        self._here = here
        self._answer = answer
        self._work: asyncio.Future[Any] | ImmediateFuture[Any] | None = (
            None  # also keeps a task alive: a loop has only weak references to its tasks
        )

    def begin(self, begin: Callable[..., asyncio.Future[Any] | ImmediateFuture[Any]], args: tuple[Any, ...]) -> None:
        try:
            self._work = begin(*args)
        except Exception as error:  # noqa: BLE001 - it is raised in the waiting loop
            self._pass_back(error=error)
        else:
            self._work.add_done_callback(self._done)

    def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def _done(self, work: asyncio.Future[Any] | ImmediateFuture[Any]) -> None:
        if work.cancelled():
            self._here.call_soon_threadsafe(self._answer.cancel)
        elif (error := work.exception()) is not None:
            self._pass_back(error=error)
        else:
            self._pass_back(work.result())

    def _pass_back(self, value: Any = None, error: BaseException | None = None) -> None:
        if not self._answer.cancelled():  # a cancelled wait's loop may have ended
            self._here.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: Any, error: BaseException | None) -> None:
        if self._answer.done():
            return
        if error is None:
            self._answer.set_result(value)
        else:
            self._answer.set_exception(error)
