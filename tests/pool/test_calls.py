"""Calls over a line, with a pool that answers what the test says: values, errors, who waits, and the pool's lives."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.error_codec import encode_error
from kaas.errors import DeviceLost, InputFailed, KaasError, NotInitialized, PoolStopped
from kaas.pool import messages, wire
from kaas.pool.blocks import LEASED_AT_MOST, Inbox
from kaas.pool.exchange import Exchange
from kaas.pool.loop import PoolLoop
from kaas.pool.messages import Ask, Block, Cancel, Drop, Failure, Framed, Named, Register, Release, Result, Submit
from kaas.pool.packing import Caller, Signature, pack
from kaas.session_calls import Calls
from tests.api.conftest import N, add_task, both_task, numbers
from tests.patience import PATIENCE_S

"""Longer than anything here takes; only a test that fails waits so long."""
LARGE = wire.INLINE_INPUT_BYTES  # float32, so four times what goes into a message


class FakePool:
    """One life of a pool: what arrives waits for the test, which answers."""

    def __init__(self) -> None:
        self.arrived: queue.Queue[tuple[Any, Any, Sequence[Any]]] = queue.Queue()
        self._loop = PoolLoop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._exchange = self._on_loop(self._open)
        self._peer: Any = None

    def _open(self) -> Exchange:
        exchange = Exchange(self._loop, "here", None)
        exchange.open(lambda *arrived: self.arrived.put(arrived), lambda *_: None)
        return exchange

    def _on_loop(self, function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(PATIENCE_S)

    @property
    def address(self) -> messages.Address:
        address: messages.Address = self._exchange.address
        return address

    def expect(self, kind: type) -> tuple[Any, Sequence[Any]]:
        """The next that arrives, which is of this kind."""
        self._peer, header, frames = self.arrived.get(timeout=PATIENCE_S)
        assert type(header) is kind, header
        return header, frames

    def expect_submit(self) -> tuple[Submit, Sequence[Any]]:
        """Likewise, after what introduces the function."""
        self._peer, header, frames = self.arrived.get(timeout=PATIENCE_S)
        return self.expect(Submit) if isinstance(header, Register) else (header, frames)

    def send(self, header: Any, *frames: Any) -> None:
        self._on_loop(lambda: self._exchange.send(self._peer, header, frames))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._on_loop(self._exchange.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@dataclass(eq=False)
class Ref:
    """Names an object."""

    number: int

    def binary(self) -> bytes:
        return self.number.to_bytes(28, "little")


class FakeStore:
    is_ref = staticmethod(lambda value: isinstance(value, Ref))

    @staticmethod
    def put(value: Any) -> Any:
        raise AssertionError(f"{value!r} does not go beside the call")

    @staticmethod
    def complete(refs: Sequence[Any]) -> bool:
        assert refs, "nobody asks of none"
        return True


@dataclass(eq=False)
class FakeSession:
    """What calls see of a session: its pools, one life after the other; after the last there is none."""

    lives: list[FakePool]
    name: str = "fake"
    id: str = "0123"
    held: list[tuple[str, list[Any]]] = field(default_factory=list)
    calls: Calls | None = None
    moved_on: threading.Event = field(default_factory=threading.Event)

    def address(self) -> tuple[messages.Address, str]:
        if not self.lives:
            self.moved_on.set()
            raise PoolStopped("pool 'fake' is gone", pool="fake")
        return self.lives.pop(0).address, "here"

    def hold(self, life: str, refs: list[Any]) -> None:
        self.held.append((life, refs))

    def drop(self, life: str, keys: list[bytes]) -> None:
        calls_of(self).drop(keys, life)


@pytest.fixture
def pool() -> Iterator[FakePool]:
    pool = FakePool()
    yield pool
    pool.close()


@pytest.fixture
def next_pool() -> Iterator[FakePool]:
    pool = FakePool()
    yield pool
    pool.close()


@pytest.fixture
def session(pool: FakePool) -> Iterator[FakeSession]:
    session = FakeSession([pool])
    session.calls = Calls.connected(session)
    yield session
    session.calls.end(PoolStopped("the test has ended"))


def sent(session: FakeSession, task: kaas.KTask | None = None, **inputs: Any) -> kaas.Future:
    """A call; without inputs, of a kTask with two."""
    task = task or add_task()
    signature, calls = Signature.of(task), calls_of(session)
    with calls.aside(FakeStore()) as aside:
        given = inputs or {"a": numbers(), "b": numbers(seed=1)}
        return calls.submit(signature, *pack(signature, given, None, Caller("client"), aside))


def calls_of(session: FakeSession) -> Calls:
    assert session.calls is not None
    return session.calls


# --- values and errors


def test_a_value_is_a_read_only_array(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, frames = pool.expect_submit()
    invocation = wire.decode_invocation(frames[0])
    assert dict(invocation.values) == {"a": numbers().tobytes(), "b": numbers(seed=1).tobytes()}
    assert (list(header.beside), future.done()) == ([], False)
    pool.send(Result(header.number), numbers(seed=2).tobytes())
    value = future.result(PATIENCE_S)
    assert (value.dtype, value.shape, value.flags.writeable) == (np.float32, (N,), False)
    np.testing.assert_array_equal(value, numbers(seed=2))
    assert future.result() is value
    assert (future.done(), future.cancelled(), future.exception()) == (True, False, None)


def test_several_outputs_are_a_named_tuple(session: FakeSession, pool: FakePool) -> None:
    future = sent(session, both_task(), x=numbers())
    header, _ = pool.expect_submit()
    large = np.arange(N, dtype=np.float32)
    pool.send(Result(header.number), large.tobytes(), numbers().tobytes())
    quadruple, double = future.result(PATIENCE_S)
    np.testing.assert_array_equal(quadruple, large)
    np.testing.assert_array_equal(double, numbers())
    assert future.result()._fields == ("quadruple", "double")


def test_an_error_keeps_class_fields_and_cause(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    error = InputFailed("input 'a' failed", buffer="a", reason="no such weights")
    error.__cause__ = ZeroDivisionError("no such weights")
    pool.send(Failure(header.number), encode_error(error))
    with pytest.raises(InputFailed, match="input 'a' failed") as caught:
        future.result(PATIENCE_S)
    assert caught.value.fields == {"buffer": "a", "reason": "no such weights"}
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert future.exception() is caught.value


def test_a_function_is_introduced_once(session: FakeSession, pool: FakePool) -> None:
    sent(session)
    _, frames = pool.expect(Register)
    assert wire.decode_function(frames[0]).key == add_task().key
    assert kaas.KTask.from_msgpack(frames[1]) == add_task()
    pool.expect(Submit)
    sent(session)
    pool.expect(Submit)


def test_other_questions(session: FakeSession, pool: FakePool) -> None:
    future = calls_of(session).ask("pardon", [b"key"])
    header, frames = pool.expect(Ask)
    assert (header.what, *map(bytes, frames)) == ("pardon", b"key")
    pool.send(Result(header.number), b"1")
    assert list(map(bytes, future.result(PATIENCE_S))) == [b"1"]


# --- who waits


def test_waiting_ends_when_the_time_is_up(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    for wait in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            wait(0)
    with pytest.raises(TimeoutError):
        future.result(0.001)
    pool.send(Result(header.number), numbers().tobytes())
    np.testing.assert_array_equal(future.result(PATIENCE_S), numbers())


@pytest.mark.parametrize("order", [1, -1])
def test_many_threads_each_with_its_own_answer(session: FakeSession, pool: FakePool, order: int) -> None:
    count = 16
    with ThreadPoolExecutor(count) as threads:
        waiting = [threads.submit(lambda i: sent(session, a=numbers(), b=numbers(seed=i)).result(PATIENCE_S), i)
                   for i in range(count)]  # fmt: skip
        submits: list[tuple[int, bytes]] = []
        while len(submits) < count:
            _, header, frames = pool.arrived.get(timeout=PATIENCE_S)
            if isinstance(header, Submit):
                submits.append((header.number, dict(wire.decode_invocation(frames[0]).values)["b"]))
        pool._peer = _
        for number, data in submits[::order]:
            pool.send(Result(number), data)
        for i, waits in enumerate(waiting):
            np.testing.assert_array_equal(waits.result(PATIENCE_S), numbers(seed=i))


def test_a_thread_takes_the_answers_of_others(session: FakeSession, pool: FakePool) -> None:
    first, second = sent(session), sent(session)
    numbers_sent = [pool.expect_submit()[0].number, pool.expect(Submit)[0].number]
    for number in reversed(numbers_sent):
        pool.send(Result(number), numbers(seed=number).tobytes())
    first.result(PATIENCE_S)
    assert second._pending.ended
    np.testing.assert_array_equal(second.result(0), numbers(seed=numbers_sent[1]))


def test_await_in_any_loop(session: FakeSession, pool: FakePool) -> None:
    async def gathered(count: int) -> list[Any]:
        futures = [sent(session, a=numbers(), b=numbers(seed=i)) for i in range(count)]
        return await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)

    def answer() -> None:
        for _ in range(4):
            header, frames = pool.expect_submit()
            pool.send(Result(header.number), dict(wire.decode_invocation(frames[0]).values)["b"])

    for _ in range(2):
        with ThreadPoolExecutor(1) as threads:
            answering = threads.submit(answer)
            for i, value in enumerate(asyncio.run(gathered(4))):
                np.testing.assert_array_equal(value, numbers(seed=i))
            answering.result(PATIENCE_S)


def test_callbacks_are_called_without_anybody_waiting(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    heard: queue.Queue[Any] = queue.Queue()

    def fails(_: kaas.Future) -> None:
        raise ValueError("of the callback")

    future.add_done_callback(fails)
    future.add_done_callback(heard.put)
    pool.send(Result(header.number), numbers().tobytes())
    assert heard.get(timeout=PATIENCE_S) is future
    future.add_done_callback(heard.put)
    assert heard.get_nowait() is future


def test_callbacks_may_wait_for_other_calls(session: FakeSession, pool: FakePool) -> None:
    first, second = sent(session), sent(session)
    submits = [pool.expect_submit()[0], pool.expect(Submit)[0]]
    heard: queue.Queue[Any] = queue.Queue()
    first.add_done_callback(lambda _: heard.put(sent(session).result(PATIENCE_S)))
    second.add_done_callback(lambda _: heard.put(second.result()))
    pool.send(Result(submits[0].number), numbers().tobytes())
    third, _ = pool.expect(Submit)
    pool.send(Result(submits[1].number), numbers(seed=2).tobytes())
    pool.send(Result(third.number), numbers(seed=3).tobytes())
    values = [heard.get(timeout=PATIENCE_S) for _ in range(2)]
    np.testing.assert_array_equal(np.sort(values, 0), np.sort([numbers(seed=2), numbers(seed=3)], 0))


# --- cancelling


def test_cancelling_tells_the_pool(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    assert future.cancel()
    assert future.cancel()
    assert (future.done(), future.cancelled()) == (True, True)
    with pytest.raises(CancelledError):
        future.result()
    assert pool.expect(Cancel)[0].number == header.number
    pool.send(Result(header.number), numbers().tobytes())  # it was on its way
    other = sent(session)
    pool.send(Result(pool.expect(Submit)[0].number), numbers().tobytes())
    other.result(PATIENCE_S)
    assert not other.cancel()


def test_a_thread_that_receives_is_woken_by_cancelling(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    pool.expect_submit()
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(future.result, PATIENCE_S) for _ in range(2)]
        future.cancel()
        for wait in waiting:
            with pytest.raises(CancelledError):
                wait.result(PATIENCE_S)


def test_cancelling_who_awaits_cancels_the_call(session: FakeSession, pool: FakePool) -> None:
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
    pool.expect(Cancel)


# --- what stands beside


def test_large_values_go_by_shared_memory(session: FakeSession, pool: FakePool) -> None:
    x = numbers(LARGE)
    blocks = []
    for _ in range(2):
        future = sent(session, add_task(LARGE), a=x, b=x)
        header, _frames = pool.expect_submit()
        blocks.append([item for item in header.beside if isinstance(item, Block)])
        assert len(blocks[-1]) == 2
        for block in blocks[-1]:
            np.testing.assert_array_equal(np.frombuffer(Inbox().view(block), np.float32), x)
        pool.send(Result(header.number), x.tobytes())
        np.testing.assert_array_equal(future.result(PATIENCE_S), x)
    assert {block.fd for block in blocks[0]} == {block.fd for block in blocks[1]}


def held_blocks(session: FakeSession, pool: FakePool) -> tuple[kaas.Future, Submit]:
    future = sent(session, add_task(LARGE), a=numbers(LARGE), b=numbers(LARGE))
    return future, pool.expect_submit()[0]


def test_memory_of_a_request_that_still_runs_is_not_used_again(session: FakeSession, pool: FakePool) -> None:
    future, late = held_blocks(session, pool)
    pool.send(Failure(late.number, held=True), encode_error(KaasError("too late")))
    with pytest.raises(KaasError, match="too late"):
        future.result(PATIENCE_S)
    cancelled, running = held_blocks(session, pool)
    cancelled.cancel()
    pool.expect(Cancel)
    _, third = held_blocks(session, pool)
    assert not {*late.beside, *running.beside} & {*third.beside}
    pool.send(Release(late.number))
    pool.send(Release(running.number))
    pool.send(Result(third.number), numbers(LARGE).tobytes())
    _.result(PATIENCE_S)
    again = [*held_blocks(session, pool)[1].beside, *held_blocks(session, pool)[1].beside]
    assert {*again} <= {*late.beside, *running.beside, *third.beside}


def test_a_program_with_many_large_values_on_their_way_has_files_left(session: FakeSession, pool: FakePool) -> None:
    x = numbers(LARGE)
    submits = []
    for _ in range(LEASED_AT_MOST // 2 + 1):
        future = sent(session, add_task(LARGE), a=x, b=x)
        submits.append(pool.expect_submit())
    assert all(isinstance(item, Block) for header, _ in submits[:-1] for item in header.beside)
    header, frames = submits[-1]
    assert [*header.beside] == [Framed(2), Framed(3)]
    assert [bytes(frame) for frame in frames[1:]] == [x.tobytes()] * 2
    pool.send(Result(submits[0][0].number), x.tobytes())
    pool.send(Result(header.number), x.tobytes())
    np.testing.assert_array_equal(future.result(PATIENCE_S), x)
    assert all(isinstance(item, Block) for item in held_blocks(session, pool)[1].beside)


def test_what_is_wrong_with_a_later_input_frees_the_memory_of_earlier_ones(
    session: FakeSession, pool: FakePool
) -> None:
    x = numbers(LARGE)
    with pytest.raises(kaas.errors.WrongSize):
        sent(session, add_task(LARGE), a=x, b=x[1:])
    (freed,) = calls_of(session)._outbox._idle
    _, submit = held_blocks(session, pool)
    assert freed.fd in {block.fd for block in submit.beside if isinstance(block, Block)}


def test_references_are_held_while_a_call_names_them(session: FakeSession, pool: FakePool) -> None:
    ref = Ref(7)
    first, second = (sent(session, a=ref, b=numbers()) for _ in range(2))
    submits = [pool.expect_submit()[0], pool.expect(Submit)[0]]
    assert [submit.beside for submit in submits] == [[Named(ref.binary())]] * 2
    assert session.held == [(pool.address.life, [ref])]
    for submit in submits:
        pool.send(Result(submit.number), numbers().tobytes())
    first.result(PATIENCE_S)
    second.result(PATIENCE_S)
    assert pool.expect(Drop)[0].keys == [ref.binary()]


def test_constants_are_held_while_their_function_lives(session: FakeSession, pool: FakePool) -> None:
    class Owner:
        pass

    owner, constants, calls = Owner(), Ref(9), calls_of(session)
    signature = Signature.of(add_task())
    for _ in range(2):
        message, beside = pack(
            signature, {"a": numbers(), "b": numbers()}, None, Caller("client"), calls.aside(FakeStore()), constants
        )
        future = calls.submit(signature, message, beside, constants, owner)
        header, _frames = pool.expect_submit()
        pool.send(Result(header.number), numbers().tobytes())
        future.result(PATIENCE_S)
    assert session.held == [(pool.address.life, [constants])]
    assert pool.arrived.empty()
    del owner
    gc.collect()
    assert pool.expect(Drop)[0].keys == [constants.binary()]


# --- the pool's lives


def test_a_pool_that_starts_again_is_asked_again(session: FakeSession, pool: FakePool, next_pool: FakePool) -> None:
    session.lives.append(next_pool)
    ref = Ref(3)
    futures = [sent(session), sent(session, a=ref, b=numbers())]
    known = [pool.expect_submit()[0], pool.expect(Submit)[0]]
    x = numbers(LARGE)
    futures.append(sent(session, add_task(LARGE), a=x, b=x))
    known.append(pool.expect_submit()[0])
    calls_of(session).moved(next_pool.address.life)
    again = [next_pool.expect_submit()[0], next_pool.expect(Submit)[0], next_pool.expect_submit()[0]]
    assert again == known
    assert session.held == [(pool.address.life, [ref]), (next_pool.address.life, [ref])]
    for submit in again:
        next_pool.send(Result(submit.number), x.tobytes() if submit is again[2] else numbers().tobytes())
    for future in futures:
        future.result(PATIENCE_S)


class Slow(FakeSession):
    """Its next pool is there when the test says so."""

    may_go_on = threading.Event()

    def address(self) -> tuple[messages.Address, str]:
        assert self.may_go_on.wait(PATIENCE_S)
        return super().address()


def test_memory_of_what_is_cancelled_between_lives_is_used_again(pool: FakePool, next_pool: FakePool) -> None:
    session = Slow([pool, next_pool])
    session.may_go_on.set()
    session.calls = Calls.connected(session)
    cancelled, before = held_blocks(session, pool)
    sent(session)
    pool.expect_submit()
    session.may_go_on.clear()
    session.calls.moved(next_pool.address.life)
    assert cancelled.cancel()
    session.may_go_on.set()
    next_pool.expect_submit()
    assert {*held_blocks(session, next_pool)[1].beside} == {*before.beside}
    session.calls.end(PoolStopped("the test has ended"))


def test_what_is_cancelled_while_it_is_asked_again_does_not_run(pool: FakePool, next_pool: FakePool) -> None:
    class Cancelling(FakeSession):
        def hold(self, life: str, refs: list[Any]) -> None:
            super().hold(life, refs)
            if life == next_pool.address.life:
                future.cancel()

    session = Cancelling([pool, next_pool])
    session.calls = Calls.connected(session)
    sent(session, a=Ref(3), b=numbers())
    future = sent(session)
    session.calls.moved(next_pool.address.life)
    number = next_pool.expect(Cancel)[0].number
    next_pool.expect_submit()
    assert [next_pool.expect(kind)[0].number for kind in (Submit, Cancel)] == [number, number]
    session.calls.end(PoolStopped("the test has ended"))


def test_memory_of_what_has_no_answer_ends_with_the_pool(session: FakeSession, pool: FakePool) -> None:
    open_until_then, submit = held_blocks(session, pool)
    cancelled, running = held_blocks(session, pool)
    cancelled.cancel()
    calls_of(session).end(PoolStopped("pool 'fake' was shut down"))
    assert isinstance(open_until_then.exception(), PoolStopped)
    for block in (*submit.beside, *running.beside):
        assert isinstance(block, Block)
        with pytest.raises(OSError, match="No such file"):
            Inbox().view(block)


def test_the_end_of_a_line_is_noticed_by_who_waits(session: FakeSession, pool: FakePool, next_pool: FakePool) -> None:
    session.lives.append(next_pool)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(sent(session).result, PATIENCE_S) for _ in range(2)]
        pool.close()
        for _ in waiting:
            next_pool.send(Result(next_pool.expect_submit()[0].number), numbers().tobytes())
        for wait in waiting:
            np.testing.assert_array_equal(wait.result(PATIENCE_S), numbers())


def test_a_pool_that_is_gone_ends_all_calls(session: FakeSession, pool: FakePool) -> None:
    future, watched = sent(session), sent(session)
    heard: queue.Queue[Any] = queue.Queue()
    watched.add_done_callback(heard.put)
    pool.close()
    assert heard.get(timeout=PATIENCE_S) is watched
    for ended in (future, watched):
        with pytest.raises(PoolStopped, match="gone"):
            ended.result(PATIENCE_S)
    with pytest.raises(PoolStopped, match="gone"):
        sent(session)


def test_answers_that_have_come_outlive_the_pool(session: FakeSession, pool: FakePool) -> None:
    answered, other, last = sent(session), sent(session), sent(session)
    submits = [pool.expect_submit()[0], pool.expect(Submit)[0], pool.expect(Submit)[0]]
    pool.send(Result(submits[0].number), numbers().tobytes())
    pool.send(Failure(submits[1].number), encode_error(DeviceLost("a kernel failed", kernel="k")))
    with pytest.raises(DeviceLost):
        other.result(PATIENCE_S)
    calls_of(session).end(PoolStopped("pool 'fake' was shut down"))
    np.testing.assert_array_equal(answered.result(), numbers())
    with pytest.raises(PoolStopped, match="shut down"):
        last.result()


def test_a_fork_has_no_line(session: FakeSession, pool: FakePool) -> None:
    future = sent(session)
    header, _ = pool.expect_submit()
    child = os.fork()
    if not child:
        refused = 0
        for use in (lambda: sent(session), lambda: future.result(0)):
            try:
                use()
            except NotInitialized:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    pool.send(Result(header.number), numbers().tobytes())
    np.testing.assert_array_equal(future.result(PATIENCE_S), numbers())
