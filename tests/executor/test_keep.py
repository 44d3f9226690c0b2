"""Outputs that stay on the device: they are read there, and written back on demand or before they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu
from kaas.errors import DeviceError, InvalidRequest, OutOfDeviceMemory
from kaas.executor.device.device_memory import MemoryPool
from kaas.executor.device.streams import Stream
from kaas.executor.executor import Executor, InputSource, RunRequest, RunResult
from tests.executor.conftest import MakeExecutor
from tests.timeouts import TIMEOUT_S

KIB = 1024
N = 256  # elements of the buffers: 1 KiB
Array = np.ndarray[Any, Any]


class Written(dict[bytes, Array]):
    """The outputs that were written back, each once."""

    def __call__(self, key: bytes, array: Array) -> None:
        assert key not in self
        self[key] = array


@pytest.fixture
def written() -> Written:
    return Written()


@pytest.fixture
def make(make_executor: MakeExecutor, written: Written) -> Callable[..., Executor]:
    def make(cache_bytes: int, host_cache_bytes: int = 0, **options: Any) -> Executor:
        return make_executor(cache_bytes, host_cache_bytes, **{"on_write_back": written, **options})

    return make


def doubling(library: kaas.Library) -> kaas.KTask:
    """y = 2 * x."""
    x, y = kaas.Buffer("x", N, "int32"), kaas.Buffer("y", (2, N // 2), "int32")
    return kaas.KTask([kaas.Kernel(library, "scale", 2, 128, [kaas.In(x), kaas.Out(y), kaas.i32(2), kaas.i32(N)])], [y])


@pytest.fixture(scope="module")
def double(library: kaas.Library) -> kaas.KTask:
    return doubling(library)


def there(key: bytes) -> InputSource:
    """Return the source of an object that no request may fetch."""

    def fetch() -> Any:
        raise AssertionError(f"{key!r} was fetched")

    return InputSource(key=key, fetch=fetch)


def run(executor: Executor, task: kaas.KTask, x: Any, keep: bytes | None = None, **options: Any) -> RunResult:
    source = x if isinstance(x, InputSource) else InputSource(np.full(N, x, np.int32))
    kept = {} if keep is None else {"y": keep}
    return executor.run(RunRequest(task, {"x": source}, {}, keep=kept, **options))


def full(value: int) -> Array:
    return np.full((2, N // 2), value, np.int32)


def state(executor: Executor) -> Any:
    cache = executor.cache
    return cache.sizes, cache.pinned, cache.used_bytes, set(cache.unsaved), executor._memory._pool.used_bytes()


def test_a_chain_copies_nothing(
    make: Callable[..., Executor], double: kaas.KTask, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make(64 * KIB)
    first = run(executor, double, 1, b"0")
    assert first.outputs == {}
    assert first.stats.loaded == (b"0",)
    assert not any(map(any, first.stats.tiers.values()))
    for copy in ("copy_in", "copy_out"):
        monkeypatch.setattr(Stream, copy, lambda *_: pytest.fail("a copy"))
    for number in range(7):
        stats = run(executor, double, there(b"%d" % number), b"%d" % (number + 1)).stats
        assert (stats.hits, stats.hit_bytes, stats.misses) == (1, KIB, 0)
    monkeypatch.undo()
    np.testing.assert_array_equal(run(executor, double, there(b"7")).outputs["y"], full(512))
    assert not written
    executor.write_back([b"7", b"nobody"])
    np.testing.assert_array_equal(written[b"7"], full(256))
    executor.write_back([b"7"])
    assert list(written) == [b"7"]
    assert executor.cache.unsaved == {b"%d" % number for number in range(7)}


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_an_output_is_written_back_before_it_is_evicted(
    make: Callable[..., Executor], double: kaas.KTask, written: Written, seed: int | None
) -> None:
    executor = make(4 * KIB, slots=2)
    softgpu.set_strict(seed)
    try:
        for number in range(20):
            run(executor, double, number, b"%d" % number)
    finally:
        softgpu.set_strict(None)
    assert executor.cache.unsaved == {b"17", b"18", b"19"}  # the arena and three objects
    assert list(written) == [b"%d" % number for number in range(17)]
    for number in range(17):
        np.testing.assert_array_equal(written[b"%d" % number], full(2 * number))
    assert executor.cache.used_bytes == 4 * KIB


def test_a_saved_output_leaves_as_any_object(
    make: Callable[..., Executor], double: kaas.KTask, written: Written
) -> None:
    executor = make(3 * KIB, 3 * KIB)
    run(executor, double, 1, b"1")
    executor.write_back([b"1"])
    assert run(executor, double, InputSource(full(5).ravel(), key=b"five")).stats.evicted == ()
    evicted = run(executor, double, InputSource(full(6).ravel(), key=b"six")).stats.evicted
    assert evicted == (b"1",)
    assert list(written) == [b"1"]
    assert set(executor.cache.host.values) == {b"five", b"six"}


def test_copied_outputs_are_never_written_back(make_executor: MakeExecutor, double: kaas.KTask) -> None:
    executor = make_executor(3 * KIB)
    result = run(executor, double, 1, b"1", copy_kept=True)
    np.testing.assert_array_equal(result.outputs["y"], full(2))
    assert not executor.cache.unsaved
    np.testing.assert_array_equal(run(executor, double, there(b"1")).outputs["y"], full(4))
    assert run(executor, double, 2, b"2", copy_kept=True).stats.evicted == ()
    assert run(executor, double, 3, b"3", copy_kept=True).stats.evicted == (b"2",)  # used once


@pytest.mark.parametrize("fetched", [False, True])
def test_an_output_that_is_kept_twice_is_replaced(
    make: Callable[..., Executor], double: kaas.KTask, written: Written, fetched: bool
) -> None:
    executor = make(64 * KIB, 64 * KIB, slots=2)
    run(executor, double, 1, b"1")
    if fetched:
        executor.write_back([b"1"])
        np.testing.assert_array_equal(written.pop(b"1"), full(2))
    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(run, executor, double, 1, b"1") for _ in range(2)]:
            ended.result()
    executor.write_back([b"1"])
    np.testing.assert_array_equal(written[b"1"], full(2))
    assert executor.flush() == (b"1",)


def test_flush_writes_back(make: Callable[..., Executor], double: kaas.KTask, written: Written) -> None:
    executor = make(64 * KIB)
    before = state(executor)[:-1]
    run(executor, double, 1, b"1")
    run(executor, double, 2, b"2")
    assert executor.flush([b"1"]) == (b"1",)
    assert list(written) == [b"1"]
    assert executor.flush() == (b"2",)
    np.testing.assert_array_equal(written[b"2"], full(4))
    assert state(executor)[0] == before[0]
    assert executor.cache.unsaved == set()


def test_discarded_outputs_are_forgotten(make: Callable[..., Executor], double: kaas.KTask, written: Written) -> None:
    executor = make(64 * KIB)
    for number in range(3):
        run(executor, double, number, b"%d" % number)
    assert executor.discard([b"1", b"nobody", b"2"]) == (b"1", b"2")
    assert (set(executor.cache.sizes), executor.cache.unsaved) == ({b"0"}, {b"0"})
    executor.write_back([b"1"])
    with executor._monitor.lock:
        executor._memory.hold([b"0"])
    assert executor.discard([b"0"]) == ()
    executor.unpin()
    assert executor.flush() == (b"0",)
    assert not written


def test_views_and_written_inputs_do_not_change_a_kept_output(
    make: Callable[..., Executor], library: kaas.Library, double: kaas.KTask, written: Written
) -> None:
    executor = make(64 * KIB)
    run(executor, double, 1, b"kept")
    half, sum_ = kaas.Buffer("half", N // 2, "int32"), kaas.Buffer("sum", N // 2, "int32")
    other = kaas.Buffer("other", N // 2, "int32")
    add = kaas.Kernel(library, "add", 1, 128, [kaas.In(half), kaas.In(other), kaas.Out(sum_), kaas.i32(N // 2)])
    views = {
        "half": InputSource(key=b"kept", fetch=there(b"kept").fetch, offset_bytes=0),
        "other": InputSource(key=b"kept", fetch=there(b"kept").fetch, offset_bytes=KIB // 2),
    }
    result = executor.run(RunRequest(kaas.KTask([add], [sum_]), views, {}))
    np.testing.assert_array_equal(result.outputs["sum"], np.full(N // 2, 4, np.int32))
    x = kaas.Buffer("x", N, "int32")
    in_place = kaas.Kernel(library, "add", 2, 128, [kaas.In(x), kaas.In(x), kaas.InOut(x), kaas.i32(N)])
    task = kaas.KTask([in_place], [x])
    result = executor.run(RunRequest(task, {"x": there(b"kept")}, {}, keep={"x": b"more"}))
    executor.write_back([b"kept", b"more"])
    np.testing.assert_array_equal(written[b"kept"], full(2))
    np.testing.assert_array_equal(written[b"more"], np.full(N, 4, np.int32))


def test_several_outputs_of_which_one_stays(
    make: Callable[..., Executor], library: kaas.Library, written: Written
) -> None:
    executor = make(64 * KIB)
    x, y, z = (kaas.Buffer(name, N, "int32") for name in "xyz")
    kernels = [
        kaas.Kernel(library, "scale", 2, 128, [kaas.In(source), kaas.Out(target), kaas.i32(3), kaas.i32(N)])
        for source, target in ((x, y), (y, z))
    ]
    task = kaas.KTask(kernels, [z, y])
    for keep in ({"y": b"y1"}, {"z": b"z2"}, {}, {"y": b"y3", "z": b"z3"}, {"y": b"y4"}):
        source = InputSource(np.full(N, len(written) + 1, np.int32))
        outputs = executor.run(RunRequest(task, {"x": source}, {}, keep=keep)).outputs
        value = len(written) + 1
        assert list(outputs) == [name for name in "zy" if name not in keep]
        executor.write_back(keep.values())
        outputs |= {name: written[key] for name, key in keep.items()}
        np.testing.assert_array_equal(outputs["y"], np.full(N, 3 * value, np.int32))
        np.testing.assert_array_equal(outputs["z"], np.full(N, 9 * value, np.int32))


def test_a_kept_output_begins_as_zeros(
    make: Callable[..., Executor], library: kaas.Library, double: kaas.KTask, written: Written
) -> None:
    """A kernel declares that it writes all of its output, and writes a part."""
    executor = make(2 * KIB)
    run(executor, double, 7, b"secret", client="ann")
    executor.flush()
    softgpu.set_strict(3)  # poisons freed memory
    try:
        x, y = kaas.Buffer("x", N, "int32"), kaas.Buffer("y", N, "int32")
        some = kaas.Kernel(library, "scale", 1, 32, [kaas.In(x), kaas.Out(y), kaas.i32(2), kaas.i32(32)])
        source = InputSource(np.full(N, 1, np.int32))
        executor.run(RunRequest(kaas.KTask([some], [y]), {"x": source}, {}, "bob", keep={"y": b"fresh"}))
        executor.write_back([b"fresh"])
    finally:
        softgpu.set_strict(None)
    np.testing.assert_array_equal(written[b"fresh"], [2] * 32 + [0] * (N - 32))


def test_a_failed_request_keeps_nothing(
    make: Callable[..., Executor], double: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make(64 * KIB)
    run(executor, double, 1)
    before = state(executor)

    def refuse(*_: Any) -> None:
        raise DeviceError("not today", call="cuGraphLaunch", code=1, code_name="CUDA_ERROR_INVALID_VALUE")

    with monkeypatch.context() as broken:
        broken.setattr("kaas.executor.slots.Slot.launch", refuse)
        with pytest.raises(DeviceError, match="not today"):
            run(executor, double, 2, b"2")
    assert state(executor) == before
    run(executor, double, 2, b"2")
    assert executor.cache.unsaved == {b"2"}


def test_an_output_without_memory_is_kept_nowhere(
    make: Callable[..., Executor], library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make(64 * KIB)
    x, y, z = (kaas.Buffer(name, N, "int32") for name in "xyz")
    kernels = [
        kaas.Kernel(library, "scale", 2, 128, [kaas.In(x), kaas.Out(target), kaas.i32(3), kaas.i32(N)])
        for target in (y, z)
    ]
    request = RunRequest(
        kaas.KTask(kernels, [y, z]), {"x": InputSource(full(1).ravel())}, {}, keep={"y": b"y", "z": b"z"}
    )
    run(executor, kaas.KTask(kernels, [y, z]), 1)  # the arena is there
    before = executor.cache.sizes, executor._memory._pool.used_bytes()
    allocate, given = MemoryPool.allocate, 0

    def refuse(pool: MemoryPool, nbytes: int) -> int:
        nonlocal given
        given += 1
        if given % 2 == 0:
            raise OutOfDeviceMemory("no more", needed_bytes=nbytes, free_bytes=0)
        return allocate(pool, nbytes)

    with monkeypatch.context() as full_device:
        full_device.setattr(MemoryPool, "allocate", refuse)
        with pytest.raises(OutOfDeviceMemory, match="no more"):
            executor.run(request)
    assert (executor.cache.sizes, executor._memory._pool.used_bytes()) == before
    executor.run(request)
    assert executor.cache.unsaved == {b"y", b"z"}


def test_a_failed_copy_leaves_the_output_on_the_device(
    make: Callable[..., Executor], double: kaas.KTask, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make(2 * KIB)
    run(executor, double, 1, b"1")
    before = state(executor)

    def refuse(*_: Any) -> None:
        raise DeviceError("not today", call="cuMemcpyDtoHAsync", code=1, code_name="CUDA_ERROR_INVALID_VALUE")

    with monkeypatch.context() as broken:
        broken.setattr("kaas.executor.device.device_to_host.DeviceToHost.copy", refuse)
        for attempt in (lambda: executor.write_back([b"1"]), executor.flush, lambda: run(executor, double, 2, b"2")):
            with pytest.raises(DeviceError, match="not today"):
                attempt()
            assert state(executor) == before
    run(executor, double, 2, b"2")
    np.testing.assert_array_equal(written[b"1"], full(2))


def test_an_output_requested_during_its_eviction_is_copied_once(
    make: Callable[..., Executor], double: kaas.KTask
) -> None:
    """The request that needs the room and the thread that asks wait for one copy. Other calls work meanwhile."""
    delivered: list[bytes] = []
    copied, go_on = threading.Event(), threading.Event()

    def deliver(key: bytes, array: Array) -> None:
        np.testing.assert_array_equal(array, full(2))
        delivered.append(key)
        copied.set()
        assert go_on.wait(TIMEOUT_S)

    executor = make(2 * KIB, slots=2, on_write_back=deliver)
    run(executor, double, 1, b"1")
    with ThreadPoolExecutor(3) as threads:
        needs = threads.submit(run, executor, double, InputSource(full(5).ravel(), key=b"5"), b"2", copy_kept=True)
        assert copied.wait(TIMEOUT_S)
        asks = threads.submit(executor.write_back, [b"1"])
        while not executor._monitor._waiting and len(delivered) < 2:  # this needs the lock to be free
            executor.unpin()
        assert b"1" in executor.cache.sizes
        go_on.set()
        np.testing.assert_array_equal(needs.result(TIMEOUT_S).outputs["y"], full(10))
        asks.result(TIMEOUT_S)
    assert delivered == [b"1"]
    assert set(executor.cache.sizes) == {b"2", b"5"}


def test_a_bad_keep_is_an_error(make: Callable[..., Executor], double: kaas.KTask, executor: Executor) -> None:
    with pytest.raises(InvalidRequest, match="no receiver"):
        run(executor, double, 1, b"1")
    own = make(64 * KIB)
    with pytest.raises(InvalidRequest, match="no output 'z'"):
        own.run(RunRequest(double, {"x": InputSource(full(1).ravel())}, {}, keep={"z": b"1"}))


def test_many_rounds_leave_nothing(make: Callable[..., Executor], double: kaas.KTask, written: Written) -> None:
    executor = make(4 * KIB, 4 * KIB)
    for number in range(8):
        run(executor, double, number, b"%d" % number)
    for number in range(8, 16):  # the arena, which these do not need, has left by then
        run(executor, double, there(b"%d" % (number - 1)), b"%d" % number)
    before = executor.cache.used_bytes, executor._memory._pool.used_bytes(), len(executor.cache.unsaved)
    for number in range(16, 208):
        run(executor, double, there(b"%d" % (number - 1)), b"%d" % number)
    assert (executor.cache.used_bytes, executor._memory._pool.used_bytes(), len(executor.cache.unsaved)) == before
    assert len(written) == 208 - before[2]
