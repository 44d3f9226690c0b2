"""The pool's thread: results, errors and cancellations of its work reach the loop that waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kaas.pool.loop import NAME, PoolThread
from tests.timeouts import TIMEOUT_S


@pytest.fixture
def there() -> Iterator[PoolThread]:
    thread = PoolThread()
    thread.start()
    yield thread
    thread.close()


def test_work_runs_on_the_thread(there: PoolThread) -> None:
    async def work() -> tuple[str, bool]:
        return threading.current_thread().name, asyncio.get_running_loop() is there.loop

    assert asyncio.run(there.run(work())) == (NAME, True)


def test_an_error_in_the_pools_thread_is_raised_where_its_result_is_awaited(there: PoolThread) -> None:
    async def work() -> None:
        raise KeyError("there")

    with pytest.raises(KeyError, match="there"):
        asyncio.run(there.run(work()))


def test_a_future_that_cannot_be_made_raises_too(there: PoolThread) -> None:
    def begin() -> asyncio.Future[int]:
        raise ValueError("none")

    with pytest.raises(ValueError, match="none"):
        asyncio.run(there.ask(begin))


def test_a_future_is_enough(there: PoolThread) -> None:
    def begin(value: int) -> asyncio.Future[int]:
        future = there.loop.create_future()
        there.loop.call_soon(future.set_result, value)
        return future

    assert asyncio.run(there.ask(begin, 5)) == 5


def test_cancelling_the_wait_cancels_the_work(there: PoolThread) -> None:
    began, ended = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            raise

    async def here() -> None:
        waiting = asyncio.create_task(there.run(work()))
        await asyncio.to_thread(began.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(ended.wait, 10)

    asyncio.run(here())


def test_work_may_be_cancelled_before_it_began(there: PoolThread) -> None:
    """Posted calls keep their order, so a cancellation comes after the begin of its work."""
    ended = threading.Event()

    def begin() -> asyncio.Future[None]:
        future = there.loop.create_future()
        future.add_done_callback(lambda done: ended.set() if done.cancelled() else None)
        return future

    async def here() -> None:
        go = threading.Event()
        there.post(go.wait)
        waiting = asyncio.create_task(there.ask(begin))
        await asyncio.sleep(0)
        waiting.cancel()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await asyncio.to_thread(ended.wait, 10)

    asyncio.run(here())


def test_work_that_is_cancelled_there_is_cancelled_here(there: PoolThread) -> None:
    def begin() -> asyncio.Future[None]:
        future = there.loop.create_future()
        future.cancel()
        return future

    async def here() -> None:
        with pytest.raises(asyncio.CancelledError):
            await there.ask(begin)

    asyncio.run(here())


def test_the_context_of_the_caller_stays_here(there: PoolThread) -> None:
    import contextvars

    mark = contextvars.ContextVar("mark", default="none")

    async def work() -> str:
        return mark.get()

    async def here() -> str:
        mark.set("mine")
        return await there.run(work())

    assert asyncio.run(here()) == "none"


def test_closing_cancels_running_work() -> None:
    thread = PoolThread()
    thread.start()
    began, ended = threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    tasks = []
    thread.post(lambda: tasks.append(thread.task(work())))
    assert began.wait(TIMEOUT_S)
    thread.close()
    assert ended.is_set()
