"""The way to the executors, over an exchange that keeps what it is given."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from kaas.error_codec import decode_error, encode_error
from kaas.errors import InputFailed, KaasError, UnknownSymbol
from kaas.pool import executor_line, executors, messages, wire
from kaas.pool.blocks import Inbox, Outbox
from kaas.pool.events import StartWorker, WorkerKind
from kaas.pool.executors import Executors
from kaas.pool.functions import RegisteredFunction
from kaas.pool.lives import Adoption, Orphan
from kaas.pool.messages import (
    Address,
    Block,
    Done,
    Filed,
    Forget,
    Framed,
    Hello,
    Meet,
    Named,
    Need,
    Run,
    Supply,
    Written,
)
from kaas.pool.payloads import Left, Orders, Payload
from kaas.pool.residents import Placed, Residents
from kaas.pool.status import WorkerInfo
from kaas.pool.stream import close_all
from kaas.pool.transport import Call, Order, Reply, WorkerLost
from kaas.pool.workers import Workers
from tests.api.conftest import scale_task
from tests.patience import PATIENCE_S
from tests.pool.test_core import INFO, settle

TASK = scale_task()
FUNCTION = RegisteredFunction.of(wire.FunctionSpec(TASK.key), TASK, b"its kTask")
(DTYPE, SHAPE) = FUNCTION.outputs[0]
LARGE = RegisteredFunction(
    "large", "large", FUNCTION.spec, FUNCTION.introduction, FUNCTION.outputs * 2, (1 << 20,) * 2, False, {}
)
RECORD = wire.RunRecord({"run": 1.0}, {}, [], [], 0.5)
START = StartWorker(3, WorkerKind.EXECUTOR, 1)
ADDRESS = Address("life", "node", "ipc:///nowhere")
MESSAGE = b"an invocation"


@dataclass(frozen=True)
class Ref:
    """Names an object, as Ray's references do."""

    name: bytes

    def binary(self) -> bytes:
        return self.name


@dataclass(frozen=True)
class FakeChannel:
    local: bool = True


@dataclass(frozen=True)
class FakePeer:
    name: str = "peer"
    channel: FakeChannel = FakeChannel()


PEER = FakePeer()


class FakeExchange:
    """sent: to whom, the header, the frames. files: what lay in those that went with the last message."""

    address = ADDRESS

    def __init__(self) -> None:
        self.sent: list[tuple[Any, Any, list[Any]]] = []
        self.files: list[bytes] = []
        self.forgotten: list[Any] = []
        self.inbox = Inbox()

    def send(self, peer: Any, header: Any, frames: Sequence[Any] = (), files: Sequence[int] = ()) -> None:
        self.sent.append((peer, header, list(frames)))
        self.files = [os.pread(file, 100, 0).rstrip(b"\0") for file in files]
        close_all(files)

    def forget(self, peer: Any) -> None:
        self.forgotten.append(peer)

    def headers(self) -> list[Any]:
        return [header for _, header, _ in self.sent]


class FakeHosts:
    """has: what it supplies. parcels: what can be collected, by number."""

    def __init__(self) -> None:
        self.started: asyncio.Future[WorkerInfo] = asyncio.get_running_loop().create_future()
        self.adoptions: list[Adoption] = []
        self.adopting = asyncio.Event()
        self.has: list[list[Any]] | KaasError | None = None
        self.supplied: list[tuple[int, int, Sequence[Any]]] = []
        self.parcels: dict[int, list[Any]] = {}
        self.killed: list[int] = []

    async def start(self, start: StartWorker, address: Address) -> WorkerInfo:
        assert (start, address) == (START, ADDRESS)
        return await self.started

    async def survivors(self, address: Address) -> Sequence[Adoption]:
        assert address == ADDRESS
        await self.adopting.wait()
        return self.adoptions

    def supply(self, worker: int, number: int, refs: Sequence[Any]) -> Sequence[Sequence[Any]] | None:
        self.supplied.append((worker, number, refs))
        if isinstance(self.has, KaasError):
            raise self.has
        return self.has

    async def collect(self, worker: int, parcel: int, count: int) -> Sequence[Any]:
        assert worker == START.worker
        if parcel not in self.parcels:
            raise WorkerLost("gone with its parcels")
        assert len(self.parcels[parcel]) == count
        return self.parcels.pop(parcel)

    async def ended(self, worker: int) -> str:
        return f"{worker} ended"

    def kill(self, worker: int) -> None:
        self.killed.append(worker)


