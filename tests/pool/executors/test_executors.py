"""The transport of executors, over a router that keeps messages."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import resource
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from kaas.errors import DeviceLost, InputFailed, KaasError, OutOfHostMemory, UnknownSymbol
from kaas.executor.cache.tiers import TierUse
from kaas.pool.executors import executor_connection, executors
from kaas.pool.executors.executor_connection import REPLY_BYTES, STRANGE_AT_MOST, UNASKED_AT_MOST, HeldPart
from kaas.pool.executors.payloads import Payload
from kaas.pool.executors.residents import Placed
from kaas.pool.executors.transport import WorkerLost
from kaas.wire import specs
from kaas.wire.connections.shared_memory import Outbox
from kaas.wire.error_codec import decode_error, encode_error
from kaas.wire.messages import (
    Block,
    DeviceFiled,
    ExecutorReply,
    Filed,
    ForgetFunction,
    Framed,
    FromPeer,
    Named,
    Orphaned,
    ProvideObjects,
    RegisterFunction,
    RequestObjects,
    RunInvocation,
    WrittenBack,
)
from tests.limits import limited
from tests.open_files import memory_files
from tests.pool.executors.executor_stage import (
    FUNCTION,
    LARGE,
    MESSAGE,
    OUTPUT,
    PEER,
    RECORD,
    FakeChannel,
    FakePeer,
    Ref,
    Stage,
    play,
    small,
)
from tests.pool.fake_workers import settle

(DTYPE, SHAPE) = FUNCTION.outputs[0]


# --- runs


def test_a_function_is_introduced_once_before_its_first_run() -> None:
    async def scenario(stage: Stage) -> None:
        first, second = await stage.run(small()), await stage.run(small(), slot=1)
        assert stage.router.sent == [
            (PEER, RegisterFunction(), [specs.encode(FUNCTION.spec), b"its kTask"]),
            (PEER, RunInvocation(1, 0), [MESSAGE]),
            (PEER, RunInvocation(2, 1), [MESSAGE]),
        ]
        stage.say(ExecutorReply(1, failed=True), encode_error(UnknownSymbol("no such kernel", symbol="sale", near=())))
        error = (await first).error
        assert isinstance(error, UnknownSymbol)
        assert error.symbol == "sale"
        assert not second.done()
        await stage.run(small())
        assert stage.router.headers()[3:] == [RunInvocation(3, 0)]

    play(scenario)


def test_functions_that_were_met_first_are_forgotten_before_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_connection, "REGISTERED_AT_MOST", 3)
    monkeypatch.setattr(executor_connection, "REGISTERED_BYTES", 100)
    functions = [
        replace(FUNCTION, key=key, introduction=(b"", bytes(size)))
        for key, size in {"a": 10, "b": 10, "c": 10, "d": 40, "e": 90}.items()
    ]

    async def scenario(stage: Stage) -> None:
        async def met(*keys: str) -> list[Any]:
            before = len(stage.router.sent)
            for key in keys:
                await stage.run(Payload(functions["abcde".index(key)], [MESSAGE]))
            return [header for header in stage.router.headers()[before:] if type(header) is not RunInvocation]

        assert await met("a", "b", "c", "a") == [RegisterFunction()] * 3
        assert await met("d") == [ForgetFunction("a"), RegisterFunction()]
        assert await met("e", "e") == [
            ForgetFunction("b"),
            ForgetFunction("c"),
            ForgetFunction("d"),
            RegisterFunction(),
        ]
        assert await met("a", "b") == [RegisterFunction(), ForgetFunction("e"), RegisterFunction()]

    play(scenario)


def test_outputs_arrive_in_frames_and_become_arrays_when_unpickled() -> None:
    array = np.arange(np.prod(SHAPE), dtype=DTYPE).reshape(SHAPE)

    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(ExecutorReply(1, RECORD), array.tobytes())
        reply = await run
        assert (reply.error, reply.record, reply.lost) == (None, RECORD, "")
        (value,) = reply.value
        there = pickle.loads(pickle.dumps(value))
        assert (there.dtype, there.shape) == (array.dtype, array.shape)
        assert (there == array).all()

    play(scenario)


def test_a_caller_that_wants_frames_gets_them_unchanged() -> None:
    data = bytearray(LARGE.output_bytes[0])

    async def scenario(stage: Stage) -> None:
        run = await stage.run(Payload(LARGE, [MESSAGE], direct=True))
        assert stage.router.headers()[-1] == RunInvocation(1, 0)
        stage.say(ExecutorReply(1, RECORD), data, bytes(LARGE.output_bytes[1]))
        value = (await run).value
        assert value[0] is data

    play(scenario)


def test_large_outputs_are_collected_and_kept_ones_stay() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.deferred_results[7] = ["first", "second"]
        run = await stage.run(Payload(LARGE, [MESSAGE]))
        assert stage.router.headers()[-1] == RunInvocation(1, 0, deferred=True)
        stage.say(ExecutorReply(1, RECORD, deferred=7))
        assert (await run).value == ("first", "second")

        stage.residents.expect(b"kept", None)
        stage.hosts.deferred_results[8] = ["first"]
        run = await stage.run(Payload(LARGE, [MESSAGE], keep={1: b"kept"}))
        assert stage.router.headers()[-1] == RunInvocation(2, 0, keep=(b"kept",), deferred=True)
        stage.say(ExecutorReply(2, RECORD, deferred=8))
        assert (await run).value == ("first", Placed(b"kept", 1))
        assert stage.residents.ask(b"kept") == 3

        run = await stage.run(Payload(LARGE, [MESSAGE], keep={0: b"one", 1: b"two"}))
        stage.say(ExecutorReply(3, RECORD))  # nothing is left to collect
        assert (await run).value == (Placed(b"one", 1), Placed(b"two", 1))

    play(scenario)


def test_a_worker_that_ends_before_its_outputs_are_collected_is_lost() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(Payload(LARGE, [MESSAGE]))
        stage.say(ExecutorReply(1, RECORD, deferred=7))
        with pytest.raises(WorkerLost, match="gone with its deferred results"):
            await run

    play(scenario)


def test_a_reply_reports_a_lost_device() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(ExecutorReply(1, None, "an illegal address", failed=True), encode_error(KaasError("it failed")))
        reply = await run
        assert (str(reply.error), reply.lost) == ("it failed", "an illegal address")

    play(scenario)


def test_an_error_has_no_field_of_another_type_than_its_class_declares() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        lost = DeviceLost("it broke", code="seven", code_name="of its own")
        lost.__cause__ = UnknownSymbol("no such kernel", symbol=7, near=("a",))
        stage.say(ExecutorReply(1, failed=True), encode_error(lost))
        error = (await run).error
        assert isinstance(error, DeviceLost)
        assert error.fields == {"code_name": "of its own"}
        assert isinstance(error.__cause__, UnknownSymbol)
        assert error.__cause__.fields == {"near": ("a",)}

    play(scenario, walls=True)


def test_replies_without_a_waiting_call_are_ignored() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(ExecutorReply(9, RECORD))
        stage.say(ExecutorReply(1, RECORD), OUTPUT, peer=FakePeer("other"))
        assert not run.done()
        run.cancel()
        await settle()
        stage.say(ExecutorReply(1, RECORD), OUTPUT)
        stage.say(ExecutorReply(1, RECORD), OUTPUT)
        assert run.cancelled()

    play(scenario)


def test_outputs_that_the_pool_has_no_memory_for() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(ExecutorReply(1, RECORD), OutOfHostMemory("no room", reason="full"))
        reply = await run
        assert isinstance(reply.error, OutOfHostMemory)
        assert reply.record == RECORD

    play(scenario)


# --- inputs


def test_attachments_of_an_invocation_are_sent_unchanged() -> None:
    async def scenario(stage: Stage) -> None:
        frames = [MESSAGE, b"a large value"]
        await stage.run(small(Framed(2), Ref(b"x"), frames=frames))
        assert stage.router.sent[-1] == (PEER, RunInvocation(1, 0, attached=[Framed(2), Named(b"x")]), frames)

    play(scenario)


def test_a_clients_memory_is_sent_to_an_executor_as_an_open_file() -> None:
    outbox = Outbox()
    two, one = outbox.put_all([b"a" * 64, b"b" * 8]), outbox.put(b"c")
    gone = Block(one.block.pid, 1 << 20, 0, 8)

    async def scenario(stage: Stage) -> None:
        await stage.run(small(*two.blocks, one.block))
        (_, second), (third,) = two.blocks, one.blocks
        attached = [Filed(0, 0, 64), Filed(0, second.offset_bytes, 8), Filed(1, third.offset_bytes, 1)]
        assert stage.router.sent[-1][1].attached == attached
        assert stage.router.files == [b"a" * 64 + b"b" * 8, b"c"]
        files = memory_files()
        reply = await (await stage.run(small(one.block, gone)))
        assert isinstance(reply.error, InputFailed)
        assert memory_files() == files

    play(scenario)


def test_an_executor_with_walls_gets_values_and_no_file_that_may_hold_others() -> None:
    first, second = Outbox().put_all([b"a" * 8, b"b" * 8]).blocks

    async def scenario(stage: Stage) -> None:
        await stage.run(small(second))
        _, header, frames = stage.router.sent[-1]
        assert header.attached == [Framed(2)]
        assert frames == [MESSAGE, b"b" * 8]
        stage.hosts.has = [[first]]
        await stage.run(small(Ref(b"x")))
        stage.say(RequestObjects(2))
        assert stage.router.sent[-1][2] == [b"a" * 8]
        assert stage.router.files == []

    play(scenario, walls=True)


def test_held_constants_go_by_their_file_once_they_are_there() -> None:
    file = os.memfd_create("held")
    os.pwrite(file, b"constants", 0)

    async def scenario(stage: Stage) -> None:
        stage.hosts.has = [[HeldPart(file, 0, 5, 4096), HeldPart(file, 512, 7, 4096)]]
        stage.hosts.prepared = prepared = asyncio.get_running_loop().create_future()
        await stage.run(small(Ref(b"x")))
        await stage.run(small(Ref(b"y")))
        for number in (1, 2):
            stage.say(RequestObjects(number))
        assert not any(isinstance(header, ProvideObjects) for header in stage.router.headers())
        stage.say(ExecutorReply(2, RECORD), OUTPUT)
        prepared.set_result(None)
        await settle()
        given = [header for header in stage.router.headers() if isinstance(header, ProvideObjects)]
        assert given == [ProvideObjects(1, [[DeviceFiled(0, 0, 5, 4096), DeviceFiled(0, 512, 7, 4096)]])]
        assert stage.router.files == [b"constants"]

    play(scenario, walls=True)
    os.close(file)


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (ExecutorReply(1, RECORD), (OUTPUT, b"one too many")),
        (ExecutorReply(1, RECORD), ()),
        (ExecutorReply(1, RECORD), (OUTPUT[1:],)),
        (ExecutorReply(1, failed=True), ()),
        (ExecutorReply(1, structs.replace(RECORD, device_s=float("nan"))), (OUTPUT,)),
        (ExecutorReply(1, structs.replace(RECORD, load_s=-1.0)), (OUTPUT,)),
        (ExecutorReply(1, structs.replace(RECORD, stages={"plan": float("inf")})), (OUTPUT,)),
        (ExecutorReply(1, structs.replace(RECORD, stages={"of its own": 1.0})), (OUTPUT,)),
        (ExecutorReply(1, structs.replace(RECORD, tiers={"of its own": TierUse()})), (OUTPUT,)),
        (ExecutorReply(1, structs.replace(RECORD, tiers={"store": TierUse(1, 2**63)})), (OUTPUT,)),
        (ExecutorReply(1, structs.replace(RECORD, loaded=[b"made up"])), (OUTPUT,)),
        (WrittenBack(b"k", 1), ()),
        (Orphaned(7), ()),
    ],
    ids=[
        "too many outputs",
        "no output",
        "a short output",
        "an error without its frame",
        "no number",
        "negative",
        "infinite",
        "a stage",
        "a tier",
        "a size",
        "a key",
        "an output that it was not to keep",
        "a run of an earlier pool",
    ],
)
def test_a_worker_that_sends_what_no_executor_sends_ends_and_nothing_else(
    message: ExecutorReply, frames: tuple[bytes, ...]
) -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        stage.say(message, *frames)
        with pytest.raises(WorkerLost):
            await run
        assert stage.hosts.killed == [3]

    play(scenario, walls=True)


@pytest.mark.parametrize("message", [ExecutorReply(9, RECORD), RequestObjects(9)])
def test_a_worker_that_sends_without_end_what_nothing_waits_for_is_ended(message: FromPeer) -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        for _ in range(UNASKED_AT_MOST):
            stage.say(message)
        assert not stage.hosts.killed
        stage.say(message)
        assert stage.hosts.killed == [3]
        with pytest.raises(WorkerLost):
            await run

    play(scenario, walls=True)


def test_a_worker_that_asks_again_and_again_for_objects_is_ended() -> None:
    async def scenario(stage: Stage) -> None:
        stage.hosts.has = [[b"the value"]]
        await stage.run(small(Ref(b"x")))
        stage.say(RequestObjects(1))
        assert not stage.hosts.killed
        stage.say(RequestObjects(1))
        assert stage.hosts.killed == [3]
        assert len(stage.hosts.supplied) == 1

    play(scenario, walls=True)


def test_an_executor_with_walls_sends_no_more_bytes_than_the_pool_waits_for() -> None:
    async def scenario(stage: Stage) -> None:
        limits = PEER.channel.limits
        assert limits[-1] == REPLY_BYTES <= 1 << 24
        run = await stage.run(Payload(LARGE, [MESSAGE], direct=True))
        assert limits[-1] == REPLY_BYTES + sum(LARGE.output_bytes)
        stage.say(ExecutorReply(1, RECORD), *map(bytes, LARGE.output_bytes))
        assert (await run).error is None
        assert limits[-1] == REPLY_BYTES

    play(scenario, walls=True)


def test_an_executor_with_walls_loads_what_the_pool_named() -> None:
    async def scenario(stage: Stage) -> None:
        invocation = specs.Invocation(
            FUNCTION.key, "alice", None, 0, True, {}, [], [specs.ObjectInput("x", 0, None, True)], None
        )
        run = await stage.run(small(Ref(b"x"), frames=[specs.encode(invocation)]))
        stage.say(ExecutorReply(1, structs.replace(RECORD, loaded=[b"x"])), OUTPUT)
        assert (await run).record == structs.replace(RECORD, loaded=[b"x"])

    play(scenario, walls=True)


def test_an_executor_that_connects_again_and_again_is_ended() -> None:
    async def scenario(stage: Stage) -> None:
        for _ in range(STRANGE_AT_MOST + 1):
            assert not stage.hosts.killed
            stage.leave(None, 99)  # of no executor
            stage.leave(None, PEER.pid)
        assert stage.hosts.killed == [3]

    play(scenario, walls=True)


def test_an_executor_with_walls_connects_once() -> None:
    async def scenario(stage: Stage) -> None:
        run = await stage.run(small())
        with pytest.raises(KaasError, match="worker 3 is connected already"):
            stage.greet(FakePeer("again"))
        stage.say(ExecutorReply(1, RECORD), OUTPUT)
        assert (await run).error is None

    play(scenario, walls=True)


def test_an_executor_that_leaves_its_connection_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "LEAVING_LIMIT_S", 0.0)

    async def scenario(stage: Stage) -> None:
        stage.leave(PEER, PEER.pid)
        while not stage.hosts.killed:
            await settle()

    play(scenario, walls=True)


def test_a_pool_without_descriptors_says_so() -> None:
    lease = Outbox().put(b"of a client")

    async def scenario(stage: Stage) -> None:
        await stage.run(small(Ref(b"x")))
        with limited(resource.RLIMIT_NOFILE, 0):
            reply = await (await stage.run(small(lease.block)))
            stage.hosts.has = [[lease.block]]
            stage.say(RequestObjects(1))
        assert isinstance(reply.error, OutOfHostMemory)
        assert reply.error.reason == os.strerror(errno.EMFILE)
        assert stage.router.headers()[-1] == ProvideObjects(1, error=True)
        assert isinstance(decode_error(stage.router.sent[-1][2][0]), OutOfHostMemory)

    play(scenario)


def test_an_executor_that_cannot_read_a_clients_memory_gets_a_frame() -> None:
    outbox = Outbox()
    lease = outbox.put(b"of a client")
    gone = Block(lease.block.pid, 1 << 20, 0, 8)

    async def scenario(stage: Stage) -> None:
        await stage.open(FakePeer("elsewhere", FakeChannel(local=False)))
        await stage.run(small(Framed(2), lease.block, frames=[MESSAGE, b"a large value"]))
        attached, frames = stage.router.sent[-1][1].attached, stage.router.sent[-1][2]
        assert attached == [Framed(2), Framed(3)]
        assert frames == [MESSAGE, b"a large value", b"of a client"]
        reply = await (await stage.run(small(gone)))
        assert isinstance(reply.error, InputFailed)

    play(scenario, opened=False)


def test_objects_that_a_cache_lacks_are_supplied() -> None:
    lease = Outbox().put(b"shared")

    async def scenario(stage: Stage) -> None:
        await stage.run(small(Framed(2), Ref(b"x")))
        stage.say(RequestObjects(1))
        assert stage.hosts.supplied == [(3, 1, [None, Ref(b"x")])]
        assert isinstance(stage.router.headers()[-1], RunInvocation)

        stage.hosts.has = [[], [b"first", lease.block, b"second"]]
        stage.say(RequestObjects(1))
        provide = ProvideObjects(1, [[], [Framed(1), Filed(0, 0, 6), Framed(2)]])
        assert stage.router.sent[-1] == (PEER, provide, [b"first", b"second"])
        assert stage.router.files == [b"shared"]

        stage.hosts.has = InputFailed("nobody has it", reason="forgotten")
        stage.say(RequestObjects(1))
        assert stage.router.headers()[-1] == ProvideObjects(1, error=True)
        assert decode_error(stage.router.sent[-1][2][0]).message == "nobody has it"

        stage.say(ExecutorReply(1, RECORD), OUTPUT)
        sent = len(stage.router.sent)
        stage.say(RequestObjects(1))
        assert len(stage.router.sent) == sent

    play(scenario)
