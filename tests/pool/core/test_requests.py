"""The states of a request: one function changes them, along a table, and every state is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kaas.pool.core.core import Pool
from kaas.pool.core.requests import (
    FIRST_STATES,
    IN_QUEUE,
    TRANSITIONS,
    WITH_CALLER,
    Backlog,
    Request,
    Requests,
    RequestState,
)
from kaas.pool.executors.transport import WorkerCall
from tests.pool.fake_workers import FakeWorkers, begin, play, settle

S = RequestState
CALL = WorkerCall("f", "alice", None, 0)


def in_loop(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def requests() -> tuple[Requests, Backlog]:
    backlog = Backlog(1000, {})
    return Requests(backlog, lambda _: None), backlog


def test_every_state_can_be_reached_and_each_leads_to_the_end() -> None:
    reached, ending = set(FIRST_STATES), {S.ENDED}
    for _ in S:
        reached |= {after for state in reached for after in TRANSITIONS[state]}
        ending |= {state for state, after in TRANSITIONS.items() if after & ending}
    assert reached == ending == set(S)
    assert TRANSITIONS[S.ENDED] == frozenset()


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("after", S)
def test_only_the_table_s_moves_are_made(state: RequestState, after: RequestState) -> None:
    async def body() -> None:
        all_of_them, _ = requests()
        request = all_of_them.add(CALL, 0.0)
        request.state = state
        if after in TRANSITIONS[state]:
            all_of_them.move(request, after)
            assert request.state is after
        else:
            with pytest.raises(AssertionError, match=f"from {state.name} to {after.name}"):
                all_of_them.move(request, after)
            assert request.state is state

    in_loop(body)


@given(st.lists(st.sampled_from(S), max_size=40))
def test_the_queue_s_count_is_that_of_the_requests_in_it(moves: list[RequestState]) -> None:
    async def body() -> None:
        all_of_them, backlog = requests()
        made: list[Request] = []
        for state in moves:
            if not made or state is S.WAITING:
                made.append(all_of_them.add(CALL, 0.0, asyncio.sleep(60) if state is S.WAITING else None))
            for request in made:
                if state in TRANSITIONS[request.state]:
                    all_of_them.move(request, state)
                    break
        held = [request for request in made if request.state is not S.ENDED]
        assert list(all_of_them.by_id.values()) == held
        assert all_of_them.queued() == [request for request in held if request.state in IN_QUEUE]
        assert backlog._total == len(all_of_them.queued())
        assert all_of_them.counts().total() == len(held)
        for request in held:
            all_of_them.abandon(request)
        assert not set(all_of_them.counts()) & WITH_CALLER

    in_loop(body)


def test_a_pool_s_requests_pass_through_every_state() -> None:
    seen: set[RequestState] = set()

    async def scenario(pool: Pool, workers: FakeWorkers) -> None:
        move = pool._requests.move

        def watched(request: Any, state: RequestState) -> None:
            seen.update({request.state, state})
            move(request, state)

        pool._requests.move = watched  # type: ignore[method-assign]
        inputs: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        running = await begin(pool.submit(WorkerCall("f", "alice", None, 1)))
        waiting = await begin(pool.submit(CALL, inputs))
        inputs.set_result(None)
        await settle()
        workers.die(0, "killed")  # its request has one retry
        await settle()
        running.cancel()
        await settle()
        workers.reply()
        await settle()
        workers.reply("value")
        assert await waiting == "value"
        await settle()

    play(scenario)
    assert seen == set(S)