class Stage:
    """Executors with worker 3 on device 1, and all that they talk to."""

    def __init__(self) -> None:
        self.exchange, self.hosts = FakeExchange(), FakeHosts()
        self.residents = Residents(asyncio.get_running_loop())
        self.executors = Executors(self.exchange, self.hosts, self.residents)  # type: ignore[arg-type]

    async def open(self, peer: FakePeer = PEER) -> None:
        self.hosts.started.set_result(INFO)
        starting = await begin(self.executors.start(START))
        self.greet(peer)
        assert await starting is INFO

    def greet(self, peer: Any = PEER, worker: int = 3) -> None:
        self.executors.greet(peer, Hello(1, "executor", str(worker), "once", 1))

    def say(self, message: Any, *frames: Any, peer: Any = PEER) -> None:
        self.executors.receive(peer, message, frames)

    async def run(self, payload: Any, slot: int = 0) -> asyncio.Task[Reply]:
        return await begin(self.executors.run(3, slot, Call("f", "alice", None, 0, payload=payload)))


async def begin(work: Awaitable[Any]) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(work)
    await settle()
    return task


def play(scenario: Callable[[Stage], Awaitable[None]], opened: bool = True) -> None:
    async def main() -> None:
        stage = Stage()
        if opened:
            await stage.open()
        await scenario(stage)

    asyncio.run(asyncio.wait_for(main(), timeout=PATIENCE_S))


def small(*refs: Any, frames: Sequence[Any] = (MESSAGE,), **options: Any) -> Payload:
    return Payload(FUNCTION, frames, refs, **options)


# --- runs


def test_a_function_is_introduced_once_before_its_first_run() -> None:
    async def scenario(stage: Stage) -> None:
        first, second = await stage.run(small()), await stage.run(small(), slot=1)
        assert stage.exchange.sent == [
            (PEER, Meet(), [wire.encode(FUNCTION.spec), b"its kTask"]),
            (PEER, Run(1, 0), [MESSAGE]),
            (PEER, Run(2, 1), [MESSAGE]),
        ]
        stage.say(Done(1, failed=True), encode_error(UnknownSymbol("no such kernel", symbol="sale", near=())))
        error = (await first).error
        assert isinstance(error, UnknownSymbol)
        assert error.symbol == "sale"
        assert not second.done()
        await stage.run(small())
        assert stage.exchange.headers()[3:] == [Run(3, 0)]

    play(scenario)


def test_functions_that_were_met_first_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_line, "MET_AT_MOST", 3)
    monkeypatch.setattr(executor_line, "MET_BYTES", 100)
    functions = [
        replace(FUNCTION, key=key, introduction=(b"", bytes(size)))
        for key, size in {"a": 10, "b": 10, "c": 10, "d": 40, "e": 90}.items()
    ]

    async def scenario(stage: Stage) -> None:
        async def met(*keys: str) -> list[Any]:
            before = len(stage.exchange.sent)
            for key in keys:
                await stage.run(Payload(functions["abcde".index(key)], [MESSAGE]))
            return [header for header in stage.exchange.headers()[before:] if type(header) is not Run]

        assert await met("a", "b", "c", "a") == [Meet()] * 3
        assert await met("d") == [Forget("a"), Meet()]
        assert await met("e", "e") == [Forget("b"), Forget("c"), Forget("d"), Meet()]
        assert await met("a", "b") == [Meet(), Forget("e"), Meet()]

    play(scenario)


def test_outputs_come_in_frames_and_become_arrays_where_they_arrive() -> None:
    array = np.arange(np.prod(SHAPE), dtype=DTYPE).reshape(SHAPE)

    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(Done(1, RECORD), array.data)
        reply = await run
        assert (reply.error, reply.record, reply.lost) == (None, RECORD, "")
        (value,) = reply.value
        there = pickle.loads(pickle.dumps(value))
        assert (there.dtype, there.shape) == (array.dtype, array.shape)
        assert (there == array).all()

    play(scenario)


def test_who_wants_frames_gets_them_as_they_came() -> None:
    data = bytearray(1 << 20)

    async def scenario(stage: Stage) -> None:
        run = await stage.run(Payload(LARGE, [MESSAGE], direct=True))
        assert stage.exchange.headers()[-1] == Run(1, 0)
        stage.say(Done(1, RECORD), data, b"other")
        value = (await run).value
        assert value[0] is data

    play(scenario)


