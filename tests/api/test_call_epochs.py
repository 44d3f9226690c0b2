"""Calls across the epochs of a pool: sent again to a restarted pool, ended with a pool that is gone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from kaas.api.rpc_client import RpcClient
from kaas.errors import DeviceLost, PoolStopped
from kaas.wire import messages
from kaas.wire.connections.shared_memory import Inbox
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import Block, CallFailure, CallResult, CancelCall, Submit
from tests.api.conftest import add_task, numbers
from tests.api.fake_pool import LARGE, FakePool, FakeSession, Ref, calls_of, held_blocks, pool, sent, session
from tests.forks import refused_in_a_child, uses
from tests.timeouts import TIMEOUT_S

__all__ = ["pool", "session"]


@pytest.fixture
def next_pool() -> Iterator[FakePool]:
    pool = FakePool()
    yield pool
    pool.close()


# --- the pool's epochs


def test_calls_are_sent_again_to_a_restarted_pool(session: FakeSession, pool: FakePool, next_pool: FakePool) -> None:
    session.epochs.append(next_pool)
    ref = Ref(3)
    futures = [sent(session), sent(session, a=ref, b=numbers())]
    known = [pool.expect_submit()[0], pool.expect(Submit)[0]]
    x = numbers(LARGE)
    futures.append(sent(session, add_task(LARGE), a=x, b=x))
    known.append(pool.expect_submit()[0])
    calls_of(session).moved(next_pool.address.epoch)
    again = [next_pool.expect_submit()[0], next_pool.expect(Submit)[0], next_pool.expect_submit()[0]]
    assert again == known
    assert session.held == [(pool.address.epoch, [ref]), (next_pool.address.epoch, [ref])]
    for submit in again:
        next_pool.send(CallResult(submit.number), x.tobytes() if submit is again[2] else numbers().tobytes())
    for future in futures:
        future.result(TIMEOUT_S)


class Slow(FakeSession):
    """A session with a next pool that starts when the test lets it."""

    may_continue = threading.Event()

    def address(self) -> tuple[messages.Address, str]:
        assert self.may_continue.wait(TIMEOUT_S)
        return super().address()


def test_memory_of_a_call_that_is_cancelled_between_epochs_is_used_again(pool: FakePool, next_pool: FakePool) -> None:
    session = Slow([pool, next_pool])
    session.may_continue.set()
    session.calls = RpcClient.connected(session)
    cancelled, before = held_blocks(session, pool)
    sent(session)
    pool.expect_submit()
    session.may_continue.clear()
    session.calls.moved(next_pool.address.epoch)
    assert cancelled.cancel()
    session.may_continue.set()
    next_pool.expect_submit()
    assert {*held_blocks(session, next_pool)[1].attached} == {*before.attached}
    session.calls.end(PoolStopped("the test has ended"))


def test_a_call_that_is_cancelled_while_it_is_sent_again_is_cancelled_in_the_pool(
    pool: FakePool, next_pool: FakePool
) -> None:
    class Cancelling(FakeSession):
        def hold(self, epoch: str, refs: list[Any]) -> None:
            super().hold(epoch, refs)
            if epoch == next_pool.address.epoch:
                future.cancel()

    session = Cancelling([pool, next_pool])
    session.calls = RpcClient.connected(session)
    sent(session, a=Ref(3), b=numbers())
    future = sent(session)
    session.calls.moved(next_pool.address.epoch)
    number = next_pool.expect(CancelCall)[0].number
    next_pool.expect_submit()
    assert [next_pool.expect(kind)[0].number for kind in (Submit, CancelCall)] == [number, number]
    session.calls.end(PoolStopped("the test has ended"))


def test_memory_of_calls_without_a_reply_ends_with_the_pool(session: FakeSession, pool: FakePool) -> None:
    open_until_then, submit = held_blocks(session, pool)
    cancelled, running = held_blocks(session, pool)
    cancelled.cancel()
    calls_of(session).end(PoolStopped("pool 'fake' was shut down"))
    assert isinstance(open_until_then.exception(), PoolStopped)
    for block in (*submit.attached, *running.attached):
        assert isinstance(block, Block)
        with pytest.raises(OSError, match="No such file"):
            Inbox().view(block)


def test_waiting_threads_notice_the_end_of_a_connection(
    session: FakeSession, pool: FakePool, next_pool: FakePool
) -> None:
    session.epochs.append(next_pool)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(sent(session).result, TIMEOUT_S) for _ in range(2)]
        pool.close()
        for _ in waiting:
            next_pool.send(CallResult(next_pool.expect_submit()[0].number), numbers().tobytes())
        for wait in waiting:
            np.testing.assert_array_equal(wait.result(TIMEOUT_S), numbers())


def test_the_end_of_a_pool_ends_all_calls(session: FakeSession, pool: FakePool) -> None:
    future, watched = sent(session), sent(session)
    called: queue.Queue[Any] = queue.Queue()
    watched.add_done_callback(called.put)
    pool.close()
    assert called.get(timeout=TIMEOUT_S) is watched
    for ended in (future, watched):
        with pytest.raises(PoolStopped, match="gone"):
            ended.result(TIMEOUT_S)
    with pytest.raises(PoolStopped, match="gone"):
        sent(session)


def test_received_replies_outlive_the_pool(session: FakeSession, pool: FakePool) -> None:
    answered, other, last = sent(session), sent(session), sent(session)
    submits = [pool.expect_submit()[0], pool.expect(Submit)[0], pool.expect(Submit)[0]]
    pool.send(CallResult(submits[0].number), numbers().tobytes())
    pool.send(CallFailure(submits[1].number), encode_error(DeviceLost("a kernel failed", kernel="k")))
    with pytest.raises(DeviceLost):
        other.result(TIMEOUT_S)
    calls_of(session).end(PoolStopped("pool 'fake' was shut down"))
    np.testing.assert_array_equal(answered.result(), numbers())
    with pytest.raises(PoolStopped, match="shut down"):
        last.result()


def test_a_forked_process_has_no_connection(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    assert refused_in_a_child([lambda: sent(session), *uses(future)]) == 7
    pool.send(CallResult(header.number), numbers().tobytes())
    np.testing.assert_array_equal(future.result(TIMEOUT_S), numbers())
    assert pool.arrived.empty(), "the child has sent nothing"
