"""The transport of executors carries cache commands, and brings back kept outputs."""

from __future__ import annotations

import pytest

from kaas.errors import KaasError
from kaas.pool.executors.payloads import OrderPayload
from kaas.pool.executors.transport import CacheOrder, WorkerCall, WorkerLost, WorkerReply
from kaas.wire import messages, specs
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import ExecutorReply, Named, RegisterFunction, RequestObjects, WrittenBack
from tests.pool.executors.executor_stage import FUNCTION, LARGE, RECORD, Ref, Stage, begin, play, small

# --- caches


def test_an_order_introduces_its_functions() -> None:
    async def scenario(stage: Stage) -> None:
        orders = OrderPayload([FUNCTION, LARGE], b"order", [Ref(b"x")])
        order = await begin(stage.executors.cache_command(3, CacheOrder(orders)))
        assert stage.router.headers() == [
            RegisterFunction(),
            RegisterFunction(),
            messages.CacheCommand(1, [Named(b"x")]),
        ]
        stage.say(RequestObjects(1))
        assert stage.hosts.supplied == [(3, 1, [Ref(b"x")])]
        stage.say(ExecutorReply(1, RECORD))
        assert await order == WorkerReply(record=RECORD)

    play(scenario)


def test_a_cache_decision_names_each_object_once() -> None:
    async def scenario(stage: Stage) -> None:
        invocation = specs.Invocation(
            "f", "alice", None, 0, True, {}, [], [specs.ObjectInput("x", 0, None, True)], constants=None
        )
        calls = [
            WorkerCall("f", "alice", None, 0, payload=small(Ref(b"x"), frames=[specs.encode(invocation)])) for _ in "ab"
        ]
        prefetch = await begin(stage.executors.prefetch(3, {b"x": calls[0]}))
        assert stage.router.headers() == [messages.CacheDecision(1, [Named(b"x")])]
        decided = specs.decode_decided(stage.router.sent[-1][2][0])
        assert decided == specs.CacheDecisionSpec([specs.KeyedObject(b"x", 0, None)], [], client="alice")
        stage.say(ExecutorReply(1, RECORD))
        assert (await prefetch).record == RECORD
        await begin(stage.executors.evict(3, [b"x"]))
        assert stage.router.headers()[-1] == messages.CacheDecision(2, [])
        assert specs.decode_decided(stage.router.sent[-1][2][0]) == specs.CacheDecisionSpec([], [b"x"])

    play(scenario)


def test_outputs_are_written_back_before_their_order_is_done() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.deferred_results[1] = ["array"]
        stage.residents.expect(b"kept", None)
        stage.residents.placed(b"kept", 3)
        value = await begin(stage.residents.value(b"kept"))
        order = await begin(stage.executors.write_back(3, [b"kept"]))
        assert stage.router.headers() == [messages.WriteBackOutput(1, [b"kept"])]
        stage.say(WrittenBack(b"kept", 1))
        stage.say(ExecutorReply(1, RECORD))
        assert await order == WorkerReply(record=RECORD)
        assert await value == "array"
        await begin(stage.executors.discard(3, [b"kept"]))
        assert stage.router.headers()[-1] == messages.Discard(2, [b"kept"])

    play(scenario)


def test_a_worker_whose_outputs_cannot_be_read_is_ended() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(WrittenBack(b"kept", 1))
        with pytest.raises(WorkerLost):
            await run
        assert stage.hosts.killed == [3]

    play(scenario)


def test_a_worker_that_stops_writes_back_the_outputs_it_keeps() -> None:
    async def scenario(stage: Stage) -> None:
        assert await stage.executors.stop(3) == ""
        stage.residents.expect(b"kept", small(keep={0: b"kept"}, frames=[INVOCATION]))
        stage.residents.placed(b"kept", 3)
        stopping = await begin(stage.executors.stop(3))
        stage.say(ExecutorReply(1, failed=True), encode_error(KaasError("no room")))
        assert await stopping == "outputs that it kept were not written back: no room"
        stopping = await begin(stage.executors.stop(3))
        stage.executors.kill(3)
        assert "it was ended" in await stopping

    play(scenario)


INVOCATION = specs.encode(specs.Invocation("f", "alice", None, 0, True, {}, [], [], constants=None, keep=(0,)))
