"""Turns are fair: a client that has had much waits for those that have had little."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kaas.pool.on_processes.turns import CompilerTurns
from tests.loops import run
from tests.pool.fake_workers import Clock, settle


class Clients:
    """Clients whose turns last as long as the test says."""

    def __init__(self, most: int) -> None:
        self.turns = CompilerTurns(most)
        self.running: list[str] = []
        self.order: list[str] = []
        self._ends: dict[str, list[asyncio.Event]] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def comes(self, client: str, count: int = 1) -> None:
        self._tasks += [asyncio.create_task(self._has(client)) for _ in range(count)]
        await settle()

    async def _has(self, client: str) -> None:
        async with self.turns.turn(client):
            self.order.append(client)
            self.running.append(client)
            end = asyncio.Event()
            self._ends.setdefault(client, []).append(end)
            await end.wait()
            self.running.remove(client)

    async def ends(self, client: str) -> None:
        self._ends[client].pop(0).set()
        await settle()

    async def leaves(self, number: int) -> None:
        """Cancel the task that came as this one."""
        self._tasks[number].cancel()
        await settle()


Scenario = Callable[[Clients, Clock], Awaitable[None]]


def play(scenario: Scenario, most: int, patched: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with patched.context() as clock:
            clients = Clients(most)
            await scenario(clients, Clock(clock))
            assert (clients.turns.waiting, clients.running) == ({}, [])

    run(main())


def test_a_client_that_takes_long_waits_for_one_that_has_had_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(clients: Clients, clock: Clock) -> None:
        await clients.comes("hog", 3)
        await clock.pass_(480.0)
        await clients.ends("hog")
        assert clients.order == ["hog", "hog"]  # none else waits
        await clients.comes("alice", 2)
        await clock.pass_(480.0)
        await clients.ends("hog")
        for _ in range(2):
            await clock.pass_(1.0)
            await clients.ends("alice")
        assert clients.order == ["hog", "hog", "alice", "alice", "hog"]
        await clients.ends("hog")

    play(scenario, 1, monkeypatch)


def test_a_client_that_was_away_has_saved_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(clients: Clients, clock: Clock) -> None:
        await clients.comes("late")
        await clients.ends("late")
        await clients.comes("busy", 3)
        for _ in range(2):
            await clock.pass_(100.0)
            await clients.ends("busy")
        await clients.comes("late", 2)
        await clock.pass_(10.0)
        await clients.ends("busy")
        await clients.comes("busy")
        for _ in range(2):
            await clock.pass_(15.0)
            await clients.ends(clients.running[0])
        assert clients.order == ["late", *["busy"] * 3, "late", "busy", "late"]
        await clients.ends("late")

    play(scenario, 1, monkeypatch)


def test_a_client_has_one_turn_at_a_time_and_others_have_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(clients: Clients, clock: Clock) -> None:
        await clients.comes("a", 2)
        assert clients.running == ["a"]
        await clients.comes("b")
        await clients.comes("c")
        assert clients.running == ["a", "b"]
        await clock.pass_(1.0)
        await clients.ends("a")
        assert clients.running == ["b", "c"]
        await clients.ends("b")
        await clients.ends("c")
        assert clients.running == ["a"]
        await clients.ends("a")

    play(scenario, 2, monkeypatch)


def test_one_that_leaves_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(clients: Clients, clock: Clock) -> None:
        del clock
        for name in "abc":
            await clients.comes(name)
        await clients.leaves(1)  # it waits
        await clients.leaves(0)  # it has its turn
        clients.running.remove("a")
        assert clients.running == ["c"]
        await clients.ends("c")

    play(scenario, 1, monkeypatch)
