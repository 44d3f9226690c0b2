"""All of Python's ways to wait for futures work with a `kaas.Future`, of a pool or of a server."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, InvalidStateError
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import kaas
from tests.api.conftest import spin_task
from tests.server.servers import DEVICE, Server
from tests.timeouts import TIMEOUT_S, until

pytestmark = pytest.mark.processes

Ask = Callable[..., kaas.Future]

SHORT, LONG = 3_000_000, 1_000_000_000
"""Steps of the kernel, of a few nanoseconds each: the second takes longer than any test before it cancels."""


@pytest.fixture(scope="module", autouse=True)
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The pools of these tests have their names in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("waiting", numbered=True)))
        yield


@pytest.fixture(scope="module", params=["kaas.call", "kaas.Client.call"])
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Submit work to a pool or to a server."""
    if request.param == "kaas.call":
        kaas.init(ray=False, devices=[kaas.Device("software", 64 << 20)] * 3)
        yield lambda steps=SHORT: kaas.call(spin_task(), {}, scalars={"steps": steps})
        kaas.shutdown()
        return
    folder: Path = tmp_path_factory.mktemp("server")
    server = Server(folder, {"pool": {"devices": [DEVICE] * 3}}, insecure=True)
    with kaas.Client(server.endpoint) as client:
        yield lambda steps=SHORT: client.call(spin_task(), {}, scalars={"steps": steps})
    server.close()


@pytest.fixture(scope="module")
def answer(ask: Ask) -> list[int]:
    """Return the result of the work."""
    value: list[int] = ask().result(TIMEOUT_S).tolist()
    return value


def run(work: Any) -> Any:
    """Run in a new event loop, within the timeout."""

    async def patient() -> Any:
        return await asyncio.wait_for(work, TIMEOUT_S)

    return asyncio.run(patient())


def test_a_call_is_a_future_of_the_standard_library(ask: Ask) -> None:
    future = ask()
    assert isinstance(future, concurrent.futures.Future)
    assert not future.running()  # it can be cancelled for as long as it has no value
    future.result(TIMEOUT_S)
    assert future.done()
    assert not future.cancelled()
    assert future.exception() is None


# --- concurrent.futures


def test_wait(ask: Ask, answer: list[int]) -> None:
    futures = [ask() for _ in range(4)]
    done, left = concurrent.futures.wait(futures, TIMEOUT_S)
    assert (done, left) == (set(futures), set())
    assert [future.result(0).tolist() for future in futures] == [answer] * 4
    assert concurrent.futures.wait(futures, 0) == (set(futures), set())


def test_wait_for_the_first(ask: Ask) -> None:
    first, long = ask(), ask(LONG)
    done, left = concurrent.futures.wait([first, long], TIMEOUT_S, concurrent.futures.FIRST_COMPLETED)
    assert (done, left) == ({first}, {long})
    long.cancel()
    done, left = concurrent.futures.wait([first, long], TIMEOUT_S)
    assert (done, left) == ({first, long}, set())


def test_wait_ends_when_another_thread_cancels_the_call(ask: Ask) -> None:
    long = ask(LONG)
    threading.Thread(target=long.cancel).start()
    assert concurrent.futures.wait([long], TIMEOUT_S).done == {long}


def test_as_completed(ask: Ask, answer: list[int]) -> None:
    futures = [ask() for _ in range(4)]
    assert set(concurrent.futures.as_completed(futures, TIMEOUT_S)) == set(futures)
    assert [future.result(0).tolist() for future in concurrent.futures.as_completed(futures)] == [answer] * 4


def test_wait_takes_calls_and_futures_of_a_thread_pool_together(ask: Ask) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        both: list[concurrent.futures.Future[Any]] = [ask(), threads.submit(lambda: 3)]
        assert concurrent.futures.wait(both, TIMEOUT_S).done == set(both)


def test_callbacks_of_a_thread(ask: Ask) -> None:
    heard: SimpleQueue[kaas.Future] = SimpleQueue()
    future = ask()
    future.add_done_callback(heard.put)
    assert heard.get(timeout=TIMEOUT_S) is future
    future.add_done_callback(heard.put)
    assert heard.get_nowait() is future


def test_a_callback_that_was_removed_is_not_called(ask: Ask) -> None:
    heard: list[kaas.Future] = []
    future = ask()
    future.add_done_callback(heard.append)
    assert future.remove_done_callback(heard.append) == 1
    assert future.remove_done_callback(heard.append) == 0
    assert concurrent.futures.wait([future], TIMEOUT_S).done
    assert heard == []


