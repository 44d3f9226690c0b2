"""Calls of kaas.AsyncClient are awaited, and never hold the loop."""

from __future__ import annotations

import asyncio

import pytest

import kaas
from kaas.errors import DeadlineExceeded
from kaas.executor.device.device import open_device
from kaas.wire import protocol
from tests.client.client_setting import ONES, TASK, client, server, small, wait_for_invokes
from tests.client.fake_server import FakeServer
from tests.exporters import InThreads
from tests.timeouts import TIMEOUT_S

__all__ = ["client", "server"]


# --- asyncio


def test_calls_are_awaited(server: FakeServer) -> None:
    server.limits = small(4)

    async def main() -> None:
        async with kaas.AsyncClient(server.address, patience_s=TIMEOUT_S) as client:
            function = await client.register(TASK)
            values = await asyncio.gather(*(client.call(function, {"x": ONES * n}) for n in range(64)))
            assert [value[0] for value in values] == [2 * n for n in range(64)]
            assert (await function.call(ONES) == 2).all()
            there = await client.put("there", ONES)
            assert (await client.call(TASK, {"x": there}) == 2).all()
            assert (await client.get("there") == 1).all()
            assert await client.health() == {"asked": "health"}

    asyncio.run(main())


def test_arrays_on_a_device_are_read_after_the_work_of_the_programs_thread(
    server: FakeServer,
    softgpu: tuple[int, ...],  # noqa: ARG001
) -> None:
    device = open_device("software", 1)

    def on_device() -> InThreads:
        return InThreads(device, 1, ONES)

    async def main() -> None:
        async with kaas.AsyncClient(server.address, patience_s=TIMEOUT_S) as client:
            there = await client.put("there", on_device())
            assert (await client.get(there) == ONES).all()
            await client.register(TASK, {"x": on_device()})
            (constant,) = server.of(protocol.Register)[-1].constants.values()
            assert (await client.get(constant) == ONES).all()

    try:
        asyncio.run(main())
    finally:
        device.close()


def test_a_cancelled_call_takes_no_credit(server: FakeServer) -> None:
    server.limits, server.silent = small(1), True

    async def main() -> None:
        async with kaas.AsyncClient(server.address, patience_s=TIMEOUT_S) as client:
            function = await client.register(TASK)
            first = asyncio.create_task(client.call(function, {"x": ONES}))
            await asyncio.to_thread(wait_for_invokes, server, 1)
            waits = asyncio.create_task(client.call(function, {"x": ONES}))
            with pytest.raises(DeadlineExceeded):
                await client.call(function, {"x": ONES}, deadline_s=0.05)
            for task in (waits, first):
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            server.silent = False
            assert (await client.call(function, {"x": ONES}) == 2).all()

    asyncio.run(main())


def test_an_event_loop_never_waits_for_credit(server: FakeServer) -> None:
    server.limits, server.silent = small(1), True

    async def main() -> None:
        with kaas.Client(server.address, patience_s=TIMEOUT_S) as client:
            function = await asyncio.to_thread(client.register, TASK)
            first = client.call(function, {"x": ONES})
            late = client.call(function, {"x": ONES}, deadline_s=0.05)
            with pytest.raises(DeadlineExceeded):
                await late
            waits = client.call(function, {"x": ONES})
            waits.cancel()
            first.cancel()
            server.silent = False
            many = [client.call(function, {"x": ONES * n}) for n in range(300)]
            for n, future in enumerate(many):
                assert (await future)[0] == 2 * n

    asyncio.run(main())
