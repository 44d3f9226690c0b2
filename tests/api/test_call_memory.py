"""The attachments of a call: shared memory and references, which a request holds as long as it may read them."""

from __future__ import annotations

import gc
import resource
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

import kaas
from kaas.api.process_session import _HeldStore
from kaas.api.rpc_client import RpcClient
from kaas.errors import KaasError, OutOfHostMemory
from kaas.pool.on_processes.objects import decode_keep, key_of
from kaas.wire.connections import stream
from kaas.wire.connections.shared_memory import LEASED_AT_MOST, BlockLease, Inbox, Outbox
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import (
    Block,
    CallFailure,
    CallResult,
    CancelCall,
    Drop,
    Framed,
    Named,
    PoolQuery,
    Release,
    Submit,
)
from kaas.wire.packing import CallOptions, FunctionSignature, pack
from tests.api.conftest import add_task, numbers
from tests.api.fake_pool import LARGE, FakePool, FakeSession, FakeStore, Ref, calls_of, held_blocks, pool, sent, session
from tests.limits import limited
from tests.timeouts import TIMEOUT_S

__all__ = ["pool", "session"]


# --- attachments


def test_large_values_are_sent_in_shared_memory(session: FakeSession, pool: FakePool) -> None:
    x = numbers(LARGE)
    blocks = []
    for _ in range(2):
        future = sent(session, add_task(LARGE), a=x, b=x)
        header, _frames = pool.expect_submit()
        blocks.append([item for item in header.attached if isinstance(item, Block)])
        assert len(blocks[-1]) == 2
        for block in blocks[-1]:
            np.testing.assert_array_equal(np.frombuffer(Inbox().view(block), np.float32), x)
        pool.send(CallResult(header.number), x.tobytes())
        np.testing.assert_array_equal(future.result(TIMEOUT_S), x)
    assert {block.fd for block in blocks[0]} == {block.fd for block in blocks[1]}


def test_memory_of_a_request_that_still_runs_is_not_used_again(session: FakeSession, pool: FakePool) -> None:
    future, late = held_blocks(session, pool)
    pool.send(CallFailure(late.number, held=True), encode_error(KaasError("too late")))
    with pytest.raises(KaasError, match="too late"):
        future.result(TIMEOUT_S)
    cancelled, running = held_blocks(session, pool)
    cancelled.cancel()
    pool.expect(CancelCall)
    _, third = held_blocks(session, pool)
    assert not {*late.attached, *running.attached} & {*third.attached}
    pool.send(Release(late.number))
    pool.send(Release(running.number))
    pool.send(CallResult(third.number), numbers(LARGE).tobytes())
    _.result(TIMEOUT_S)
    again = [*held_blocks(session, pool)[1].attached, *held_blocks(session, pool)[1].attached]
    assert {*again} <= {*late.attached, *running.attached, *third.attached}