def test_a_program_can_cancel_a_future_but_not_set_its_result(ask: Ask) -> None:
    """A program cancels; the pool answers."""
    future = ask(LONG)
    with pytest.raises(InvalidStateError, match="the reply comes from the pool"):
        future.set_result(1)
    with pytest.raises(InvalidStateError, match="the reply comes from the pool"):
        future.set_exception(ValueError())
    assert not future.done()
    assert future.cancel()
    assert future.cancel()
    assert (future.cancelled(), future.done()) == (True, True)
    with pytest.raises(CancelledError):
        future.result(0)
    with pytest.raises(CancelledError):
        future.exception(0)
    ended = ask()
    ended.result(TIMEOUT_S)
    assert not ended.cancel()
    assert not ended.cancelled()


def test_time_that_is_up(ask: Ask) -> None:
    future = ask(LONG)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    with pytest.raises(TimeoutError):
        next(concurrent.futures.as_completed([future], 0.01))
    assert concurrent.futures.wait([future], 0.01).not_done == {future}
    assert future.cancel()


# --- asyncio


async def value_of(future: kaas.Future) -> Any:
    return await future


async def gathered(ask: Ask) -> list[Any]:
    return list(await asyncio.gather(ask(), ask()))


async def waited_for(ask: Ask) -> list[Any]:
    return [await asyncio.wait_for(ask(), TIMEOUT_S)]


async def waited(ask: Ask) -> list[Any]:
    futures: list[Any] = [ask(), ask()]
    done, left = await asyncio.wait(futures)
    assert (done, left) == (set(futures), set())
    return [future.result() for future in done]


async def completed(ask: Ask) -> list[Any]:
    return [await future for future in asyncio.as_completed([ask(), ask()])]


async def wrapped(ask: Ask) -> list[Any]:
    return [await asyncio.wrap_future(ask())]


async def ensured(ask: Ask) -> list[Any]:
    return [await asyncio.ensure_future(ask())]


async def shielded(ask: Ask) -> list[Any]:
    return [await asyncio.shield(ask())]


async def grouped(ask: Ask) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(value_of(ask())) for _ in range(2)]
    return [task.result() for task in tasks]


async def awaited_twice(ask: Ask) -> list[Any]:
    future = ask()
    return [await future, await future]


async def called_back(ask: Ask) -> list[Any]:
    ended = asyncio.Event()  # which a callback may set only in the loop's own thread
    future = ask()
    future.add_done_callback(lambda _: ended.set())
    await ended.wait()
    return [future.result(0)]


WAYS = [gathered, waited_for, waited, completed, wrapped, ensured, shielded, grouped, awaited_twice, called_back]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: str(way.__name__))
def test_asyncio(way: Callable[[Ask], Any], ask: Ask, answer: list[int]) -> None:
    values = run(way(ask))
    assert values
    assert all(value.tolist() == answer for value in values)


def test_the_first_of_two_by_asyncio(ask: Ask) -> None:
    async def first() -> None:
        short, long = ask(), ask(LONG)
        both: list[Any] = [short, long]
        done, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert (done, left) == ({short}, {long})
        done, left = await asyncio.wait(left, timeout=0.01)
        assert (done, left) == (set(), {long})
        assert long.cancel()

    run(first())


def test_a_task_group_refuses_a_future_at_once(ask: Ask) -> None:
    async def refused() -> None:
        future: Any = ask()
        async with asyncio.TaskGroup() as group:
            with pytest.raises(TypeError, match="coroutine"):
                group.create_task(future)
        await future

    run(refused())


def test_awaited_in_two_loops(ask: Ask, answer: list[int]) -> None:
    future = ask()
    values: SimpleQueue[Any] = SimpleQueue()
    threads = [threading.Thread(target=lambda: values.put(run(value_of(future)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert [values.get_nowait().tolist() for _ in threads] == [answer] * 2


def test_a_timeout_cancels_a_future_unless_it_is_shielded(ask: Ask) -> None:
    async def give_up() -> None:
        future = ask(LONG)
        shielded = asyncio.ensure_future(future)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(shielded), 0.01)
        assert not future.cancelled()
        for wrap in (asyncio.ensure_future, asyncio.wrap_future):
            waiting = wrap(future)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(waiting, 0.01)
            assert future.cancelled()
            future = ask(LONG)
        future.cancel()
        await asyncio.wait([shielded])

    run(give_up())


def test_a_loop_that_has_closed_loses_no_callback(ask: Ask) -> None:
    heard: SimpleQueue[kaas.Future] = SimpleQueue()

    async def leave() -> kaas.Future:
        future = ask(LONG)
        future.add_done_callback(heard.put)
        return future

    future = run(leave())
    future.cancel()
    assert heard.get(timeout=TIMEOUT_S) is future


def test_an_answer_is_freed_with_the_last_reference_to_it(ask: Ask) -> None:
    """Results are freed without the garbage collector, since they may be large."""
    gc.disable()
    try:
        future = ask()
        assert concurrent.futures.wait([future], TIMEOUT_S).not_done == set()
        value = weakref.ref(future.result())
        del future
        until(lambda: value() is None)  # the thread that received it may still be about to let go
    finally:
        gc.enable()
