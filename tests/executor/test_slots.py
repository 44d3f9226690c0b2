"""Several slots: requests run in parallel, wait for each other, and share objects."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu
from kaas.errors import DeviceError, DeviceLost, DeviceUnavailable, OutOfDeviceMemory
from kaas.executor.device.device import open_device
from kaas.executor.device.device_memory import HostMemory
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.plan.plan import Plan
from kaas.executor.slots import Slot
from tests.executor.conftest import MakeExecutor
from tests.executor.slots import KIB, A, N, Stop, Waits, array, check, request, source, stop, task, threads, waits
from tests.timeouts import TIMEOUT_S

__all__ = ["stop", "task", "threads", "waits"]


def state(executor: Executor) -> Any:
    """Return the state that must be as before once all requests have ended."""
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
        meeting.wait(TIMEOUT_S)
        launch(slot, *args)

    monkeypatch.setattr(Slot, "launch", met)
    futures = [threads.submit(executor.run, request(task, k, k + 1)) for k in range(6)]
    for k, future in enumerate(futures):
        check(future, 2 * k + 1)
    assert sorted(running[:3]) == sorted(running[3:]) == [0, 1, 2]


def test_a_request_runs_in_its_slot(
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
    check(threads.submit(executor.run, request(task, 1, 4, "third"), 1), 5)  # it overtakes the second request
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

    def watched(value: int) -> InputSource:
        def fetch() -> Any:
            order.append(value)
            return array(value)

        return InputSource(fetch=fetch)

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
    assert sum(len(slot.plans.kernels) for slot in executor._slots) == 2


# --- ends


def test_all_waiting_requests_fail_when_the_device_is_lost(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(4 * KIB, slots=2)
    fetching, fetched = threading.Event(), threading.Event()

    def fetch() -> Any:
        fetching.set()
        assert fetched.wait(TIMEOUT_S)
        return array(7)

    ahead = [InputSource(key=b"ahead", fetch=fetch)]
    running = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    fetches = threads.submit(executor.load, ahead)
    assert fetching.wait(TIMEOUT_S)
    waiting: list[Future[Any]] = []
    for call in (
        lambda: executor.run(request(task, 3, 4)),  # for room
        lambda: executor.run(request(task, 1, 2)),  # for a slot
        lambda: executor.load(ahead),  # for the other request's fetch
        lambda: executor.load([source(5)]),  # behind the request that waits for room
    ):
        waiting.append(threads.submit(call))
        waits.one_more()
    stop.go_on(DeviceLost("it burns", call="cuStreamSynchronize", code=700, code_name="CUDA_ERROR_ILLEGAL_ADDRESS"))
    for future in (running, *waiting):
        with pytest.raises(DeviceLost, match="it burns"):
            future.result(TIMEOUT_S)
    fetched.set()
    with pytest.raises(DeviceLost, match="it burns"):
        fetches.result(TIMEOUT_S)
    assert executor.lost is not None
    with pytest.raises(DeviceLost, match="it burns"):
        executor.run(request(task, 1, 2))


def test_closing_waits_for_running_requests(
    make_executor: MakeExecutor, task: kaas.KTask, threads: ThreadPoolExecutor, stop: Stop, waits: Waits
) -> None:
    executor = make_executor(64 * KIB, slots=2)
    running = threads.submit(executor.run, request(task, 1, 2), 0)
    stop.reached()
    closing = threads.submit(executor.close)
    waits.one_more()
    stop.go_on()
    check(running, 3)
    closing.result(TIMEOUT_S)


@pytest.mark.parametrize("seed", range(4))
def test_clients_in_two_slots_never_see_each_others_bytes(
    make_executor: MakeExecutor, library: kaas.Library, threads: ThreadPoolExecutor, seed: int
) -> None:
    executor = make_executor(12 * KIB, 2 * KIB, slots=2)
    leave = kaas.KTask([kaas.Kernel(library, "fill", 2, 128, [kaas.Out(A), kaas.i32(-7), kaas.i32(N)])], [A])
    # The kernel declares that it writes all and writes one element: the rest of its output is the memory's old content.
    big = kaas.Buffer("big", 3 * N, "int32")
    peek, peek_big = (
        kaas.KTask([kaas.Kernel(library, "fill", 2, 128, [kaas.Out(x), kaas.i32(5), kaas.i32(1)])], [x])
        for x in (A, big)
    )

    def alternate(number: int) -> None:
        for turn in range(8):
            secret = InputSource(array(-7, 2 * N), key=b"secret-%d-%d" % (number, turn))
            executor.load([secret])
            executor.run(RunRequest(leave, {}, {}, f"writes {number}"))
            for peeking, buffer in ((peek, A), (peek_big, big)):
                seen = executor.run(RunRequest(peeking, {}, {}, f"reads {number}")).outputs[buffer.name]
                np.testing.assert_array_equal(seen, [5] + [0] * (buffer.nbytes // 4 - 1))

    softgpu.set_strict(seed)
    try:
        for done in [threads.submit(alternate, number) for number in range(2)]:
            done.result(TIMEOUT_S)
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
            patched.setattr("kaas.executor.device.page_locked.PageLockedBuffers.take", refuse)
        else:
            patched.setattr(Slot, at, refuse)
        with pytest.raises(DeviceError, match="not today"):
            executor.run(request(task, 1, 3), 1)
    assert state(executor) == before
    check(threads.submit(executor.run, request(task, 3, 1), 1), 4)
    stop.go_on()
    check(first, 17)


def test_an_allocation_that_failed_is_repeated_when_other_requests_have_ended(
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
        with pytest.raises(OutOfDeviceMemory):  # no request runs that could free memory
            executor.run(request(task, 5, 6))
    finally:
        softgpu.forgive()
    assert state(executor) == before


def test_page_locked_memory_of_other_sizes_makes_room(make_executor: MakeExecutor) -> None:
    executor = make_executor(64 * KIB, 8 * KIB)
    buffers = executor._memory.buffers
    for n in (1, 7, 3, 5, 1, 2, 8, 4, 1):
        executor.load([InputSource(array(n, n * N), key=b"%d" % n)])
        executor.flush([b"%d" % n])
        host = executor.cache.host
        assert (host.reserved_bytes, buffers.leaving) == (0, [])
        assert buffers.idle_bytes <= 8 * KIB
        assert n * KIB in buffers._idle, "the buffer is kept for the next object of its size"
    executor.flush()
    assert (buffers.idle_bytes, buffers.leaving) == (0, [])


def test_no_thread_waits_for_pages_to_be_unlocked(
    make_executor: MakeExecutor, threads: ThreadPoolExecutor, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(64 * KIB, 2 * KIB, slots=2)
    unlocking, go_on = threading.Event(), threading.Event()
    close = HostMemory.close

    def slow(memory: HostMemory) -> None:
        unlocking.set()
        assert go_on.wait(TIMEOUT_S)
        close(memory)

    executor.load([InputSource(array(9, 2 * N), key=b"large")])
    monkeypatch.setattr(HostMemory, "close", slow)
    first = threads.submit(executor.load, [source(1)])
    assert unlocking.wait(TIMEOUT_S)
    check(threads.submit(executor.run, request(task, 1, 2)), 3)
    go_on.set()
    first.result(TIMEOUT_S)


def test_requests_to_a_closing_executor_fail(
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
    closing.result(TIMEOUT_S)
    with pytest.raises(DeviceUnavailable, match="closed"):
        late.result(TIMEOUT_S)
    for call in (partial(executor.run, request(task, 1, 4)), partial(executor.load, [source(1)]), executor.unpin):
        with pytest.raises(DeviceUnavailable, match="closed"):
            call()
    executor.close()


@pytest.mark.usefixtures("softgpu")
def test_an_executor_has_a_slot() -> None:
    with pytest.raises(ValueError, match="1 slot or more"):
        Executor(open_device("software", 1), slots=0)
