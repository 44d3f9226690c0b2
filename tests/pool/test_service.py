"""The pool's service over workers made of futures: calls by Ray, and the behaviour common to all callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kaas.errors import KaasError, PoolStopped, QueueFull
from kaas.pool import functions
from kaas.pool.executors.residents import Placed
from kaas.pool.executors.transport import WorkerReply
from kaas.pool.immediate_future import ImmediateFuture
from kaas.pool.loop import PoolThread
from kaas.pool.on_ray.keeping import KeptOutputs
from kaas.store import FUNCTIONS
from kaas.wire import specs
from kaas.wire.resident import Resident
from tests.api.conftest import scale_task
from tests.pool.fake_workers import settle
from tests.pool.program_stage import OUTPUT, SIGNATURE, SPEC, TASK_BYTES, Stage, X, invocation, play
from tests.timeouts import TIMEOUT_S

__all__ = ["play"]
LARGE = scale_task(100_000)


def invoke(stage: Stage, message: bytes, refs: Sequence[Any] = ()) -> ImmediateFuture[Any]:
    return stage.service.invoke(specs.decode_invocation(message), (message,), refs)


def test_an_invocation(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        answer = invoke(stage, invocation(session="of Ray"))
        await settle()
        [request] = stage.service.pool._requests.by_id.values()
        assert (request.call.label, request.call.client, request.call.session) == (
            SIGNATURE.task.label,
            "alice",
            "of Ray",
        )
        assert not request.call.payload.direct
        stage.workers.reply((OUTPUT,))
        assert await answer == (OUTPUT,)

    play(scenario)


def test_an_invocation_that_overtook_its_function(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        message = specs.encode(specs.Invocation(LARGE.key, "alice", None, 3, True, {}, [], [], None))
        answer = invoke(stage, message)
        await settle()
        assert stage.workers.runs == []
        stage.service.registry.register(specs.encode(specs.FunctionSpec(LARGE.key)), LARGE.to_msgpack())
        await settle()
        stage.workers.reply((OUTPUT,))
        assert await answer == (OUTPUT,)

    play(scenario)


def test_an_invocation_of_an_unregistered_function_fails(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(functions, "REGISTRATION_LIMIT_S", 0.0)
        message = specs.encode(specs.Invocation("f", "alice", None, 3, True, {}, [], [], None))
        with pytest.raises(KaasError, match="does not know"):
            await invoke(stage, message)

    play(scenario)


def test_cancelling_the_wait_cancels_the_request(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        running, queued = invoke(stage, invocation()), invoke(stage, invocation())
        await settle()
        queued.cancel()
        await settle()
        assert stage.service.status().queued == 0
        running.cancel()
        await settle()
        assert stage.service.status().running == 1
        stage.workers.reply((OUTPUT,))
        await settle()
        assert [each.outcome for each in stage.service.stats(False).outcomes] == ["cancelled"] * 2

    play(scenario)


def test_a_request_that_the_queue_refuses_raises_at_once(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        first = invoke(stage, invocation())
        await settle()
        second = invoke(stage, invocation())
        message = invocation()
        with pytest.raises(QueueFull):
            stage.service.invoke(specs.decode_invocation(message), (message,))
        await stage.service.stop()
        for answer in (first, second):
            with pytest.raises(PoolStopped):
                await answer

    play(scenario, queue_limit=1)


def test_inputs_that_do_not_exist_yet(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.backend.missing = {X.key}
        answer = invoke(stage, invocation(ref=X), [X])
        await settle()
        assert stage.service.status().waiting == 1
        answer.cancel()
        prefetch = specs.encode(specs.CacheCommandSpec("prefetch", None, (), True, False, "alice"))
        command = asyncio.ensure_future(stage.service.cache_command(prefetch, [X]))
        await settle()
        assert stage.workers.orders == []
        stage.backend.missing.clear()
        await asyncio.wait_for(command, TIMEOUT_S)
        assert len(stage.workers.orders) == 1

    play(scenario)


def test_a_cache_command_whose_object_never_arrives_ends_with_the_pool(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.backend.missing = {X.key}
        prefetch = specs.encode(specs.CacheCommandSpec("prefetch", None, (), True, False, "alice"))
        command = asyncio.ensure_future(stage.service.cache_command(prefetch, [X]))
        await settle()
        await stage.service.stop()
        with pytest.raises(PoolStopped):
            await command

    play(scenario)


def test_stopping_the_pool_forgets_its_stored_functions(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        store = stage.service._store
        assert list(store.read(FUNCTIONS)) == [SIGNATURE.key]
        await stage.service.stop()
        assert not store.read(FUNCTIONS)

    play(scenario)


def test_from_another_loop(play: Callable[..., None]) -> None:
    """Calls come from another loop, as Ray's do: the reply returns there, and a cancelled wait cancels the call."""

    async def scenario(stage: Stage) -> None:
        here = PoolThread()
        here.loop = asyncio.get_running_loop()  # the pool's, as this test runs it
        message = invocation()
        decoded = specs.decode_invocation(message)

        async def call() -> Any:
            return await here.ask(stage.service.invoke, decoded, (message,))

        first = asyncio.create_task(asyncio.to_thread(asyncio.run, call()))
        await asyncio.wait_for(_runs(stage, 1), TIMEOUT_S)
        stage.workers.reply((OUTPUT,))
        assert await first == (OUTPUT,)

        async def cancelled() -> None:
            waiting = asyncio.create_task(call())
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_runs(stage, 2), here.loop))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        await asyncio.to_thread(asyncio.run, cancelled())
        await settle()
        assert stage.service.status().running == 1
        stage.workers.reply((OUTPUT,))

    play(scenario)


