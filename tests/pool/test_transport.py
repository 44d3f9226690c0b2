"""What goes to an executor with a run: its slot, and its function until the executor is known to have it."""

from __future__ import annotations

import asyncio
import pickle
import sys
from collections.abc import Awaitable, Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kaas.config import Config, Device
from kaas.errors import KaasError, UnknownSymbol
from kaas.pool import ray_transport, wire
from kaas.pool.etasks import ETasks
from kaas.pool.functions import RegisteredFunction
from kaas.pool.ray_transport import Orders, Payload, RayTransport
from kaas.pool.readiness import Readiness
from kaas.pool.residents import Residents
from kaas.pool.transport import Call, Order, Reply
from tests.api.conftest import scale_task

TASK = scale_task()
FUNCTION = RegisteredFunction.of(wire.FunctionSpec(TASK.key), TASK, "where the kTask lies")
INTRODUCTION = (wire.encode(FUNCTION.spec), ["where the kTask lies"])
FINE = wire.encode(wire.Answer([b""], wire.RunRecord({}, {}, [], [], 0.0)))
WRONG = wire.encode(wire.Answer([], error=pickle.dumps(UnknownSymbol("no such kernel", symbol="sale", near=()))))


class FakeActor:
    """An executor that answers when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: list[asyncio.Future[bytes]] = []
        self.run = self.upkeep = SimpleNamespace(remote=self._remote)

    def _remote(self, *args: Any) -> asyncio.Future[bytes]:
        self.calls.append(args)
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


Scenario = Callable[[RayTransport, FakeActor], Awaitable[None]]


def play(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        readiness = Readiness(loop, lambda refs, *_: (list(refs), []))
        transport, actor = RayTransport(Config(devices=(Device(),)), readiness, Residents(loop), ETasks()), FakeActor()
        transport._actors[0], transport._met[0] = actor, set()
        await scenario(transport, actor)

    monkeypatch.setattr(ray_transport, "cluster_resources", dict)
    asyncio.run(asyncio.wait_for(main(), timeout=10))


async def begin(transport: RayTransport, slot: int, *refs: Any) -> asyncio.Task[Reply]:
    run = transport.run(0, slot, Call("f", "alice", None, 0, payload=Payload(FUNCTION, b"message", list(refs))))
    task = asyncio.get_running_loop().create_task(run)
    await asyncio.sleep(0)
    return task


def test_a_function_is_introduced_until_one_call_has_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(transport: RayTransport, actor: FakeActor) -> None:
        first, second = await begin(transport, 0), await begin(transport, 1)
        assert [call[2:] for call in actor.calls] == [(INTRODUCTION, 0), (INTRODUCTION, 1)]
        actor.answers[1].set_result(WRONG)
        assert isinstance((await second).error, UnknownSymbol)
        third = await begin(transport, 1)
        assert actor.calls[2][2] == INTRODUCTION
        actor.answers[0].set_result(FINE)
        await first
        fourth = await begin(transport, 0)
        assert actor.calls[3] == (b"message",)
        fifth = await begin(transport, 0, "a ref")
        assert actor.calls[4] == (b"message", ["a ref"])
        transport._actors.pop(0)
        transport._met.pop(0)
        for answer, task in zip(actor.answers[2:], (third, fourth, fifth), strict=True):
            answer.set_result(FINE)
            assert (await task).error is None

    play(scenario, monkeypatch)


def test_the_slot_goes_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(transport: RayTransport, actor: FakeActor) -> None:
        transport._met[0].add(FUNCTION.key)
        for slot in (0, 1, 2):
            await begin(transport, slot)
        assert actor.calls == [(b"message",), (b"message", [], None, 1), (b"message", [], None, 2)]

    play(scenario, monkeypatch)


def test_an_order_introduces_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(transport: RayTransport, actor: FakeActor) -> None:
        for expected in ([INTRODUCTION], []):
            order = asyncio.get_running_loop().create_task(transport.upkeep(0, Order(Orders([FUNCTION], b"order", []))))
            await asyncio.sleep(0)
            assert actor.calls[-1] == (b"order", [], expected)
            actor.answers[-1].set_result(FINE)
            assert (await order).error is None

    play(scenario, monkeypatch)


def test_an_error_of_a_class_that_is_not_here_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ModuleType("only_there")
    exec("from kaas.errors import NotProvided\nclass Gone(NotProvided): pass", there.__dict__)
    with monkeypatch.context() as known:
        known.setitem(sys.modules, "only_there", there)
        strange = wire.encode(wire.Answer([], error=pickle.dumps(there.Gone("no such thing"))))

    async def scenario(transport: RayTransport, actor: FakeActor) -> None:
        run = await begin(transport, 0)
        actor.answers[0].set_result(strange)
        error = (await run).error
        assert type(error) is KaasError
        assert "only_there" in error.message

    play(scenario, monkeypatch)
