"""Threads that serve a connection: each message is taken once, in order, and no thread waits for a busy one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kaas.wire.connections.adaptive_poll import AdaptivePoll
from kaas.wire.connections.connection import LARGE_BYTES, Connection, ConnectionLost
from kaas.wire.connections.router import Peer
from kaas.wire.connections.stream import CHUNK_BYTES
from kaas.wire.messages import Release
from tests.timeouts import TIMEOUT_S
from tests.wire.connections.routers import NODE, Running

THREADS = 4


class Served:
    """A connection that some threads serve. A message whose number `gives` is its thread's, which calls `on_given`.

    Fields:
        taken: numbers of messages, in the order in which they came. given: likewise. lost: reasons of ended threads.
    """

    def __init__(self, connection: Connection, gives: Callable[[int], bool], on_given: Callable[[int], Any]) -> None:
        self.taken: queue.Queue[tuple[int, list[int]]] = queue.Queue()
        self.given: queue.Queue[int] = queue.Queue()
        self.lost: queue.Queue[ConnectionLost] = queue.Queue()
        self._line, self._gives, self._on_given = connection, gives, on_given
        self._alone = threading.Lock()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _serve(self) -> None:
        try:
            for number in self._line.serve(self._take):
                self.given.put(number)
                self._on_given(number)
        except ConnectionLost as lost:
            self.lost.put(lost)

    def _take(self, message: Any, frames: Any) -> int | None:
        assert self._alone.acquire(blocking=False), "two at a time"
        try:
            self.taken.put((message.number, [len(frame) for frame in frames]))
            return message.number if self._gives(message.number) else None
        finally:
            self._alone.release()

    def ended(self) -> list[ConnectionLost]:
        """Return the reason of the end, once all threads have ended."""
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        return [self.lost.get_nowait() for _ in self._threads]


@pytest.fixture
def pool() -> Iterator[Running]:
    running = Running("127.0.0.1")
    yield running
    running.close()


@pytest.fixture(params=[NODE, "elsewhere"], ids=["here", "on another node"])
def connection(pool: Running, request: pytest.FixtureRequest) -> Iterator[Connection]:
    connection = pool.connect("executor", node=request.param)
    yield connection
    connection.close()


def send(pool: Running, numbers: range, frames: Callable[[int], list[bytes]] = lambda _: []) -> None:
    """Send all messages at once."""
    peer: Peer = pool.greeted.get(timeout=TIMEOUT_S)[0]
    pool.greeted.put((peer, None))  # type: ignore[arg-type]

    def all_of_them() -> None:
        for number in numbers:
            pool.router.send(peer, Release(number), frames(number))

    pool.do(all_of_them)


def got(from_queue: queue.Queue[Any], count: int) -> list[Any]:
    return [from_queue.get(timeout=TIMEOUT_S) for _ in range(count)]


def test_messages_are_taken_in_order_one_at_a_time(pool: Running, connection: Connection) -> None:
    sizes = [0, 1, 4096, LARGE_BYTES, 3 * CHUNK_BYTES, CHUNK_BYTES - 20]
    count = 600
    served = Served(connection, lambda number: number % 3 > 0, lambda _: None)
    for first in range(0, count, 100):
        send(pool, range(first, first + 100), lambda number: [bytes(sizes[number % len(sizes)])])
    assert got(served.taken, count) == [(number, [sizes[number % len(sizes)]]) for number in range(count)]
    assert sorted(got(served.given, count * 2 // 3)) == [number for number in range(count) if number % 3]


def test_a_free_thread_takes_messages_while_others_are_busy(pool: Running, connection: Connection) -> None:
    """All threads but one get a message, and the last one takes the following messages."""
    done = threading.Event()
    served = Served(connection, lambda number: number < THREADS - 1, lambda _: done.wait(TIMEOUT_S))
    send(pool, range(2 * THREADS))
    assert sorted(got(served.given, THREADS - 1)) == list(range(THREADS - 1))
    assert [number for number, _ in got(served.taken, 2 * THREADS)] == list(range(2 * THREADS))
    send(pool, range(100, 101))
    assert served.taken.get(timeout=TIMEOUT_S) == (100, [])
    done.set()


def test_messages_that_arrive_while_all_threads_are_busy_are_taken_later(pool: Running, connection: Connection) -> None:
    done = threading.Event()
    served = Served(connection, lambda _: True, lambda _: done.wait(TIMEOUT_S))
    send(pool, range(THREADS))
    assert sorted(got(served.given, THREADS)) == list(range(THREADS))
    send(pool, range(THREADS, 3 * THREADS))
    done.set()
    assert sorted(got(served.given, 2 * THREADS)) == list(range(THREADS, 3 * THREADS))


def test_a_wait_gets_whether_the_process_is_idle(pool: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: queue.Queue[bool] = queue.Queue()
    wait = AdaptivePoll.wait

    def noted(poll: AdaptivePoll, idle: bool) -> int:
        waits.put(idle)
        return wait(poll, idle)

    monkeypatch.setattr(AdaptivePoll, "wait", noted)
    connection = pool.connect("executor")
    done = threading.Event()
    served = Served(connection, lambda number: number == 0, lambda _: done.wait(TIMEOUT_S))
    got(waits, THREADS)
    send(pool, range(1, 2))
    assert got(waits, 1) == [True]
    send(pool, range(1))
    got(served.given, 1)
    for number in (2, 3):
        send(pool, range(number, number + 1))
        assert got(waits, 1) == [False]
    done.set()
    assert got(waits, 1) == [True]
    send(pool, range(4, 5))
    assert got(waits, 1) == [True]
    connection.close()
    served.ended()


def test_all_threads_leave_a_closed_connection(pool: Running, connection: Connection) -> None:
    served = Served(connection, lambda _: True, lambda _: None)
    send(pool, range(THREADS))
    got(served.given, THREADS)
    connection.close()
    assert all("closed" in str(lost) for lost in served.ended())
    with pytest.raises(ConnectionLost, match="closed"):
        next(connection.serve(lambda *_: None))


def test_all_leave_when_the_pool_has_ended(pool: Running) -> None:
    connection = pool.connect("executor")
    served = Served(connection, lambda _: True, lambda _: None)
    send(pool, range(THREADS))
    got(served.given, THREADS)
    pool.do(pool.router.close)
    assert all("ended" in str(lost) for lost in served.ended())
    connection.close()


def test_an_end_that_arrives_with_the_last_message_is_noticed(pool: Running) -> None:
    """All threads are busy meanwhile, so that both are one event."""
    connection = pool.connect("executor")
    done = threading.Event()
    served = Served(connection, lambda number: number < THREADS, lambda _: done.wait(TIMEOUT_S))
    send(pool, range(THREADS))
    got(served.given, THREADS)
    peer = pool.greeted.get(timeout=TIMEOUT_S)[0]

    def last_words() -> None:
        pool.router.send(peer, Release(100), [])
        pool.router.close()

    pool.do(last_words)
    done.set()
    assert all("ended" in str(lost) for lost in served.ended())
    assert [number for number, _ in got(served.taken, THREADS + 1)][-1] == 100
    connection.close()


def test_a_thread_that_is_busy_when_the_connection_closes_ends_afterwards(
    pool: Running, connection: Connection
) -> None:
    done = threading.Event()
    served = Served(connection, lambda _: True, lambda _: done.wait(TIMEOUT_S))
    send(pool, range(THREADS))
    got(served.given, THREADS)
    connection.close()
    done.set()
    assert all("closed" in str(lost) for lost in served.ended())