def test_large_outputs_are_collected_and_kept_ones_stay() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.parcels[7] = ["first", "second"]
        run = await stage.run(Payload(LARGE, [MESSAGE]))
        assert stage.exchange.headers()[-1] == Run(1, 0, parcel=True)
        stage.say(Done(1, RECORD, parcel=7))
        assert (await run).value == ("first", "second")

        stage.residents.expect(b"kept", None)
        stage.hosts.parcels[8] = ["first"]
        run = await stage.run(Payload(LARGE, [MESSAGE], keep={1: b"kept"}))
        assert stage.exchange.headers()[-1] == Run(2, 0, keep=(b"kept",), parcel=True)
        stage.say(Done(2, RECORD, parcel=8))
        assert (await run).value == ("first", Placed(b"kept", 1))
        assert stage.residents.ask(b"kept") == 3

        run = await stage.run(Payload(LARGE, [MESSAGE], keep={0: b"one", 1: b"two"}))
        stage.say(Done(3, RECORD))  # nothing is left to collect
        assert (await run).value == (Placed(b"one", 1), Placed(b"two", 1))

    play(scenario)


def test_a_worker_that_ends_before_its_outputs_are_collected_is_lost() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(Payload(LARGE, [MESSAGE]))
        stage.say(Done(1, RECORD, parcel=7))
        with pytest.raises(WorkerLost, match="gone with its parcels"):
            await run

    play(scenario)


def test_a_device_that_is_lost_is_told_of() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(Done(1, None, "an illegal address", failed=True), encode_error(KaasError("it failed")))
        reply = await run
        assert (str(reply.error), reply.lost) == ("it failed", "an illegal address")

    play(scenario)


def test_answers_to_nobody_mean_nothing() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(Done(9, RECORD))
        stage.say(Done(1, RECORD), b"of another", peer=FakePeer("other"))
        assert not run.done()
        run.cancel()
        await settle()
        stage.say(Done(1, RECORD), b"")
        stage.say(Done(1, RECORD), b"")
        assert run.cancelled()

    play(scenario)


# --- inputs


def test_what_stands_beside_an_invocation_goes_as_it_came() -> None:
    async def scenario(stage: Stage) -> None:
        frames = [MESSAGE, b"a large value"]
        await stage.run(small(Framed(2), Ref(b"x"), frames=frames))
        assert stage.exchange.sent[-1] == (PEER, Run(1, 0, beside=[Framed(2), Named(b"x")]), frames)

    play(scenario)


def test_a_clients_memory_goes_to_an_executor_as_an_open_file() -> None:
    outbox = Outbox()
    two, one = outbox.put_all([b"a" * 64, b"b" * 8]), outbox.put(b"c")
    gone = Block(one.block.pid, 1 << 20, 0, 8)

    async def scenario(stage: Stage) -> None:
        await stage.run(small(*two.blocks, one.block))
        (_, second), (third,) = two.blocks, one.blocks
        beside = [Filed(0, 0, 64), Filed(0, second.offset_bytes, 8), Filed(1, third.offset_bytes, 1)]
        assert stage.exchange.sent[-1][1].beside == beside
        assert stage.exchange.files == [b"a" * 64 + b"b" * 8, b"c"]
        files = len(os.listdir("/proc/self/fd"))
        reply = await (await stage.run(small(one.block, gone)))
        assert isinstance(reply.error, InputFailed)
        assert len(os.listdir("/proc/self/fd")) == files

    play(scenario)


def test_an_executor_that_cannot_read_a_clients_memory_gets_a_frame() -> None:
    outbox = Outbox()
    lease = outbox.put(b"of a client")
    gone = Block(lease.block.pid, 1 << 20, 0, 8)

    async def scenario(stage: Stage) -> None:
        await stage.open(FakePeer("elsewhere", FakeChannel(local=False)))
        await stage.run(small(Framed(2), lease.block, frames=[MESSAGE, b"a large value"]))
        beside, frames = stage.exchange.sent[-1][1].beside, stage.exchange.sent[-1][2]
        assert beside == [Framed(2), Framed(3)]
        assert frames == [MESSAGE, b"a large value", b"of a client"]
        reply = await (await stage.run(small(gone)))
        assert isinstance(reply.error, InputFailed)

    play(scenario, opened=False)


