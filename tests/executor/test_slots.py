"""Several slots: requests that run beside each other, wait for each other, and share what each of them brings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import kaas
from kaas import softgpu
from kaas.errors import DeviceError, DeviceLost, DeviceUnavailable, InputFailed, OutOfDeviceMemory
from kaas.executor.device import HostMemory, Stream, open_device
from kaas.executor.executor import Executor, Request, Result, Source
from kaas.executor.gate import Gate
from kaas.executor.plan import Plan
from kaas.executor.slot import Slot
from tests.executor.conftest import MakeExecutor
from tests.patience import PATIENCE_S

KIB = 1024
N = 256  # elements of the buffers: 1 KiB
A, B, C = (kaas.Buffer(name, N, "int32") for name in "abc")
"""After so long a test that hangs fails; none ever waits for it."""

Submit = Callable[..., "Future[Result]"]


@pytest.fixture(scope="module")
def task(library: kaas.Library) -> kaas.KTask:
    """c = a + b; its arena has 1 KiB when both come from the cache."""
    return kaas.KTask(
        [kaas.Kernel(library, "add", 2, 128, [kaas.In(A), kaas.In(B), kaas.Out(C), kaas.i32(N)])], [C]
    )  # fmt: skip


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


class Waits:
    """Tells how many threads have begun to wait in a Gate."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._begun = threading.Semaphore(0)
        wait = Gate.wait

        def watched(gate: Gate) -> None:
            self._begun.release()
            wait(gate)

        monkeypatch.setattr(Gate, "wait", watched)

    def one_more(self) -> None:
        """Returns as soon as somebody waits; he cannot miss what the caller does next under the lock of the Gate."""
        assert self._begun.acquire(timeout=PATIENCE_S)


