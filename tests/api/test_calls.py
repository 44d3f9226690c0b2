"""Calls over a connection, to a pool whose replies the test sends: values, errors, waiting threads, event loops."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.api.rpc_client import RpcClient
from kaas.errors import InputFailed, PoolStopped
from kaas.wire import specs
from kaas.wire.error_codec import encode_error
from kaas.wire.messages import AnnounceFunction, CallFailure, CallResult, CancelCall, PoolQuery, Submit
from tests.api.conftest import N, add_task, both_task, numbers
from tests.api.fake_pool import FakePool, FakeSession, calls_of, pool, sent, session
from tests.interrupted import interrupted
from tests.timeouts import TIMEOUT_S

__all__ = ["pool", "session"]


# --- values and errors


def test_a_value_is_a_read_only_array(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, frames = pool.expect_submit()
    invocation = specs.decode_invocation(frames[0])
    assert dict(invocation.values) == {"a": numbers().tobytes(), "b": numbers(seed=1).tobytes()}
    assert (list(header.attached), future.done()) == ([], False)
    pool.send(CallResult(header.number), numbers(seed=2).tobytes())
    value = future.result(TIMEOUT_S)
    assert (value.dtype, value.shape, value.flags.writeable) == (np.float32, (N,), False)
    np.testing.assert_array_equal(value, numbers(seed=2))
    assert future.result() is value
    assert (future.done(), future.cancelled(), future.exception()) == (True, False, None)


def test_several_outputs_are_a_named_tuple(session: FakeSession, pool: FakePool) -> None:
    future = sent(session, both_task(), x=numbers())
    header, _ = pool.expect_submit()
    large = np.arange(N, dtype=np.float32)
    pool.send(CallResult(header.number), large.tobytes(), numbers().tobytes())
    quadruple, double = future.result(TIMEOUT_S)
    np.testing.assert_array_equal(quadruple, large)
    np.testing.assert_array_equal(double, numbers())
    assert future.result()._fields == ("quadruple", "double")


def test_an_error_keeps_class_fields_and_cause(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    error = InputFailed("input 'a' failed", buffer="a", reason="no such weights")
    error.__cause__ = ZeroDivisionError("no such weights")
    pool.send(CallFailure(header.number), encode_error(error))
    with pytest.raises(InputFailed, match="input 'a' failed") as caught:
        future.result(TIMEOUT_S)
    assert caught.value.fields == {"buffer": "a", "reason": "no such weights"}
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert future.exception() is caught.value


def test_a_function_is_introduced_once(session: FakeSession, pool: FakePool) -> None:
    sent(session)
    _, frames = pool.expect(AnnounceFunction)
    assert specs.decode_function(frames[0]).key == add_task().key
    assert kaas.KTask.from_msgpack(frames[1]) == add_task()
    pool.expect(Submit)
    sent(session)
    pool.expect(Submit)


def test_a_query_of_the_pool_gets_its_reply(session: FakeSession, pool: FakePool) -> None:
    future = calls_of(session).ask("pardon", [b"key"])
    header, frames = pool.expect(PoolQuery)
    assert (header.what, *map(bytes, frames)) == ("pardon", b"key")
    pool.send(CallResult(header.number), b"1")
    assert list(map(bytes, future.result(TIMEOUT_S))) == [b"1"]


# --- waiting


def test_a_call_may_be_interrupted_anywhere(pool: FakePool) -> None:
    def answer() -> None:
        while (arrived := pool.arrived.get())[1] is not None:
            pool._peer, header, _ = arrived
            if isinstance(header, Submit):
                pool.send(CallResult(header.number), numbers().tobytes())

    answering = threading.Thread(target=answer)
    answering.start()
    session = FakeSession([pool] * 1000)
    session.calls = RpcClient.connected(session)
    for at in itertools.count(1):
        place = interrupted(lambda: sent(session).result(TIMEOUT_S), at)
        np.testing.assert_array_equal(sent(session).result(TIMEOUT_S), numbers(), place)
        if not place:
            break
    assert len(session.epochs) < 1000, "some interrupts lost the connection"
    pool.arrived.put((None, None, ()))
    answering.join(TIMEOUT_S)
    session.calls.end(PoolStopped("the test has ended"))


def test_waiting_ends_when_the_time_is_up(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            wait(0)
    with pytest.raises(TimeoutError):
        future.result(0.001)
    pool.send(CallResult(header.number), numbers().tobytes())
    np.testing.assert_array_equal(future.result(TIMEOUT_S), numbers())


@pytest.mark.parametrize("order", [1, -1])
def test_many_threads_each_with_its_own_reply(session: FakeSession, pool: FakePool, order: int) -> None:
    count = 16
    with ThreadPoolExecutor(count) as threads:
        waiting = [threads.submit(lambda i: sent(session, a=numbers(), b=numbers(seed=i)).result(TIMEOUT_S), i)
                   for i in range(count)]  # fmt: skip
        submits: list[tuple[int, bytes]] = []
        while len(submits) < count:
            _, header, frames = pool.arrived.get(timeout=TIMEOUT_S)
            if isinstance(header, Submit):
                submits.append((header.number, dict(specs.decode_invocation(frames[0]).values)["b"]))
        pool._peer = _
        for number, data in submits[::order]:
            pool.send(CallResult(number), data)
        for i, waits in enumerate(waiting):
            np.testing.assert_array_equal(waits.result(TIMEOUT_S), numbers(seed=i))


def test_a_thread_takes_the_replies_of_others(session: FakeSession, pool: FakePool) -> None:
    first, second = sent(session), sent(session)
    numbers_sent = [pool.expect_submit()[0].number, pool.expect(Submit)[0].number]
    for number in reversed(numbers_sent):
        pool.send(CallResult(number), numbers(seed=number).tobytes())
    first.result(TIMEOUT_S)
    assert second._pending.ended
    np.testing.assert_array_equal(second.result(0), numbers(seed=numbers_sent[1]))


def test_await_in_any_loop(session: FakeSession, pool: FakePool) -> None:
    async def gathered(count: int) -> list[Any]:
        futures = [sent(session, a=numbers(), b=numbers(seed=i)) for i in range(count)]
        return await asyncio.wait_for(asyncio.gather(*futures), TIMEOUT_S)

    def answer() -> None:
        for _ in range(4):
            header, frames = pool.expect_submit()
            pool.send(CallResult(header.number), dict(specs.decode_invocation(frames[0]).values)["b"])

    for _ in range(2):
        with ThreadPoolExecutor(1) as threads:
            answering = threads.submit(answer)
            for i, value in enumerate(asyncio.run(gathered(4))):
                np.testing.assert_array_equal(value, numbers(seed=i))
            answering.result(TIMEOUT_S)


def test_callbacks_are_called_without_a_waiting_thread(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    heard: queue.Queue[Any] = queue.Queue()

    def fails(_: kaas.Future) -> None:
        raise ValueError("of the callback")

    future.add_done_callback(fails)
    future.add_done_callback(heard.put)
    pool.send(CallResult(header.number), numbers().tobytes())
    assert heard.get(timeout=TIMEOUT_S) is future
    future.add_done_callback(heard.put)
    assert heard.get_nowait() is future


def test_callbacks_may_wait_for_other_calls(session: FakeSession, pool: FakePool) -> None:
    first, second = sent(session), sent(session)
    submits = [pool.expect_submit()[0], pool.expect(Submit)[0]]
    heard: queue.Queue[Any] = queue.Queue()
    first.add_done_callback(lambda _: heard.put(sent(session).result(TIMEOUT_S)))
    second.add_done_callback(lambda _: heard.put(second.result()))
    pool.send(CallResult(submits[0].number), numbers().tobytes())
    third, _ = pool.expect(Submit)
    pool.send(CallResult(submits[1].number), numbers(seed=2).tobytes())
    pool.send(CallResult(third.number), numbers(seed=3).tobytes())
    values = [heard.get(timeout=TIMEOUT_S) for _ in range(2)]
    np.testing.assert_array_equal(np.sort(values, 0), np.sort([numbers(seed=2), numbers(seed=3)], 0))


# --- cancelling


def test_cancelling_a_call_cancels_it_in_the_pool(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    assert future.cancel()
    assert future.cancel()
    assert (future.done(), future.cancelled()) == (True, True)
    with pytest.raises(CancelledError):
        future.result()
    assert pool.expect(CancelCall)[0].number == header.number
    pool.send(CallResult(header.number), numbers().tobytes())  # it was on its way
    other = sent(session)
    pool.send(CallResult(pool.expect(Submit)[0].number), numbers().tobytes())
    other.result(TIMEOUT_S)
    assert not other.cancel()


def test_a_thread_that_receives_is_woken_by_cancelling(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    pool.expect_submit()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(future.result, TIMEOUT_S) for _ in range(2)]
        future.cancel()
        for wait in waiting:
            with pytest.raises(CancelledError):
                wait.result(TIMEOUT_S)


def test_cancelling_an_awaiting_task_cancels_the_call(session: FakeSession, pool: FakePool) -> None:
    async def give_up() -> kaas.Future:
        future = sent(session)

        async def wait() -> Any:
            return await future

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.CancelledError):
            await future
        return future

    assert asyncio.run(give_up()).cancelled()
    pool.expect_submit()
    pool.expect(CancelCall)