def test_objects_that_a_cache_lacks_are_supplied() -> None:
    lease = Outbox().put(b"shared")

    async def scenario(stage: Stage) -> None:
        await stage.run(small(Framed(2), Ref(b"x")))
        stage.say(Need(1))
        assert stage.hosts.supplied == [(3, 1, [None, Ref(b"x")])]
        assert isinstance(stage.exchange.headers()[-1], Run)

        stage.hosts.has = [[], [b"first", lease.block, b"second"]]
        stage.say(Need(1))
        supply = Supply(1, [[], [Framed(1), Filed(0, 0, 6), Framed(2)]])
        assert stage.exchange.sent[-1] == (PEER, supply, [b"first", b"second"])
        assert stage.exchange.files == [b"shared"]

        stage.hosts.has = InputFailed("nobody has it", reason="forgotten")
        stage.say(Need(1))
        assert stage.exchange.headers()[-1] == Supply(1, error=True)
        assert decode_error(stage.exchange.sent[-1][2][0]).message == "nobody has it"

        stage.say(Done(1, RECORD), b"")
        sent = len(stage.exchange.sent)
        stage.say(Need(1))
        assert len(stage.exchange.sent) == sent

    play(scenario)


# --- caches


def test_an_order_introduces_its_functions() -> None:
    async def scenario(stage: Stage) -> None:
        orders = Orders([FUNCTION, LARGE], b"order", [Ref(b"x")])
        order = await begin(stage.executors.upkeep(3, Order(orders)))
        assert stage.exchange.headers() == [Meet(), Meet(), messages.Upkeep(1, [Named(b"x")])]
        stage.say(Need(1))
        assert stage.hosts.supplied == [(3, 1, [Ref(b"x")])]
        stage.say(Done(1, RECORD))
        assert await order == Reply(record=RECORD)

    play(scenario)


def test_what_the_policy_decides_of_a_cache_names_each_object_once() -> None:
    async def scenario(stage: Stage) -> None:
        invocation = wire.Invocation(
            "f", "alice", None, 0, True, {}, [], [wire.ObjectInput("x", 0, None, True)], constants=None
        )
        calls = [Call("f", "alice", None, 0, payload=small(Ref(b"x"), frames=[wire.encode(invocation)])) for _ in "ab"]
        prefetch = await begin(stage.executors.prefetch(3, {b"x": calls[0]}))
        assert stage.exchange.headers() == [messages.Follow(1, [Named(b"x")])]
        decided = wire.decode_decided(stage.exchange.sent[-1][2][0])
        assert decided == wire.Decided([wire.KeyedObject(b"x", 0, None)], [])
        stage.say(Done(1, RECORD))
        assert (await prefetch).record == RECORD
        await begin(stage.executors.evict(3, [b"x"]))
        assert stage.exchange.headers()[-1] == messages.Follow(2, [])
        assert wire.decode_decided(stage.exchange.sent[-1][2][0]) == wire.Decided([], [b"x"])

    play(scenario)


def test_outputs_that_are_written_back_come_before_the_order_is_done() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.parcels[1] = ["array"]
        stage.residents.expect(b"kept", None)
        stage.residents.placed(b"kept", 3)
        value = await begin(stage.residents.value(b"kept"))
        order = await begin(stage.executors.write_back(3, [b"kept"]))
        assert stage.exchange.headers() == [messages.WriteBack(1, [b"kept"])]
        stage.say(Written(b"kept", 1))
        stage.say(Done(1, RECORD))
        assert await order == Reply(record=RECORD)
        assert await value == "array"
        await begin(stage.executors.discard(3, [b"kept"]))
        assert stage.exchange.headers()[-1] == messages.Discard(2, [b"kept"])

    play(scenario)


def test_a_worker_whose_outputs_cannot_be_had_is_ended() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(Written(b"kept", 1))
        with pytest.raises(WorkerLost):
            await run
        assert stage.hosts.killed == [3]

    play(scenario)


def test_a_worker_that_must_go_writes_back_what_it_keeps() -> None:
    async def scenario(stage: Stage) -> None:
        assert await stage.executors.stop(3) == ""
        stage.residents.expect(b"kept", small(keep={0: b"kept"}, frames=[INVOCATION]))
        stage.residents.placed(b"kept", 3)
        stopping = await begin(stage.executors.stop(3))
        stage.say(Done(1, failed=True), encode_error(KaasError("no room")))
        assert await stopping == "outputs that it kept did not come back: no room"
        stopping = await begin(stage.executors.stop(3))
        stage.executors.kill(3)
        assert "it was ended" in await stopping

    play(scenario)


INVOCATION = wire.encode(wire.Invocation("f", "alice", None, 0, True, {}, [], [], constants=None, keep=(0,)))


# --- workers


def test_a_worker_has_started_when_its_process_and_its_line_are_there() -> None:
    async def scenario(stage: Stage) -> None:
        stage.greet(FakePeer("early"), worker=5)
        starting = await begin(stage.executors.start(START))
        stage.greet()
        await settle()
        assert not starting.done()
        stage.hosts.started.set_result(INFO)
        assert await starting is INFO
        assert await stage.executors.ended(3) == "3 ended"

    play(scenario, opened=False)