class Stop:
    """Holds up what runs in one slot, with all that it has reserved, until it is told to go on or to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = 0) -> None:
        self._there, self._go_on = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        copy_out = Slot.copy_out

        def stopped(slot: Slot, *args: Any) -> Any:
            if slot.number == number and not self._go_on.is_set():
                self._there.set()
                assert self._go_on.wait(PATIENCE_S)
                if self._error is not None:
                    raise self._error
            return copy_out(slot, *args)

        monkeypatch.setattr(Slot, "copy_out", stopped)

    def reached(self) -> None:
        assert self._there.wait(PATIENCE_S)

    def go_on(self, error: BaseException | None = None) -> None:
        self._error = error
        self._go_on.set()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(monkeypatch)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> Stop:
    return Stop(monkeypatch)


def array(value: int, n: int = N) -> np.ndarray[Any, Any]:
    return np.full(n, value, np.int32)


def source(value: int) -> Source:
    return Source(key=bytes([value]), fetch=lambda: array(value))


def request(task: kaas.KTask, a: int | Source, b: int | Source, client: str = "") -> Request:
    sources = [value if isinstance(value, Source) else source(value) for value in (a, b)]
    return Request(task, dict(zip("ab", sources, strict=True)), {}, client)


def check(future: Future[Result], expected: int) -> Result:
    result = future.result(PATIENCE_S)
    np.testing.assert_array_equal(result.outputs["c"], array(expected))
    return result


def state(executor: Executor) -> Any:
    """What must be as before once all requests have ended."""
    cache, memory = executor.cache, executor._memory
    return cache.sizes, cache.pinned, cache.used_bytes, dict(cache.host.sizes), memory._pool.used_bytes(), memory.leases


# --- slots


def test_as_many_run_at_a_time_as_there_are_slots(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(64 * KIB, slots=3)
    meeting = threading.Barrier(3)
    launch = Slot.launch
    running: list[int] = []

    def met(slot: Slot, *args: Any) -> None:
        running.append(slot.number)
        meeting.wait(PATIENCE_S)
        launch(slot, *args)

    monkeypatch.setattr(Slot, "launch", met)
    futures = [threads.submit(executor.run, request(task, k, k + 1)) for k in range(6)]
    for k, future in enumerate(futures):
        check(future, 2 * k + 1)
    assert sorted(running[:3]) == sorted(running[3:]) == [0, 1, 2]


def test_a_request_takes_the_slot_it_is_given(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    stop: Stop,
    waits: Waits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    places: dict[str, int] = {}
    enter = Slot.enter

    def watched(slot: Slot, client: str, plan: Plan) -> None:
        places[client] = slot.number
        enter(slot, client, plan)

    monkeypatch.setattr(Slot, "enter", watched)
    first = threads.submit(executor.run, request(task, 1, 2, "first"), 0)
    stop.reached()
    second = threads.submit(executor.run, request(task, 1, 3, "second"), 0)
    waits.one_more()
    check(threads.submit(executor.run, request(task, 1, 4, "third"), 1), 5)  # overtakes who waits for the other slot
    stop.go_on()
    check(first, 3)
    check(second, 4)
    assert places == {"first": 0, "second": 0, "third": 1}
    with pytest.raises(ValueError, match="no slot 2"):
        executor.run(request(task, 1, 2), 2)


def test_slots_are_taken_in_the_order_of_asking(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(64 * KIB)
    order: list[int] = []

    def watched(value: int) -> Source:
        def fetch() -> Any:
            order.append(value)
            return array(value)

        return Source(fetch=fetch)

    futures = [threads.submit(executor.run, request(task, 0, watched(0)))]
    stop.reached()
    for value in range(1, 5):
        futures.append(threads.submit(executor.run, request(task, 0, watched(value))))
        waits.one_more()
    stop.go_on()
    for value, future in enumerate(futures):
        check(future, value)
    assert order == [0, 1, 2, 3, 4]


def test_code_is_loaded_for_each_slot(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB, slots=2)
    executor.prepare(task)
    assert executor.libraries == 2


# --- loads are done once


def test_what_two_want_is_fetched_once(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    fetching, fetched = threading.Event(), threading.Event()
    times: list[int] = []

    def fetch() -> Any:
        times.append(1)
        fetching.set()
        assert fetched.wait(PATIENCE_S)
        return array(7)

    shared = Source(key=b"shared", fetch=fetch)
    first = threads.submit(executor.run, request(task, shared, 1))
    assert fetching.wait(PATIENCE_S)
    second = threads.submit(executor.run, request(task, shared, 2))
    waits.one_more()
    fetched.set()
    results = check(first, 8), check(second, 9)
    assert len(times) == 1
    assert sorted(result.stats.misses for result in results) == [1, 2]
    assert sum(executor.cache.sizes.values()) == 3 * KIB


def test_what_travels_is_a_hit_for_another(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    assert check(threads.submit(executor.run, request(task, 2, 1), 1), 3).stats.hits == 2
    stop.go_on()
    assert check(first, 3).stats.misses == 2


def test_two_that_want_the_same_two_in_another_order(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    both = threading.Barrier(2)
    times: list[int] = []

    def shared(value: int) -> Source:
        def fetch() -> Any:
            times.append(value)
            both.wait(PATIENCE_S)  # each has one, and wants the other's
            return array(value)

        return Source(key=bytes([value]), fetch=fetch)

    futures = [threads.submit(executor.run, request(task, shared(a), shared(b))) for a, b in ((1, 2), (2, 1))]
    for future in futures:
        check(future, 3)
    assert sorted(times) == [1, 2]


def test_who_waited_for_a_fetch_that_failed_fetches_himself(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    fetching, fail = threading.Event(), threading.Event()

    def broken() -> Any:
        fetching.set()
        assert fail.wait(PATIENCE_S)
        raise LookupError("gone")

    first = threads.submit(executor.run, request(task, Source(key=b"\7", fetch=broken), 1))
    assert fetching.wait(PATIENCE_S)
    second = threads.submit(executor.run, request(task, 7, 2))
    waits.one_more()
    fail.set()
    with pytest.raises(InputFailed, match="gone"):
        first.result(PATIENCE_S)
    check(second, 9)
    assert not executor.cache.pinned


def first_copy_fails(monkeypatch: pytest.MonkeyPatch, executor: Executor) -> tuple[threading.Event, threading.Event]:
    """From now on the first copy of the executor's transport sets the one event, waits for the other, and fails."""
    copying, fail = threading.Event(), threading.Event()
    copy_in = Stream.copy_in

    def refused(stream: Stream, *args: Any) -> None:
        if stream is executor._transport._stream and not copying.is_set():
            copying.set()
            assert fail.wait(PATIENCE_S)
            raise DeviceError("no copies today", call="cuMemcpyHtoDAsync", code=1, code_name="CUDA_ERROR")
        copy_in(stream, *args)

    monkeypatch.setattr(Stream, "copy_in", refused)
    return copying, fail


