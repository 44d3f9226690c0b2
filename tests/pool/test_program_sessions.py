"""Programs that connect to the pool's sockets: their messages become requests, and each gets its reply."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kaas.errors import DeadlineExceeded, InvalidRequest, PoolStopped, QueueFull, UnknownSymbol
from kaas.pool.executors.transport import WorkerReply
from kaas.wire import messages, specs
from kaas.wire.messages import (
    AnnounceFunction,
    CallFailure,
    CallResult,
    CancelCall,
    Framed,
    Named,
    PeerHello,
    PoolQuery,
    Submit,
)
from kaas.wire.status import status_codec
from kaas.wire.status.stats import Stats
from kaas.wire.status.status import Status
from tests.pool.fake_workers import RECORD, settle
from tests.pool.program_stage import BLOCK, OUTPUT, SIGNATURE, TASK, Stage, X, _sent, blocks, invocation, play
from tests.timeouts import TIMEOUT_S

__all__ = ["play"]


def test_an_invocation_and_its_outputs(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(7)
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.router.sent == [("p", CallResult(7), [OUTPUT])]

    play(scenario)


def test_an_error_and_its_fields(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        stage.workers.reply(WorkerReply(error=UnknownSymbol("no such kernel", symbol="sale", near=("scale",))))
        await settle()
        error = stage.error()
        assert isinstance(error, UnknownSymbol)
        assert error.near == ("scale",)

    play(scenario)


def test_the_same_number_again_while_it_runs_is_the_same_request(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(1)
        assert len(stage.workers.runs) == 1
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", CallResult(1))]
        await stage.submit(1)  # it has its reply, and is forgotten
        assert len(stage.workers.runs) == 2

    play(scenario)


def test_replies_are_sent_to_the_newest_connection(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.greet("q", incarnation="2")
        await stage.submit(2, peer="p")  # ignored, as an earlier connection
        await stage.submit(1, peer="q")
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("q", CallResult(1))]
        assert len(stage.workers.runs) == 1
        assert stage.router.forgotten == ["p"]
        await stage.greet("q", incarnation="2")  # again, after a reconnection
        assert stage.router.forgotten == ["p"]

    play(scenario)


def test_a_connection_that_was_replaced_is_refused(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.greet("q", incarnation="2")
        with pytest.raises(InvalidRequest, match="newer"):
            await stage.greet("p again", incarnation="1")
        await stage.submit(1, peer="q")
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("q", CallResult(1))]

    play(scenario)


def test_numbers_of_two_sessions_are_their_own(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.greet("q", "other")
        await stage.submit(1)
        await stage.submit(1, peer="q")
        for _ in range(2):
            stage.workers.reply([OUTPUT])
            await settle()
        assert stage.answers() == [("p", CallResult(1)), ("q", CallResult(1))]

    play(scenario)


def test_cancel_of_a_queued_and_of_a_running_request(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(2)
        await stage.say("p", CancelCall(2))
        assert stage.service.status().queued == 0
        await stage.say("p", CancelCall(1))
        await stage.say("p", CancelCall(99))
        assert stage.service.status().running == 1
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.service.status().running == 0
        assert stage.answers() == []
        assert [each.outcome for each in stage.service.stats(False).outcomes] == ["cancelled"] * 2

    play(scenario)


# --- ends


def test_a_session_that_ends_takes_its_requests_along(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(2)
        stage.backend.objects.hold("s", [X])
        stage.service.session_ended("s")
        await settle()
        assert stage.service.status().queued == 0
        with pytest.raises(InvalidRequest):
            stage.backend.objects.ref("s", Named(X.key))
        await stage.submit(3)
        stage.workers.reply([OUTPUT])
        await settle()
        assert len(stage.workers.runs) == 1

    play(scenario)


def test_the_pool_stops(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.say("p", PoolQuery(2, "stop"))
        await stage.service.program_sessions.all_replied()
        assert {type(header): header.number for _, header in stage.answers()} == {CallFailure: 1, CallResult: 2}
        assert stage.service.stopped.is_set()
        await stage.submit(3)
        assert isinstance(stage.error(), PoolStopped)

    play(scenario)


def test_a_program_that_stops_the_pool_may_end_before_the_pool_has_stopped(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.router.receive(stage.peers["p"], PoolQuery(1, "stop"), [])
        await asyncio.sleep(0)
        stage.service.session_ended("s")
        await asyncio.wait_for(stage.service.stopped.wait(), TIMEOUT_S)

    play(scenario)


def test_deadlines_and_limits_hold(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(2, deadline_s=1e-9)
        await asyncio.wait_for(_sent(stage, 1), TIMEOUT_S)
        assert isinstance(stage.error(), DeadlineExceeded)
        await stage.submit(3)
        await stage.submit(4)
        assert isinstance(stage.error(), QueueFull)

    play(scenario, queue_limit=1)


# --- all else that is asked


def test_status_figures_and_pardon(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        stage.workers.reply(WorkerReply([OUTPUT], record=RECORD))
        await stage.say("p", PoolQuery(2, "status"))
        await stage.say("p", PoolQuery(3, "stats"), b"1")
        await stage.say("p", PoolQuery(4, "pardon"), SIGNATURE.key.encode())
        found = {header.number: frames for _, header, frames in stage.router.sent}
        assert status_codec.decode(found[2][0], Status).functions == (TASK.label,)
        assert status_codec.decode(found[3][0], Stats).outcomes[0].outcome == "succeeded"
        assert found[4] == [b"0"]
        assert stage.service.stats(False).outcomes == ()

    play(scenario)


def test_cache_command(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        flush = specs.encode(specs.CacheCommandSpec("flush", None, (SIGNATURE.key,), False, True, "alice"))
        await stage.say("p", PoolQuery(1, "upkeep"), flush)
        assert stage.answers() == [("p", CallResult(1))]
        [(_, orders)] = stage.workers.orders
        assert [function.key for function in orders.functions] == [SIGNATURE.key]

    play(scenario)


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (Submit(1), []),
        (Submit(1), [b"no invocation"]),
        (Submit(1), [invocation(keep=True)]),
        (Submit(1), [invocation(deadline_s=float("nan"))]),
        (Submit(1), [invocation(ref=X)]),
        (Submit(1, [Framed(5)]), [blocks(1)[1]]),
        (Submit(1, [msgspec.structs.replace(BLOCK, pid=2)]), [blocks(1)[1]]),
        (PoolQuery(1, "the time"), []),
        (PoolQuery(1, "stats"), []),
        (PoolQuery(1, "hold", [Framed(1)]), [b"value"]),
        (PoolQuery(1, "upkeep"), [b"no upkeep"]),
    ],
)
def test_senseless_messages_get_an_answer(play: Callable[..., None], message: Any, frames: list[bytes]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", message, *frames)
        assert isinstance(stage.error(), InvalidRequest)
        await stage.submit(2)
        assert len(stage.workers.runs) == 1

    play(scenario)


@pytest.mark.parametrize("item", [msgspec.structs.replace(BLOCK, pid=2), Framed(0), Framed(2)], ids=str)
def test_only_memory_that_a_program_may_share_is_held(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, item: Any
) -> None:
    held_for: list[str] = []

    async def keep(session: str, *_: Any) -> None:
        held_for.append(session)

    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(stage.backend.objects, "keep", keep)
        await stage.say("p", PoolQuery(1, "hold", [BLOCK]), b"keys")
        assert held_for == ["s"]
        stage.answers()
        await stage.say("p", PoolQuery(2, "hold", [item]), b"keys")
        assert isinstance(stage.error(), InvalidRequest)
        assert held_for == ["s"]

    play(scenario)


def test_a_request_for_an_unregistered_function_is_refused(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", AnnounceFunction(), b"", b"no kTask")
        await stage.say("p", Submit(1), specs.encode(specs.Invocation("f", "a", None, 0, True, {}, [], [], None)))
        assert "does not know" in str(stage.error())

    play(scenario)


def test_messages_of_executors_reach_the_transport_of_executors_only(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        hello = PeerHello(messages.VERSION, "executor", "0", "1", 1)
        stage.router.greet("e", hello)
        await stage.say("e", messages.RequestObjects(3))
        assert stage.backend.executors.heard == [("e", hello), ("e", messages.RequestObjects(3))]
        assert [hello.name for hello in stage.backend.here] == ["s"]
        await stage.submit(1, peer="e")  # an executor's messages are never a program's
        assert stage.answers() == []
        await stage.say("p", messages.ExecutorReply(1))  # nor the other way around
        assert stage.answers() == []
        assert len(stage.backend.executors.heard) == 3

    play(scenario)
