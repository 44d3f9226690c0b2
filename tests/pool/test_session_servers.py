"""Servers in the pool's process, from the first call of their session until they have drained or it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kaas.errors import InvalidConfig, PoolStopped
from kaas.pool import session_servers as pool_listeners
from kaas.pool.loop import PoolThread
from kaas.pool.session_servers import SessionServers
from tests.timeouts import TIMEOUT_S


class FakeListener:
    endpoint = "there"

    def __init__(self) -> None:
        self.leave, self.closed = asyncio.Event(), False

    def drain(self, reason: str) -> None:  # noqa: ARG002
        self.leave.set()

    def reload(self, settings: object) -> None:
        """Ignore settings."""

    async def left(self) -> None:
        await self.leave.wait()

    async def close(self) -> None:
        self.closed = True


async def opening(listener: FakeListener) -> FakeListener:
    return listener


@pytest.mark.parametrize(
    "end",
    [lambda session_servers, _: session_servers.end("a"), lambda _, listener: listener.drain("enough")],
    ids=["gone", "drained"],
)
def test_a_listener_is_closed_when_its_session_ends_or_it_has_drained(
    end: Callable[[SessionServers, FakeListener], None],
) -> None:
    async def scenario() -> None:
        session_servers, listener = SessionServers(), FakeListener()
        opened = asyncio.ensure_future(session_servers.opened("a"))  # before the server is open
        await asyncio.sleep(0)
        serving = session_servers.serve("a", lambda: opening(listener))
        assert (await opened).endpoint == "there"
        end(session_servers, listener)
        await serving
        assert listener.closed
        session_servers.end("a")  # the session has no server any more

    asyncio.run(scenario())


def test_a_session_that_ended_while_the_pool_opened_is_not_served() -> None:
    """The task is cancelled before the pool's thread begins it."""
    session_servers, listener, there = SessionServers(), FakeListener(), PoolThread()

    async def scenario() -> None:
        serving = asyncio.ensure_future(there.ask(session_servers.serve, "a", lambda: opening(listener)))
        await asyncio.sleep(0)
        there.post(session_servers.end, "a")
        there.start()
        await asyncio.wait_for(serving, TIMEOUT_S)

    asyncio.run(scenario())
    there.close()
    assert listener.closed


def test_every_waiter_gets_the_error_of_a_listener_that_does_not_open() -> None:
    async def fails() -> FakeListener:
        raise InvalidConfig("no such port", field="listen.port")

    async def scenario() -> None:
        session_servers = SessionServers()
        waits: list[Awaitable[object]] = [asyncio.ensure_future(session_servers.opened("a"))]
        await asyncio.sleep(0)
        waits.append(session_servers.serve("a", fails))
        for error in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(error, InvalidConfig)

    asyncio.run(scenario())


def test_a_listener_that_is_given_up_before_it_begins_leaves_nothing() -> None:
    async def scenario() -> None:
        session_servers, listener = SessionServers(), FakeListener()
        asked = asyncio.ensure_future(session_servers.opened("a"))
        await asyncio.sleep(0)
        session_servers.end("a")
        session_servers.serve("a", lambda: opening(listener)).cancel()
        with pytest.raises(PoolStopped):
            await asked
        again = session_servers.serve("a", lambda: opening(listener))
        assert await session_servers.opened("a") is listener
        again.cancel()
        with pytest.raises(asyncio.CancelledError):
            await again

    asyncio.run(scenario())


def test_a_listener_that_never_opens_is_forgotten_with_its_last_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        session_servers, listener = SessionServers(), FakeListener()
        given_up, waits = (
            asyncio.ensure_future(session_servers.opened("a")),
            asyncio.ensure_future(session_servers.opened("a")),
        )
        await asyncio.sleep(0)
        given_up.cancel()
        await asyncio.wait((given_up,))
        serving = session_servers.serve("a", lambda: opening(listener))
        assert await waits is listener
        session_servers.end("a")
        await serving
        monkeypatch.setattr(pool_listeners, "OPEN_LIMIT_S", 0.0)
        with pytest.raises(TimeoutError):
            await session_servers.opened("a")
        assert not session_servers._entries

    asyncio.run(scenario())