def test_who_waited_for_a_copy_that_was_never_submitted_loads_himself(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    waits: Waits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=3)
    check(threads.submit(executor.run, request(task, 1, 2)), 3)
    copying, fail = first_copy_fails(monkeypatch, executor)
    first = threads.submit(executor.run, request(task, 3, 4))
    assert copying.wait(PATIENCE_S)
    others = [threads.submit(executor.run, request(task, 3, 1)), threads.submit(executor.run, request(task, 2, 3))]
    for _ in others:
        waits.one_more()
    fail.set()
    with pytest.raises(DeviceError, match="no copies today"):
        first.result(PATIENCE_S)
    for future, expected in zip(others, (4, 5), strict=True):
        check(future, expected)
    assert executor.cache.sizes.keys() == executor.cache.host.sizes.keys() == {b"\1", b"\2", b"\3"}
    assert not executor.cache.pinned


def test_what_never_came_is_nobodys_until_its_loader_has_given_it_back(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    waits: Waits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=2)
    check(threads.submit(executor.run, request(task, 1, 2)), 3)
    copying, fail = first_copy_fails(monkeypatch, executor)
    giving_back, go_on = threading.Event(), threading.Event()
    synchronize = executor._transport.synchronize

    def synchronized() -> None:
        giving_back.set()
        assert go_on.wait(PATIENCE_S)
        synchronize()

    monkeypatch.setattr(executor._transport, "synchronize", synchronized)
    first = threads.submit(executor.run, request(task, 3, 4))
    assert copying.wait(PATIENCE_S)
    second = threads.submit(executor.run, request(task, 3, 1))
    waits.one_more()
    fail.set()
    assert giving_back.wait(PATIENCE_S)
    waits.one_more()
    go_on.set()
    with pytest.raises(DeviceError, match="no copies today"):
        first.result(PATIENCE_S)
    check(second, 4)
    assert not executor.cache.pinned


