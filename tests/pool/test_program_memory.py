"""Memory and objects that programs attach to messages: the pool holds them while a request needs them, not longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from kaas.errors import InvalidRequest, OutOfHostMemory
from kaas.pool.on_ray import ref_leases
from kaas.wire import specs
from kaas.wire.messages import CallFailure, CallResult, CancelCall, Drop, Framed, Named, PoolQuery, Release, Submit
from tests.pool.fake_workers import settle
from tests.pool.program_stage import BLOCK, OUTPUT, Stage, X, _sent, blocks, invocation, play
from tests.timeouts import TIMEOUT_S

__all__ = ["play"]


def test_blocks_are_free_with_the_answer(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", *blocks(1))
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", CallResult(1))]

    play(scenario)


def test_blocks_of_a_cancelled_request_are_free_when_it_ends(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", *blocks(1))
        await stage.say("p", *blocks(2))
        await stage.say("p", CancelCall(2))
        assert stage.answers() == [("p", Release(2))], "it was only queued"
        await stage.say("p", CancelCall(1))
        await stage.say("p", CancelCall(1))
        assert stage.answers() == []
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", Release(1))]

    play(scenario)


def test_blocks_of_a_request_past_its_deadline_are_free_when_it_ends(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        submit, message = blocks(1)
        soon = specs.encode(msgspec.structs.replace(specs.decode_invocation(message), deadline_s=0.05))
        await stage.say("p", submit, soon)
        await asyncio.wait_for(_sent(stage, 1), TIMEOUT_S)
        assert stage.answers() == [("p", CallFailure(1, held=True))]
        await stage.greet("q", incarnation="2")
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("q", Release(1))]

    play(scenario)


def test_a_message_that_the_pool_has_no_memory_for(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        for message in (Submit(1, [Framed(2)]), PoolQuery(2, "hold", [Framed(2)])):
            await stage.say("p", message, OutOfHostMemory("no room", reason="full"))
            assert isinstance(stage.error(), OutOfHostMemory)
        assert stage.workers.runs == []

    play(scenario)


# --- objects


def test_objects_that_the_session_holds(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.backend.objects.hold("s", [X])
        await stage.submit(1, attached=[Named(X.key)], ref=X)
        [request] = stage.service.pool._requests.by_id.values()
        assert list(request.call.payload.refs) == [X]
        assert request.call.uses[0].key == X.key

    play(scenario)


def test_a_request_waits_for_objects_that_its_session_is_about_to_hold(play: Callable[..., None]) -> None:
    """Another message brings the objects."""

    async def scenario(stage: Stage) -> None:
        stage.backend.objects.hold("other", [X])
        for number in (1, 2):
            await stage.submit(number, attached=[Named(X.key), BLOCK], ref=X)
        await stage.say("p", CancelCall(2))
        assert stage.answers() == [("p", Release(2))]
        assert stage.workers.runs == []
        stage.backend.objects.hold("s", [X])
        await settle()
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", CallResult(1))]

    play(scenario)


def test_a_request_runs_when_its_objects_arrive_before_the_wait_has_begun(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.router.receive(stage.peers["p"], Submit(1, [Named(X.key)]), [invocation(ref=X)])
        stage.backend.objects.hold("s", [X])
        await settle()
        assert len(stage.workers.runs) == 1

    play(scenario)


def test_a_request_fails_when_its_session_never_holds_its_objects(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(ref_leases, "HOLD_LIMIT_S", 0.0)
        stage.backend.objects.hold("s", [X])
        await stage.say("p", Drop([X.key]))
        await stage.submit(1, attached=[Named(X.key)], ref=X)
        await asyncio.wait_for(_sent(stage, 1), TIMEOUT_S)
        assert isinstance(stage.error(), InvalidRequest)
        stage.backend.objects.hold("s", [X])
        await stage.submit(1, attached=[Named(X.key)], ref=X)
        assert len(stage.workers.runs) == 1

    play(scenario)


def test_holds_are_counted(play: Callable[..., None]) -> None:
    """A drop may overtake its hold."""

    async def scenario(stage: Stage) -> None:
        objects = stage.backend.objects
        await stage.say("p", Drop([X.key]))
        objects.hold("s", [X])
        assert not objects._sessions["s"]
        objects.hold("s", [X, X])
        await stage.say("p", Drop([X.key]))
        assert objects.ref("s", Named(X.key)) is X
        await stage.say("p", Drop([X.key]))
        with pytest.raises(InvalidRequest):
            objects.ref("s", Named(X.key))

    play(scenario)


def test_a_hold_that_was_dropped_in_advance_does_not_end_the_wait(play: Callable[..., None]) -> None:
    """A call is cancelled, and another names the same object, before the pool receives either hold."""

    async def scenario(stage: Stage) -> None:
        await stage.say("p", Drop([X.key]))
        await stage.submit(1, attached=[Named(X.key)], ref=X)
        stage.backend.objects.hold("s", [X])
        await settle()
        assert (stage.answers(), stage.workers.runs) == ([], [])
        stage.backend.objects.hold("s", [X])
        await asyncio.wait_for(_run(stage), TIMEOUT_S)

    play(scenario)


def test_a_request_waits_for_an_object_that_does_not_exist_yet(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.backend.missing = {X.key}
        stage.backend.objects.hold("s", [X])
        await stage.submit(1, attached=[Named(X.key)], ref=X, deadline_s=60.0)
        assert stage.service.status().waiting == 1
        await stage.say("p", CancelCall(1))
        await stage.submit(2, attached=[Named(X.key)], ref=X)
        stage.backend.missing.clear()
        await asyncio.wait_for(_run(stage), TIMEOUT_S)

    play(scenario)


async def _run(stage: Stage) -> None:
    while not stage.workers.runs:
        await asyncio.sleep(0)
