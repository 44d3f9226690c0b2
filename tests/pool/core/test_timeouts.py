"""A command waits for its worker as long as the worker replies to any of its commands."""

from __future__ import annotations

import asyncio

import pytest

from kaas.pool.core.cache_commands import Timeouts, WorkerSilent


async def never() -> int:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


def test_each_answer_of_a_worker_gives_the_others_time() -> None:
    async def main() -> None:
        timeouts, answer = Timeouts(), asyncio.get_running_loop().create_future()

        async def first() -> int:
            return await answer  # type: ignore[no-any-return]

        waiting = [asyncio.ensure_future(timeouts.reply(0, asked, 60)) for asked in (first(), never())]
        elsewhere = asyncio.ensure_future(timeouts.reply(1, never(), 60))
        await asyncio.sleep(0)
        late, other = list(timeouts._waits[0])[1], next(iter(timeouts._waits[1]))
        before = late.when(), other.when()
        answer.set_result(5)
        assert await waiting[0] == 5
        after = late.when(), other.when()
        assert None not in (*before, *after)
        assert after[0] > before[0]  # type: ignore[operator]
        assert after[1] == before[1]
        for task in (waiting[1], elsewhere):
            task.cancel()
        await asyncio.gather(waiting[1], elsewhere, return_exceptions=True)
        assert not timeouts._waits

    asyncio.run(main())


def test_silence_differs_from_a_reply_that_is_an_error() -> None:
    async def times_out() -> None:
        raise TimeoutError("its own")

    async def main() -> None:
        with pytest.raises(TimeoutError, match="its own"):
            await Timeouts().reply(0, times_out(), 60)
        with pytest.raises(WorkerSilent, match=r"no reply for 0\.01 s"):
            await Timeouts().reply(0, never(), 0.01)

    asyncio.run(main())