async def _runs(stage: Stage, count: int) -> None:
    while len(stage.workers.runs) < count:
        await asyncio.sleep(0)


# --- outputs that stay on devices


class FakeMethod:
    def __init__(self, calls: list[bytes]) -> None:
        self._calls = calls

    def remote(self, key: bytes) -> Any:
        self._calls.append(key)
        return X.key


class FakePool:
    """The handle of the pool's own actor."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.materialise = self.wanted = FakeMethod(self.asked)


Keep = Callable[[Stage, KeptOutputs, FakePool], Awaitable[None]]


@pytest.fixture
def keep(play: Callable[..., None]) -> Callable[[Keep], None]:
    def run(scenario: Keep) -> None:
        async def with_large(stage: Stage) -> None:
            stage.service.registry.register(specs.encode(specs.FunctionSpec(LARGE.key)), LARGE.to_msgpack())
            stage.service.residents.worker_came(0)
            own = FakePool()
            await scenario(stage, KeptOutputs(stage.service, own, dict), own)

        play(with_large)

    return run


def large(key: bytes = b"k") -> tuple[specs.Invocation, bytes, tuple[()], dict[int, bytes]]:
    decoded = specs.Invocation(LARGE.key, "alice", None, 3, True, {}, [], [], None, keep=(0,))
    return decoded, specs.encode(decoded), (), {0: key}


def test_an_output_that_stays(keep: Callable[[Keep], None]) -> None:
    async def scenario(stage: Stage, keeping: KeptOutputs, own: FakePool) -> None:
        answer = asyncio.ensure_future(keeping.invoke(*large()))
        await settle()
        stage.service.residents.placed(b"k", 0)
        stage.workers.reply((Placed(b"k", 0),))
        [resident] = await answer
        assert isinstance(resident, Resident)
        assert (resident.key, resident.shape, resident.nbytes) == (b"k", (100_000,), 400_000)
        assert own.asked == [b"k"]
        wanted = asyncio.ensure_future(keeping.wanted(b"k"))
        await settle()
        assert stage.workers.decided == [(0, [b"k"])]
        await wanted

    keep(scenario)


def test_an_invocation_that_fails_keeps_nothing(keep: Callable[[Keep], None]) -> None:
    async def scenario(stage: Stage, keeping: KeptOutputs, own: FakePool) -> None:
        answer = asyncio.ensure_future(keeping.invoke(*large()))
        await settle()
        assert len(stage.service.residents) == 1
        stage.workers.reply(WorkerReply(error=KaasError("no")))
        with pytest.raises(KaasError, match="no"):
            await answer
        assert len(stage.service.residents) == 0
        await keeping.wanted(b"k")
        assert own.asked == []

    keep(scenario)


def test_an_output_on_a_device_that_fails_is_lost(keep: Callable[[Keep], None]) -> None:
    async def scenario(stage: Stage, keeping: KeptOutputs, own: FakePool) -> None:  # noqa: ARG001
        answer = asyncio.ensure_future(keeping.invoke(*large()))
        await settle()
        stage.service.residents.placed(b"k", 0)
        stage.workers.reply((Placed(b"k", 0),))
        await answer
        value = asyncio.ensure_future(stage.service.residents.value(b"k"))
        stage.workers.refuses = KaasError("broken")
        await keeping.wanted(b"k")
        assert (await value).output == 0

    keep(scenario)


def test_registered_bytes_are_those_that_executors_get(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        assert (await stage.service.function(SIGNATURE.key)).introduction == (SPEC, TASK_BYTES)

    play(scenario)
