"""Programs that speak to the pool over its sockets: what they send becomes requests, and each gets its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from kaas.config import Config, Device
from kaas.error_codec import decode_error
from kaas.errors import DeadlineExceeded, InvalidRequest, KaasError, PoolStopped, QueueFull, UnknownSymbol
from kaas.pool import held, messages, service, status_codec, wire
from kaas.pool.held import HeldRefs
from kaas.pool.messages import (
    Ask,
    Block,
    Cancel,
    Drop,
    Failure,
    Framed,
    Hello,
    Named,
    Register,
    Release,
    Result,
    Submit,
)
from kaas.pool.packing import Caller, Signature, pack
from kaas.pool.readiness import Readiness
from kaas.pool.service import Service
from kaas.pool.stats import Stats
from kaas.pool.status import Status
from kaas.pool.transport import Reply
from kaas.store import SqliteStore
from tests.api.conftest import numbers, scale_task
from tests.patience import PATIENCE_S
from tests.pool.test_core import RECORD, FakeWorkers, settle

TASK = scale_task()
SIGNATURE = Signature.of(TASK)
SPEC, TASK_BYTES = wire.encode(SIGNATURE.spec), TASK.to_msgpack()
BLOCK = Block(1, 2, 0, 4000)
OUTPUT = b"output"


@dataclass(frozen=True)
class Ref:
    """What stands for an ObjectRef."""

    key: bytes

    def binary(self) -> bytes:
        return self.key


X = Ref(b"x" * 28)


class FakePeer(str):
    """The other end of a line."""

    pid, shares = 1, True


class FakeExchange:
    """Sockets that keep what is sent."""

    address = messages.Address("life", "node", "ipc://nowhere")

    def __init__(self, *_: Any) -> None:
        self.sent: list[tuple[Any, Any, list[Any]]] = []
        self.forgotten: list[Any] = []

    def open(self, receive: Callable[..., None], greet: Callable[..., None]) -> None:
        self.receive, self.greet = receive, greet

    def send(self, peer: Any, header: Any, frames: Sequence[Any] = ()) -> None:
        self.sent.append((peer, header, list(frames)))

    def forget(self, peer: Any) -> None:
        self.forgotten.append(peer)

    def hide(self) -> None: ...

    def close(self) -> None: ...


class FakeExecutors:
    """Keeps what is for executors."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, Any]] = []

    def greet(self, peer: Any, hello: Hello) -> None:
        self.heard.append((peer, hello))

    def receive(self, peer: Any, message: Any, frames: Sequence[Any]) -> None:  # noqa: ARG002
        self.heard.append((peer, message))

    async def survivors(self) -> list[Any]:
        return []


class FakeGround:
    """What a pool stands on, made of nothing. Objects whose keys are in `missing` do not exist yet."""

    node, host, again = "node", None, False

    def __init__(self) -> None:
        self.missing: set[bytes] = set()
        self.objects = HeldRefs(Readiness(asyncio.get_running_loop(), self._exist))
        self.executors, self.transport = FakeExecutors(), FakeWorkers()
        self.here: list[Hello] = []

    def _exist(self, refs: Sequence[Ref], *_: Any) -> tuple[list[Ref], list[Ref]]:
        there = [ref for ref in refs if ref.key not in self.missing]
        return there, [ref for ref in refs if ref not in there]

    def workers(self, *_: Any) -> Any:
        return self.executors, self.transport

    def came(self, hello: Hello) -> None:
        self.here.append(hello)


class Stage:
    """A pool, and the programs that talk to it."""

    def __init__(self, pool: Service, ground: FakeGround) -> None:
        self.service = pool
        self.ground = ground
        self.workers = ground.transport
        self.peers: dict[str, FakePeer] = {}
        self.exchange: Any = pool._exchange

    async def greet(self, peer: str, session: str = "s", incarnation: str = "1") -> None:
        self.exchange.greet(
            self.peers.setdefault(peer, FakePeer(peer)), Hello(messages.VERSION, "client", session, incarnation, 1)
        )

    async def say(self, peer: str, message: Any, *frames: bytes) -> None:
        self.exchange.receive(peer, message, list(frames))
        await settle()

    async def submit(self, number: int, peer: str = "p", beside: Sequence[Any] = (), **options: Any) -> None:
        await self.say(peer, Submit(number, beside), invocation(**options))

    def answers(self) -> list[tuple[Any, Any]]:
        """What was sent since it was last asked, each message with its peer."""
        sent = [(peer, header) for peer, header, _ in self.exchange.sent]
        self.exchange.sent.clear()
        return sent

    def error(self) -> KaasError:
        """The one that was sent, alone."""
        [(_, header, frames)] = self.exchange.sent
        assert isinstance(header, Failure)
        self.exchange.sent.clear()
        return decode_error(frames[0])