def test_what_others_use_stays_when_its_loader_fails(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    check(threads.submit(executor.run, request(task, 1, 3), 1), 4)
    stop.go_on(DeviceError("not today", call="cuGraphLaunch", code=1, code_name="CUDA_ERROR"))
    with pytest.raises(DeviceError, match="not today"):
        first.result(PATIENCE_S)
    assert executor.cache.sizes.keys() == executor.cache.host.sizes.keys() == {b"\1", b"\3"}
    assert not executor.cache.pinned


# --- room


def test_who_finds_no_room_waits_for_it(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(4 * KIB, slots=2)  # one request and an object
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    second = threads.submit(executor.run, request(task, 3, 4), 1)
    waits.one_more()
    stop.go_on()
    check(first, 3)
    assert check(second, 7).stats.evicted
    assert executor.cache.used_bytes <= 4 * KIB


def test_nobody_overtakes_who_waits_for_room(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(5 * KIB, slots=4)
    futures = [threads.submit(executor.run, request(task, 1, 2), 0)]
    stop.reached()
    for slot, (a, b) in enumerate(((3, 4), (1, 2), (2, 1)), start=1):  # the second and third would find room
        futures.append(threads.submit(executor.run, request(task, a, b), slot))
        waits.one_more()
    assert executor.cache.pinned == {b"\1", b"\2"}
    admitted: list[int | None] = []
    take = executor._memory.take

    def watched(inputs: Any, slot: int | None, arena_bytes: int) -> Any:
        lease = take(inputs, slot, arena_bytes)
        if hasattr(lease, "reservation"):
            admitted.append(slot)
        return lease

    executor._memory.take = watched  # type: ignore[method-assign]
    stop.go_on()
    for future, expected in zip(futures, (3, 7, 3, 3), strict=True):
        check(future, expected)
    assert admitted[0] == 1  # the others have to fetch once more what then left, and come when they have it


def test_what_is_pinned_is_not_waited_for(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop
) -> None:
    executor = make_executor(5 * KIB, slots=2)
    executor.load([source(8), source(9)], pin=True)
    first = threads.submit(executor.run, request(task, 8, 9), 0)
    stop.reached()
    with pytest.raises(OutOfDeviceMemory, match="lacks 512 bytes beside what is pinned"):
        executor.load([source(1), Source(array(1, N * 5 // 2), key=b"large")])
    stop.go_on()
    check(first, 17)
    executor.unpin()
    executor.load([source(1), Source(array(1, N * 5 // 2), key=b"large")])


def test_an_idle_slots_arena_gives_way(make_executor: MakeExecutor, task: kaas.KTask, library: kaas.Library) -> None:
    executor = make_executor(8 * KIB, slots=2)
    x = kaas.Buffer("x", 6 * N, "int32")
    fill = kaas.KTask([kaas.Kernel(library, "fill", 12, 128, [kaas.Out(x), kaas.i32(1), kaas.i32(6 * N)])], [x])
    for _ in range(2):
        executor.run(Request(fill, {}, {}), 0)
        assert executor.cache.arenas[0] == 6 * KIB
        result = executor.run(request(task, 1, 2), 1)
        np.testing.assert_array_equal(result.outputs["c"], array(3))
        assert executor.cache.arenas == {1: KIB}
        assert executor._memory._pool.used_bytes() == executor.cache.used_bytes


def test_an_arena_of_one_who_waits_gives_way(
    make_executor: MakeExecutor, task: kaas.KTask, library: kaas.Library, threads: ThreadPoolExecutor, stop: Stop,
    waits: Waits,
) -> None:  # fmt: skip
    executor = make_executor(9 * KIB, slots=3)
    x = kaas.Buffer("x", 4 * N, "int32")
    fill = kaas.KTask([kaas.Kernel(library, "fill", 8, 128, [kaas.Out(x), kaas.i32(1), kaas.i32(4 * N)])], [x])
    executor.run(Request(fill, {}, {}), 2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    large = Source(array(5, 7 * N), key=b"large", offset_bytes=0)
    second = threads.submit(executor.run, request(task, large, large), 1)
    waits.one_more()
    third = threads.submit(executor.run, request(task, 3, 4), 2)
    waits.one_more()
    stop.go_on()
    check(first, 3)
    check(second, 10)
    check(third, 7)


# --- ends


def test_all_who_wait_hear_that_the_device_is_lost(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(4 * KIB, slots=2)
    fetching, fetched = threading.Event(), threading.Event()

    def fetch() -> Any:
        fetching.set()
        assert fetched.wait(PATIENCE_S)
        return array(7)

    ahead = [Source(key=b"ahead", fetch=fetch)]
    running = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    fetches = threads.submit(executor.load, ahead)
    assert fetching.wait(PATIENCE_S)
    waiting: list[Future[Any]] = []
    for call in (
        lambda: executor.run(request(task, 3, 4)),  # for room
        lambda: executor.run(request(task, 1, 2)),  # for a slot
        lambda: executor.load(ahead),  # for the other's fetch
        lambda: executor.load([source(5)]),  # behind the one that waits for room
    ):
        waiting.append(threads.submit(call))
        waits.one_more()
    stop.go_on(DeviceLost("it burns", call="cuStreamSynchronize", code=700, code_name="CUDA_ERROR_ILLEGAL_ADDRESS"))
    for future in (running, *waiting):
        with pytest.raises(DeviceLost, match="it burns"):
            future.result(PATIENCE_S)
    fetched.set()
    with pytest.raises(DeviceLost, match="it burns"):
        fetches.result(PATIENCE_S)
    assert executor.lost is not None
    with pytest.raises(DeviceLost, match="it burns"):
        executor.run(request(task, 1, 2))


def test_closing_waits_for_what_runs(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    running = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    closing = threads.submit(executor.close)
    waits.one_more()
    stop.go_on()
    check(running, 3)
    closing.result(PATIENCE_S)


@pytest.mark.parametrize("seed", range(4))
def test_clients_in_two_slots_never_see_each_others_bytes(
    make_executor: MakeExecutor, library: kaas.Library, threads: ThreadPoolExecutor, seed: int
) -> None:
    executor = make_executor(12 * KIB, 2 * KIB, slots=2)
    leave = kaas.KTask([kaas.Kernel(library, "fill", 2, 128, [kaas.Out(A), kaas.i32(-7), kaas.i32(N)])], [A])
    # Says that it writes all and writes one element: what it returns beside is what the memory held before.
    big = kaas.Buffer("big", 3 * N, "int32")
    peek, peek_big = (
        kaas.KTask([kaas.Kernel(library, "fill", 2, 128, [kaas.Out(x), kaas.i32(5), kaas.i32(1)])], [x])
        for x in (A, big)
    )

    def alternate(number: int) -> None:
        for turn in range(8):
            secret = Source(array(-7, 2 * N), key=b"secret-%d-%d" % (number, turn))
            executor.load([secret])
            executor.run(Request(leave, {}, {}, f"writes {number}"))
            for task, buffer in ((peek, A), (peek_big, big)):
                seen = executor.run(Request(task, {}, {}, f"reads {number}")).outputs[buffer.name]
                np.testing.assert_array_equal(seen, [5] + [0] * (buffer.nbytes // 4 - 1))

    softgpu.set_strict(seed)
    try:
        for done in [threads.submit(alternate, number) for number in range(2)]:
            done.result(PATIENCE_S)
    finally:
        softgpu.set_strict(None)


@pytest.mark.parametrize("at", ["copy_in", "launch", "copy_out", "host"])
def test_a_failure_leaves_the_other_slot_alone(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    stop: Stop,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, slots=2)
    check(threads.submit(executor.run, request(task, 1, 2), 1), 3)
    executor.load([source(8), source(9)])
    first = threads.submit(executor.run, request(task, 8, 9), 0)
    stop.reached()
    before = state(executor)

    def refuse(*_: Any) -> None:
        raise DeviceError("not today", call="cuCall", code=1, code_name="CUDA_ERROR_INVALID_VALUE")

    with monkeypatch.context() as patched:
        if at == "host":
            patched.setattr("kaas.executor.buffers.HostBuffers.take", refuse)
        else:
            patched.setattr(Slot, at, refuse)
        with pytest.raises(DeviceError, match="not today"):
            executor.run(request(task, 1, 3), 1)
    assert state(executor) == before
    check(threads.submit(executor.run, request(task, 3, 1), 1), 4)
    stop.go_on()
    check(first, 17)


def test_a_driver_without_memory_is_asked_again_when_others_have_ended(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    first = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    before = state(executor)
    softgpu.inject(softgpu.Fault("out_of_memory", rate=1.0), 1)
    try:
        second = threads.submit(executor.run, request(task, 3, 4), 1)
        waits.one_more()
        assert state(executor) == before
        softgpu.forgive()
        stop.go_on()
        check(first, 3)
        check(second, 7)
        before = state(executor)
        softgpu.inject(softgpu.Fault("out_of_memory", rate=1.0), 1)
        with pytest.raises(OutOfDeviceMemory):  # nobody runs who could give any back
            executor.run(request(task, 5, 6))
    finally:
        softgpu.forgive()
    assert state(executor) == before


def test_page_locked_memory_of_other_sizes_makes_room(make_executor: MakeExecutor) -> None:
    executor = make_executor(64 * KIB, 8 * KIB)
    buffers = executor._memory.buffers
    for n in (1, 7, 3, 5, 1, 2, 8, 4, 1):
        executor.load([Source(array(n, n * N), key=b"%d" % n)])
        executor.flush([b"%d" % n])
        host = executor.cache.host
        assert (host.reserved_bytes, buffers.leaving) == (0, [])
        assert buffers.idle_bytes <= 8 * KIB
        assert n * KIB in buffers._idle, "it is kept for the next of its size"
    executor.flush()
    assert (buffers.idle_bytes, buffers.leaving) == (0, [])


def test_pages_are_unlocked_while_nobody_waits_for_it(
    make_executor: MakeExecutor, threads: ThreadPoolExecutor, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(64 * KIB, 2 * KIB, slots=2)
    unlocking, go_on = threading.Event(), threading.Event()
    close = HostMemory.close

    def slow(memory: HostMemory) -> None:
        unlocking.set()
        assert go_on.wait(PATIENCE_S)
        close(memory)

    executor.load([Source(array(9, 2 * N), key=b"large")])
    monkeypatch.setattr(HostMemory, "close", slow)
    first = threads.submit(executor.load, [source(1)])
    assert unlocking.wait(PATIENCE_S)
    check(threads.submit(executor.run, request(task, 1, 2)), 3)
    go_on.set()
    first.result(PATIENCE_S)


def test_who_comes_to_a_closing_executor_is_told(
    softgpu: tuple[int, ...],  # noqa: ARG001
    task: kaas.KTask,
    threads: ThreadPoolExecutor,
    stop: Stop,
    waits: Waits,
) -> None:
    executor = Executor(open_device("software", 1), cache_bytes=64 * KIB)
    running = threads.submit(executor.run, request(task, 1, 2))
    stop.reached()
    closing = threads.submit(executor.close)
    waits.one_more()
    late = threads.submit(executor.run, request(task, 1, 3))
    waits.one_more()
    stop.go_on()
    check(running, 3)
    closing.result(PATIENCE_S)
    with pytest.raises(DeviceUnavailable, match="closed"):
        late.result(PATIENCE_S)
    for call in (partial(executor.run, request(task, 1, 4)), partial(executor.load, [source(1)]), executor.unpin):
        with pytest.raises(DeviceUnavailable, match="closed"):
            call()
    executor.close()


@pytest.mark.usefixtures("softgpu")
def test_an_executor_has_a_slot() -> None:
    with pytest.raises(ValueError, match="1 slot or more"):
        Executor(open_device("software", 1), slots=0)
