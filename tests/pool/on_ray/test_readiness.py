"""Waits for references: no wait delays another, and references without a wait are forgotten."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from kaas.pool.on_ray.readiness import Readiness
from tests.timeouts import TIMEOUT_S


class Objects:
    """Names of objects, of which some exist."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.there: set[str] = set()
        self.asked: list[list[str]] = []
        self.broken = False

    def add(self, *names: str) -> None:
        with self.changed:
            self.there.update(names)
            self.changed.notify_all()

    def exist(self, names: Sequence[str], enough: int, timeout_s: float) -> tuple[list[str], list[str]]:
        with self.changed:
            self.asked.append(list(names))
            if self.broken and timeout_s:
                raise ConnectionError("the store is gone")
            self.changed.wait_for(lambda: len(self.there & set(names)) >= enough, timeout=timeout_s)
            return [n for n in names if n in self.there], [n for n in names if n not in self.there]


Scenario = Callable[[Readiness, Objects], Awaitable[None]]


def play(scenario: Scenario) -> None:
    async def main() -> None:
        objects = Objects()
        await scenario(Readiness(asyncio.get_running_loop(), objects.exist), objects)

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


def test_existing_objects_need_no_wait() -> None:
    async def scenario(readiness: Readiness, objects: Objects) -> None:
        objects.add("a", "b")
        assert readiness.of(["a", "b", "a"]) is None
        assert objects.asked == [["a", "b"]]

    play(scenario)


def test_each_waits_for_its_own() -> None:
    async def scenario(readiness: Readiness, objects: Objects) -> None:
        objects.add("b")
        first, second, both = readiness.of(["a", "b"]), readiness.of(["c"]), readiness.of(["a", "c"])
        assert first is not None
        assert second is not None
        assert both is not None
        objects.add("c")
        await second
        assert not first.done()
        assert not both.done()
        objects.add("a")
        await asyncio.gather(first, both)

    play(scenario)


def test_abandoned_references_are_forgotten() -> None:
    async def scenario(readiness: Readiness, objects: Objects) -> None:
        abandoned, kept = readiness.of(["never"]), readiness.of(["late"])
        assert abandoned is not None
        assert kept is not None
        abandoned.cancel()
        with pytest.raises(asyncio.CancelledError):
            await abandoned
        objects.asked.append([])
        while objects.asked[-1] != ["late"]:
            await asyncio.sleep(0)
        objects.add("late")
        await kept

    play(scenario)


def test_store_that_fails_lets_the_executor_find_out() -> None:
    async def scenario(readiness: Readiness, objects: Objects) -> None:
        objects.broken = True
        waiting = readiness.of(["a"])
        assert waiting is not None
        await waiting

    play(scenario)