def invocation(ref: Any = None, value: Any = None, **caller: Any) -> bytes:
    inputs = {"x": ref or (numbers() if value is None else value)}
    store: Any = RefStore()
    message, _ = pack(SIGNATURE, inputs, {"factor": 2.0}, Caller("alice", **caller), store)
    return message


class RefStore:
    """What packing needs: refs are `Ref`, none of which is known to be complete."""

    def is_ref(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def complete(self, refs: Sequence[Any]) -> bool:  # noqa: ARG002
        return False


Scenario = Callable[[Stage], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a scenario on a pool with one device and a program `p` of session `s`, which has registered its function."""
    monkeypatch.setattr(service, "Exchange", FakeExchange)

    def run(scenario: Scenario, **config: Any) -> None:
        async def main() -> None:
            ground: Any = FakeGround()
            store = SqliteStore(":memory:")
            store.open()
            pool = await Service.open("test", Config(devices=(Device(),), **config), ground, store)
            await settle()
            stage = Stage(pool, ground)
            await stage.greet("p")
            await stage.say("p", Register(), SPEC, TASK_BYTES)
            await scenario(stage)
            await pool.stop()
            await pool.clients.answered()
            pool.close()

        asyncio.run(asyncio.wait_for(main(), timeout=PATIENCE_S))

    return run


def test_an_invocation_and_its_outputs(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(7)
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.exchange.sent == [("p", Result(7), [OUTPUT])]

    play(scenario)


def test_an_error_and_its_fields(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        stage.workers.reply(Reply(error=UnknownSymbol("no such kernel", symbol="sale", near=("scale",))))
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
        assert stage.answers() == [("p", Result(1))]
        await stage.submit(1)  # it was answered, and is forgotten
        assert len(stage.workers.runs) == 2

    play(scenario)


def test_answers_go_to_the_newest_line(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.greet("q", incarnation="2")
        await stage.submit(2, peer="p")  # which counts no more
        await stage.submit(1, peer="q")
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("q", Result(1))]
        assert len(stage.workers.runs) == 1
        assert stage.exchange.forgotten == ["p"]
        await stage.greet("q", incarnation="2")  # once more, since its connection was made anew
        assert stage.exchange.forgotten == ["p"]

    play(scenario)


def test_a_line_that_was_replaced_does_not_come_back(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.greet("q", incarnation="2")
        with pytest.raises(InvalidRequest, match="newer"):
            await stage.greet("p again", incarnation="1")
        await stage.submit(1, peer="q")
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("q", Result(1))]

    play(scenario)


def test_numbers_of_two_sessions_are_their_own(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.greet("q", "other")
        await stage.submit(1)
        await stage.submit(1, peer="q")
        for _ in range(2):
            stage.workers.reply([OUTPUT])
            await settle()
        assert stage.answers() == [("p", Result(1)), ("q", Result(1))]

    play(scenario)


def test_cancel_of_a_queued_and_of_a_running_request(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(2)
        await stage.say("p", Cancel(2))
        assert stage.service.status().queued == 0
        await stage.say("p", Cancel(1))
        await stage.say("p", Cancel(99))
        assert stage.service.status().running == 1
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.service.status().running == 0
        assert stage.answers() == []
        assert [each.outcome for each in stage.service.stats(False).outcomes] == ["cancelled"] * 2

    play(scenario)


# --- memory that the program shares


def blocks(number: int) -> tuple[Submit, bytes]:
    message = wire.Invocation(
        SIGNATURE.key, "alice", None, 3, True, {}, [], [wire.ObjectInput("x", 0, None, False)], None
    )
    return Submit(number, [BLOCK]), wire.encode(message)


def test_blocks_are_free_with_the_answer(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", *blocks(1))
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", Result(1))]

    play(scenario)


def test_blocks_of_a_cancelled_request_are_free_when_it_ends(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", *blocks(1))
        await stage.say("p", *blocks(2))
        await stage.say("p", Cancel(2))
        assert stage.answers() == [("p", Release(2))], "it was only queued"
        await stage.say("p", Cancel(1))
        await stage.say("p", Cancel(1))
        assert stage.answers() == []
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", Release(1))]

    play(scenario)


def test_blocks_of_a_request_past_its_deadline_are_free_when_it_ends(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        submit, message = blocks(1)
        soon = wire.encode(msgspec.structs.replace(wire.decode_invocation(message), deadline_s=0.05))
        await stage.say("p", submit, soon)
        await asyncio.wait_for(_sent(stage, 1), PATIENCE_S)
        assert stage.answers() == [("p", Failure(1, held=True))]
        await stage.greet("q", incarnation="2")
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("q", Release(1))]

    play(scenario)


async def _sent(stage: Stage, count: int) -> None:
    while len(stage.exchange.sent) < count:
        await asyncio.sleep(0)


# --- objects


def test_objects_that_the_session_holds(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.ground.objects.hold("s", [X])
        await stage.submit(1, beside=[Named(X.key)], ref=X)
        [request] = stage.service.pool._requests.values()
        assert list(request.call.payload.refs) == [X]
        assert request.call.uses[0].key == X.key

    play(scenario)


def test_objects_that_it_is_about_to_hold(play: Callable[..., None]) -> None:
    """What tells of them travels another way."""

    async def scenario(stage: Stage) -> None:
        stage.ground.objects.hold("other", [X])
        for number in (1, 2):
            await stage.submit(number, beside=[Named(X.key), BLOCK], ref=X)
        await stage.say("p", Cancel(2))
        assert stage.answers() == [("p", Release(2))]
        assert stage.workers.runs == []
        stage.ground.objects.hold("s", [X])
        await settle()
        stage.workers.reply([OUTPUT])
        await settle()
        assert stage.answers() == [("p", Result(1))]

    play(scenario)


def test_objects_that_come_before_the_wait_has_begun(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.exchange.receive(stage.peers["p"], Submit(1, [Named(X.key)]), [invocation(ref=X)])
        stage.ground.objects.hold("s", [X])
        await settle()
        assert len(stage.workers.runs) == 1

    play(scenario)


def test_objects_that_it_never_holds(play: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(held, "HOLD_LIMIT_S", 0.0)
        stage.ground.objects.hold("s", [X])
        await stage.say("p", Drop([X.key]))
        await stage.submit(1, beside=[Named(X.key)], ref=X)
        await asyncio.wait_for(_sent(stage, 1), PATIENCE_S)
        assert isinstance(stage.error(), InvalidRequest)
        stage.ground.objects.hold("s", [X])
        await stage.submit(1, beside=[Named(X.key)], ref=X)
        assert len(stage.workers.runs) == 1

    play(scenario)


def test_holds_are_counted(play: Callable[..., None]) -> None:
    """A drop may overtake the hold that it takes back."""

    async def scenario(stage: Stage) -> None:
        objects = stage.ground.objects
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


def test_a_hold_that_was_dropped_already_is_not_the_one_that_is_waited_for(play: Callable[..., None]) -> None:
    """A call is cancelled and another names the same object, before the pool hears of either hold."""

    async def scenario(stage: Stage) -> None:
        await stage.say("p", Drop([X.key]))
        await stage.submit(1, beside=[Named(X.key)], ref=X)
        stage.ground.objects.hold("s", [X])
        await settle()
        assert (stage.answers(), stage.workers.runs) == ([], [])
        stage.ground.objects.hold("s", [X])
        await asyncio.wait_for(_run(stage), PATIENCE_S)

    play(scenario)


def test_what_does_not_exist_yet_is_waited_for(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.ground.missing = {X.key}
        stage.ground.objects.hold("s", [X])
        await stage.submit(1, beside=[Named(X.key)], ref=X, deadline_s=60.0)
        assert stage.service.status().waiting == 1
        await stage.say("p", Cancel(1))
        await stage.submit(2, beside=[Named(X.key)], ref=X)
        stage.ground.missing.clear()
        await asyncio.wait_for(_run(stage), PATIENCE_S)

    play(scenario)


async def _run(stage: Stage) -> None:
    while not stage.workers.runs:
        await asyncio.sleep(0)


# --- ends


def test_a_session_that_ends_takes_its_requests_along(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(2)
        stage.ground.objects.hold("s", [X])
        stage.service.session_ended("s")
        await settle()
        assert stage.service.status().queued == 0
        with pytest.raises(InvalidRequest):
            stage.ground.objects.ref("s", Named(X.key))
        await stage.submit(3)
        stage.workers.reply([OUTPUT])
        await settle()
        assert len(stage.workers.runs) == 1

    play(scenario)


def test_the_pool_stops(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.say("p", Ask(2, "stop"))
        await stage.service.clients.answered()
        assert {type(header): header.number for _, header in stage.answers()} == {Failure: 1, Result: 2}
        assert stage.service.stopped.is_set()
        await stage.submit(3)
        assert isinstance(stage.error(), PoolStopped)

    play(scenario)


def test_who_has_the_pool_stop_may_go(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        stage.exchange.receive(stage.peers["p"], Ask(1, "stop"), [])
        await asyncio.sleep(0)
        stage.service.session_ended("s")
        await asyncio.wait_for(stage.service.stopped.wait(), PATIENCE_S)

    play(scenario)


def test_deadlines_and_limits_hold(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        await stage.submit(2, deadline_s=1e-9)
        await asyncio.wait_for(_sent(stage, 1), PATIENCE_S)
        assert isinstance(stage.error(), DeadlineExceeded)
        await stage.submit(3)
        await stage.submit(4)
        assert isinstance(stage.error(), QueueFull)

    play(scenario, queue_limit=1)


# --- all else that is asked


def test_status_figures_and_pardon(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.submit(1)
        stage.workers.reply(Reply([OUTPUT], record=RECORD))
        await stage.say("p", Ask(2, "status"))
        await stage.say("p", Ask(3, "stats"), b"1")
        await stage.say("p", Ask(4, "pardon"), SIGNATURE.key.encode())
        found = {header.number: frames for _, header, frames in stage.exchange.sent}
        assert status_codec.decode(found[2][0], Status).functions == (TASK.label,)
        assert status_codec.decode(found[3][0], Stats).outcomes[0].outcome == "succeeded"
        assert found[4] == [b"0"]
        assert stage.service.stats(False).outcomes == ()

    play(scenario)


def test_upkeep(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        flush = wire.encode(wire.Upkeep("flush", None, (SIGNATURE.key,), False, True, "alice"))
        await stage.say("p", Ask(1, "upkeep"), flush)
        assert stage.answers() == [("p", Result(1))]
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
        (Ask(1, "the time"), []),
        (Ask(1, "stats"), []),
        (Ask(1, "hold", [Framed(1)]), [b"value"]),
        (Ask(1, "upkeep"), [b"no upkeep"]),
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
def test_only_what_a_program_may_show_is_held(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch, item: Any
) -> None:
    held_for: list[str] = []

    async def keep(session: str, *_: Any) -> None:
        held_for.append(session)

    async def scenario(stage: Stage) -> None:
        monkeypatch.setattr(stage.ground.objects, "keep", keep)
        await stage.say("p", Ask(1, "hold", [BLOCK]), b"keys")
        assert held_for == ["s"]
        stage.answers()
        await stage.say("p", Ask(2, "hold", [item]), b"keys")
        assert isinstance(stage.error(), InvalidRequest)
        assert held_for == ["s"]

    play(scenario)


def test_a_function_that_nobody_registered(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        await stage.say("p", Register(), b"", b"no kTask")
        await stage.say("p", Submit(1), wire.encode(wire.Invocation("f", "a", None, 0, True, {}, [], [], None)))
        assert "has not been told" in str(stage.error())

    play(scenario)


def test_what_is_for_executors_goes_there(play: Callable[..., None]) -> None:
    async def scenario(stage: Stage) -> None:
        hello = Hello(messages.VERSION, "executor", "0", "1", 1)
        stage.exchange.greet("e", hello)
        await stage.say("e", messages.Need(3))
        assert stage.ground.executors.heard == [("e", hello), ("e", messages.Need(3))]
        assert [hello.name for hello in stage.ground.here] == ["s"]
        await stage.submit(1, peer="nobody")
        assert stage.answers() == []

    play(scenario)