def test_all_that_was_asked_of_a_worker_fails_with_it() -> None:
    async def scenario(stage: Stage) -> None:
        waits = [await stage.run(small()), await stage.run(Left()), await begin(stage.executors.evict(3, [b"x"]))]
        stage.executors.kill(3)
        for wait in waits:
            with pytest.raises(WorkerLost):
                await wait
        assert (stage.hosts.killed, stage.exchange.forgotten) == ([3], [PEER])
        with pytest.raises(WorkerLost):
            await (await stage.run(small()))
        stage.say(Done(1, RECORD), b"")
        stage.executors.kill(3)

    play(scenario)


def test_a_line_that_begins_again_has_lost_what_was_asked_and_met() -> None:
    again = FakePeer("again")

    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.greet(again)
        with pytest.raises(WorkerLost, match="line"):
            await run
        stage.exchange.sent.clear()
        run = await stage.run(small())
        assert [(peer, type(header)) for peer, header, _ in stage.exchange.sent] == [(again, Meet), (again, Run)]
        stage.say(Done(2, RECORD), b"")
        assert not run.done()
        stage.say(Done(2, RECORD), b"", peer=again)
        assert (await run).record == RECORD

    play(scenario)


def adoption(**running: Orphan) -> Adoption:
    slots = {int(slot.removeprefix("slot")): orphan for slot, orphan in running.items()}
    return Adoption(START, INFO, slots, frozenset({FUNCTION.key}), (b"x",))


def test_survivors_bring_what_they_run_and_know() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.adoptions = [adoption(slot1=Orphan("bob", "f", "f of bob"))]
        finding = await begin(stage.executors.survivors())
        stage.greet()
        stage.say(messages.Orphaned(1, RECORD))  # before anybody knows what it is
        stage.hosts.adopting.set()
        (survivor,) = await finding
        assert (survivor.start, survivor.info, survivor.cached) == (START, INFO, (b"x",))
        (call,) = survivor.running.values()
        assert (call.label, call.client, call.function, call.payload) == ("f of bob", "bob", "f", Left())
        assert await stage.executors.run(3, 1, call) == Reply(record=RECORD)
        await stage.run(small())
        assert stage.exchange.headers() == [Run(1, 0)]  # it had met the function

    play(scenario, opened=False)


def test_an_orphan_is_waited_for() -> None:
    async def scenario(stage: Stage) -> None:
        wait = await stage.run(Left(), slot=1)
        stage.say(messages.Orphaned(0, RECORD))
        await settle()
        assert not wait.done()
        stage.say(messages.Orphaned(1))
        assert await wait == Reply()

    play(scenario)


def test_a_survivor_without_a_line_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "GREETING_LIMIT_S", 0)

    async def scenario(stage: Stage) -> None:
        stage.hosts.adoptions = [adoption()]
        stage.hosts.adopting.set()
        assert await stage.executors.survivors() == []
        assert stage.hosts.killed == [3]

    play(scenario, opened=False)


def test_each_worker_is_reached_the_way_of_its_kind() -> None:
    class Told:
        """Gives the name of what was called."""

        def __init__(self, name: str) -> None:
            self.name = name
            self.killed: list[int] = []

        def __getattr__(self, method: str) -> Callable[..., Awaitable[str]]:
            async def call(*_: Any) -> str:
                return f"{self.name}.{method}"

            return call

        def kill(self, worker: int) -> None:
            self.killed.append(worker)

    async def main() -> None:
        of_executors, of_etasks = Told("executors"), Told("etasks")
        workers: Any = Workers(of_executors, of_etasks)  # type: ignore[arg-type]
        assert await workers.start(START) == "executors.start"
        assert await workers.start(StartWorker(4, WorkerKind.ETASK, 1)) == "etasks.start"
        for worker, kind in ((3, "executors"), (4, "etasks")):
            for method in ("run", "ended", "stop"):
                arguments = (worker, 0, None) if method == "run" else (worker,)
                assert await getattr(workers, method)(*arguments) == f"{kind}.{method}"
        for method in ("upkeep", "prefetch", "evict", "write_back", "discard"):
            assert await getattr(workers, method)(3, None) == f"executors.{method}"
        workers.kill(4)
        workers.kill(3)
        assert (of_executors.killed, of_etasks.killed) == ([3], [4])

    asyncio.run(main())