def test_a_program_with_many_large_values_on_their_way_has_files_left(session: FakeSession, pool: FakePool) -> None:
    x = numbers(LARGE)
    submits = []
    for _ in range(LEASED_AT_MOST // 2 + 1):
        future = sent(session, add_task(LARGE), a=x, b=x)
        submits.append(pool.expect_submit())
    assert all(isinstance(item, Block) for header, _ in submits[:-1] for item in header.attached)
    header, frames = submits[-1]
    assert [*header.attached] == [Framed(2), Framed(3)]
    assert [bytes(frame) for frame in frames[1:]] == [x.tobytes()] * 2
    pool.send(CallResult(submits[0][0].number), x.tobytes())
    pool.send(CallResult(header.number), x.tobytes())
    np.testing.assert_array_equal(future.result(TIMEOUT_S), x)
    assert all(isinstance(item, Block) for item in held_blocks(session, pool)[1].attached)


def test_a_value_without_room_in_shared_memory_is_sent_in_a_frame(session: FakeSession, pool: FakePool) -> None:
    x = numbers(LARGE)
    with limited(resource.RLIMIT_FSIZE, x.nbytes // 2):
        future = sent(session, add_task(LARGE), a=x, b=x)
    header, frames = pool.expect_submit()
    assert [*header.attached] == [Framed(2), Framed(3)]
    assert [bytes(frame) for frame in frames[1:]] == [x.tobytes()] * 2
    pool.send(CallResult(header.number), x.tobytes())
    np.testing.assert_array_equal(future.result(TIMEOUT_S), x)
    assert all(isinstance(item, Block) for item in held_blocks(session, pool)[1].attached)


def test_outputs_that_the_program_has_no_memory_for(
    session: FakeSession, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    future, submit = held_blocks(session, pool)
    with monkeypatch.context() as patched:
        patched.setattr(stream, "_large", stream._Skipped)
        pool.send(CallResult(submit.number), numbers(LARGE).tobytes())
        with pytest.raises(OutOfHostMemory):
            future.result(TIMEOUT_S)
    freed = {block.fd for block in held_blocks(session, pool)[1].attached if isinstance(block, Block)}
    assert freed == {block.fd for block in submit.attached if isinstance(block, Block)}


def test_an_invalid_later_input_frees_the_memory_of_earlier_inputs(session: FakeSession, pool: FakePool) -> None:
    x = numbers(LARGE)
    with pytest.raises(kaas.errors.WrongSize):
        sent(session, add_task(LARGE), a=x, b=x[1:])
    (freed,) = calls_of(session)._outbox._idle
    _, submit = held_blocks(session, pool)
    assert freed.fd in {block.fd for block in submit.attached if isinstance(block, Block)}


def test_references_are_held_while_a_call_names_them(session: FakeSession, pool: FakePool) -> None:
    ref = Ref(7)
    first, second = (sent(session, a=ref, b=numbers()) for _ in range(2))
    submits = [pool.expect_submit()[0], pool.expect(Submit)[0]]
    assert [submit.attached for submit in submits] == [[Named(ref.binary())]] * 2
    assert session.held == [(pool.address.epoch, [ref])]
    for submit in submits:
        pool.send(CallResult(submit.number), numbers().tobytes())
    first.result(TIMEOUT_S)
    second.result(TIMEOUT_S)
    assert pool.expect(Drop)[0].keys == [ref.binary()]


def test_constants_are_held_until_their_function_is_freed(session: FakeSession, pool: FakePool) -> None:
    class Owner:
        pass

    owner, constants, calls = Owner(), Ref(9), calls_of(session)
    signature = FunctionSignature.of(add_task())
    for _ in range(2):
        message, attached = pack(
            signature,
            {"a": numbers(), "b": numbers()},
            None,
            CallOptions("client"),
            calls.attachments(FakeStore()),
            constants,
        )
        future = calls.submit(signature, message, attached, constants, owner)
        header, _frames = pool.expect_submit()
        pool.send(CallResult(header.number), numbers().tobytes())
        future.result(TIMEOUT_S)
    assert session.held == [(pool.address.epoch, [constants])]
    assert pool.arrived.empty()
    del owner
    gc.collect()
    assert pool.expect(Drop)[0].keys == [constants.binary()]


# --- Ctrl-C


def interrupt_after(monkeypatch: pytest.MonkeyPatch, of: type, method: str) -> None:
    """Let Ctrl-C come once, just after a method has done its work."""

    def interrupted(*arguments: Any) -> None:
        monkeypatch.setattr(of, method, original)
        original(*arguments)
        raise KeyboardInterrupt

    original = getattr(of, method)
    monkeypatch.setattr(of, method, interrupted)


def test_memory_of_an_interrupted_call_that_was_sent_waits_for_the_pools_reply(
    session: FakeSession, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(monkeypatch, RpcClient, "_post")
    with pytest.raises(KeyboardInterrupt):
        held_blocks(session, pool)
    first, _ = pool.expect_submit()
    _, second = held_blocks(session, pool)
    assert not {*first.attached} & {*second.attached}
    pool.send(CallResult(first.number), numbers(LARGE).tobytes())
    pool.send(CallResult(second.number), numbers(LARGE).tobytes())
    _.result(TIMEOUT_S)
    assert {*held_blocks(session, pool)[1].attached} <= {*first.attached, *second.attached}


def test_the_pool_lets_go_of_what_an_interrupted_put_brings_and_reads_it_to_the_end(
    session: FakeSession, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory must not take another value while the pool may copy it: the key would stand for other bytes."""
    store, x, y = _HeldStore(cast(Any, session)), numbers(LARGE), numbers(LARGE, seed=1)
    interrupt_after(monkeypatch, RpcClient, "_begin")
    with pytest.raises(KeyboardInterrupt):
        store.put(x)
    first, _ = pool.expect(PoolQuery)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kaas.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.put(x)
    second, _ = pool.expect(PoolQuery)
    with ThreadPoolExecutor(1) as thread:
        putting = thread.submit(store.put, y)
        third, frames = pool.expect(PoolQuery)
        assert len({block for each in (first, second, third) for block in each.attached}) == 3
        assert list(decode_keep(frames[0]).keys) == [key_of(y.tobytes())]
        pool.send(CallResult(first.number))
        pool.send(CallResult(second.number))
        dropped, _ = pool.expect(Drop)
        assert list(dropped.keys) == [key_of(x.tobytes())]
        pool.send(CallResult(third.number))
        assert putting.result(TIMEOUT_S).binary() == key_of(y.tobytes())
    store.close()


def test_the_key_of_a_value_is_that_of_the_bytes_that_the_pool_gets(
    session: FakeSession, pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that writes to an array while it puts it has a value of either moment, and no other program has."""
    x = numbers(LARGE)

    def copied(outbox: Outbox, data: Any) -> BlockLease:
        lease = original(outbox, data)
        x.fill(-1)
        return lease

    original, before = Outbox.put, x.tobytes()
    monkeypatch.setattr(Outbox, "put", copied)
    store = _HeldStore(cast(Any, session))
    with ThreadPoolExecutor(1) as thread:
        putting = thread.submit(store.put, x)
        header, frames = pool.expect(PoolQuery)
        (key,) = decode_keep(frames[0]).keys
        assert key == key_of(Inbox().view(header.attached[0])) == key_of(before)
        pool.send(CallResult(header.number))
        assert putting.result(TIMEOUT_S).binary() == key
    store.close()
