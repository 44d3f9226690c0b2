"""Turns of clients at the processes of a server's steps: no client keeps others from their steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kaas.server.steps import steps as steps_module
from kaas.server.steps.steps import Steps
from kaas.server.steps.turns import StepTurns
from tests.loops import run
from tests.timeouts import TIMEOUT_S

NAMED = {name: f"tests.server.steps.functions:{name}" for name in ("same", "wait")}


def scenario(of: Callable[[StepTurns], Awaitable[None]], places: int) -> None:
    async def made() -> None:
        await of(StepTurns(places))

    run(made())


async def waiting(turns: StepTurns, order: list[str], *clients: str) -> None:
    """Let clients ask for a place, one after the other; `order` gets those that have one."""

    for client in clients:
        turn = asyncio.ensure_future(turns.take(client))
        turn.add_done_callback(lambda _, client=client: order.append(client))  # type: ignore[misc]
    await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_client_with_one_step_waits_for_no_more_than_one_step_of_a_client_with_many() -> None:
    async def of(turns: StepTurns) -> None:
        order: list[str] = []
        await waiting(turns, order, *["many"] * 5, "one")
        turns.leave("many")
        await settled()
        assert order == ["many", "many", "one"]

    scenario(of, places=2)


def test_clients_with_equal_places_go_in_turns() -> None:
    async def of(turns: StepTurns) -> None:
        order: list[str] = []
        await waiting(turns, order, "a", "a", "a", "b", "b", "c")
        for _ in range(5):
            turns.leave(order[-1])
            await settled()
        assert order == ["a", "a", "b", "c", "a", "b"]

    scenario(of, places=1)


def test_a_client_gets_no_place_while_a_step_of_its_cancelled_call_goes_on() -> None:
    async def of(turns: StepTurns) -> None:
        order: list[str] = []
        await waiting(turns, order, "a")
        step: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turns.goes_on("a", step)
        await waiting(turns, order, "a", "b")
        assert order == ["a", "b"]
        turns.leave("b")
        await settled()
        assert order == ["a", "b"]
        step.set_result(None)
        turns.leave("a")
        await settled()
        assert order == ["a", "b", "a"]

    scenario(of, places=2)


@pytest.mark.parametrize("freed", ["before", "with", "after"])
def test_a_cancelled_wait_keeps_no_place(freed: str) -> None:
    """Also if the place is free just before the cancellation, or before the wait has seen that."""

    async def of(turns: StepTurns) -> None:
        await turns.take("a")
        wait = asyncio.ensure_future(turns.take("b"))
        await settled()
        if freed == "before":
            turns.leave("a")
        wait.cancel()
        if freed == "with":
            turns.leave("a")
        await settled()
        if freed == "after":
            turns.leave("a")
        await asyncio.wait_for(turns.take("c"), TIMEOUT_S)
        assert wait.cancelled()

    scenario(of, places=1)


@pytest.mark.processes
def test_a_client_that_cancels_long_steps_leaves_places_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "GRACE_S", 2 * TIMEOUT_S)

    async def of() -> None:
        steps = Steps(NAMED, 2, 4 * TIMEOUT_S)
        await steps.open()
        try:
            for _ in range(4):
                call = asyncio.ensure_future(steps.run("wait", {}, {"client": "a"}))
                await settled()
                call.cancel()
                await asyncio.wait([call])
            made = await asyncio.wait_for(steps.run("same", {"x": b"b's"}, {"client": "b"}), TIMEOUT_S)
            assert made["x"].data == b"b's"
        finally:
            steps.close()

    run(of())
