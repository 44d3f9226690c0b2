"""A call that an event loop cancels is cancelled in the pool, by the way that docs/programs.md names."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import kaas
from tests.api.conftest import scale_task, spin_task

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("softgpu", "pool")]


def test_a_task_that_has_not_begun_cancels_nothing() -> None:
    async def program() -> None:
        made = kaas.call(scale_task(256), {"x": np.ones(256, np.float32)}, scalars={"factor": 2.0})
        task = asyncio.ensure_future(made)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await made == 2).all()

    asyncio.run(program())


def test_a_call_is_cancelled_through_wrap_future_and_directly() -> None:
    async def program() -> None:
        wrapped, itself = (kaas.call(spin_task(), {}, scalars={"steps": 2_000_000_000}) for _ in range(2))
        waiting = asyncio.wrap_future(wrapped)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(0)  # asyncio calls a future's callbacks in the loop's next round
        assert wrapped.cancelled()
        assert itself.cancel()
        assert itself.cancelled()

    asyncio.run(program())
