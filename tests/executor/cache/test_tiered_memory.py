"""Cached objects, small budgets, and the state after a failed request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceError, InputFailed, OutOfDeviceMemory, RequestTooLarge, WrongDtype, WrongShape, WrongSize
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.streams import Stream
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.slots import Slot
from tests.executor.conftest import MakeExecutor

KIB = 1024
N = 256  # elements of the buffers: 1 KiB
A = kaas.Buffer("a", N, "int32")
B = kaas.Buffer("b", N, "int32")
C = kaas.Buffer("c", N, "int32")


@pytest.fixture(scope="module")
def task(library: kaas.Library) -> kaas.KTask:
    """c = a + b; its arena has 1 KiB when both come from the cache."""
    return kaas.KTask(
        [kaas.Kernel(library, "add", 2, 128, [kaas.In(A), kaas.In(B), kaas.Out(C), kaas.i32(N)])], [C]
    )  # fmt: skip


def array(value: int, n: int = N) -> np.ndarray[Any, Any]:
    return np.full(n, value, np.int32)


def source(value: int) -> InputSource:
    return InputSource(key=bytes([value]), fetch=lambda: array(value))


def add(executor: Executor, task: kaas.KTask, a: int, b: int) -> Any:
    result = executor.run(RunRequest(task, {"a": source(a), "b": source(b)}, {}))
    np.testing.assert_array_equal(result.outputs["c"], array(a + b))
    return result.stats


def state(executor: Executor) -> Any:
    cache = executor.cache
    return cache.sizes, cache.pinned, cache.used_bytes


def test_hits_and_misses_are_counted(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    stats = add(executor, task, 1, 2)
    assert (stats.hits, stats.misses, stats.hit_bytes, stats.miss_bytes) == (0, 2, 0, 2 * KIB)
    assert (stats.loaded, stats.evicted) == ((b"\1", b"\2"), ())
    stats = add(executor, task, 1, 3)
    assert (stats.hits, stats.misses, stats.hit_bytes, stats.miss_bytes) == (1, 1, KIB, KIB)
    stats = add(executor, task, 3, 1)
    assert (stats.hits, stats.misses, stats.loaded) == (2, 0, ())


def test_a_small_budget_evicts(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(4 * KIB)  # the arena and three objects
    add(executor, task, 1, 2)
    assert add(executor, task, 1, 3).evicted == ()
    assert add(executor, task, 1, 4).evicted == (b"\2",)
    assert add(executor, task, 5, 6).evicted == (b"\3", b"\4")
    assert set(executor.cache.sizes) == {b"\1", b"\5", b"\6"}
    assert executor.cache.used_bytes == 4 * KIB


def test_views_share_one_copy(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    whole = np.arange(3 * N, dtype=np.int32)
    fetched: list[int] = []

    def fetch() -> Any:
        fetched.append(1)
        return whole

    views = {
        "a": InputSource(key=b"w", fetch=fetch, offset_bytes=0),
        "b": InputSource(key=b"w", fetch=fetch, offset_bytes=2 * KIB),
    }
    for misses in (1, 0):
        result = executor.run(RunRequest(task, views, {}))
        np.testing.assert_array_equal(result.outputs["c"], whole[:N] + whole[2 * N :])
        assert (result.stats.misses, result.stats.hits) == (misses, 1 - misses)
    assert len(fetched) == 1
    assert executor.cache.sizes == {b"w": 3 * KIB}


@pytest.mark.parametrize("whole_object_bytes", [64 * KIB, KIB])
@pytest.mark.parametrize(("offset_bytes", "in_place"), [(0, True), (256, True), (4, False), (514, False)])
def test_kernels_find_views_aligned(
    make_executor: MakeExecutor,
    task: kaas.KTask,
    monkeypatch: pytest.MonkeyPatch,
    offset_bytes: int,
    in_place: bool,
    whole_object_bytes: int,
) -> None:
    executor = make_executor(64 * KIB, whole_object_bytes=whole_object_bytes)
    whole, given, copy_in = np.arange(3 * N, dtype=np.int32), list[int](), Slot.copy_in

    def watched(slot: Slot, *args: Any) -> list[int]:
        given[:] = copy_in(slot, *args)
        return given

    monkeypatch.setattr(Slot, "copy_in", watched)
    sources = {"a": InputSource(key=b"w", fetch=lambda: whole, offset_bytes=offset_bytes), "b": InputSource(array(0))}
    for _ in range(2):
        result = executor.run(RunRequest(task, sources, {}))
        np.testing.assert_array_equal(result.outputs["c"], np.frombuffer(whole.tobytes(), np.int32, N, offset_bytes))
        assert [address % 256 for address in given] == [0, 0, 0]
        (there,) = executor.cache.device.values.values()
        assert in_place == (there.address <= given[0] < there.address + there.nbytes)


def test_views_by_value(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    whole = np.arange(3 * N, dtype=np.int32)
    sources = {"a": InputSource(whole, offset_bytes=KIB), "b": InputSource(whole.tobytes(), offset_bytes=4)}
    result = make_executor(64 * KIB).run(RunRequest(task, sources, {}))
    np.testing.assert_array_equal(result.outputs["c"], whole[N : 2 * N] + whole[1 : N + 1])


def test_by_value_is_never_cached(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    executor.run(RunRequest(task, {"a": InputSource(array(1)), "b": InputSource(fetch=lambda: array(2))}, {}))
    assert executor.cache.sizes == {}


def test_a_cached_object_is_checked_too(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    add(executor, task, 1, 2)
    floats = InputSource(np.zeros(N, np.float32), key=b"floats")
    large = InputSource(array(0, 2 * N), key=b"large")
    loaded = kaas.KTask(
        [kaas.Kernel(task.kernels[0].library, "fill", 1, 1, [kaas.InOut(x), kaas.i32(0), kaas.i32(0)]) for x in
         (kaas.Buffer("floats", N, "float32"), kaas.Buffer("large", 2 * N, "int32"))], ["large"])  # fmt: skip
    executor.run(RunRequest(loaded, {"floats": floats, "large": large}, {}))
    before = state(executor)
    for b, error in (
        (floats, WrongDtype),
        (large, WrongSize),
        (InputSource(key=b"large", offset_bytes=KIB + 4), WrongSize),
    ):
        with pytest.raises(error) as caught:
            executor.run(RunRequest(task, {"a": source(1), "b": b}, {}))
        assert caught.value.buffer == "b"
        assert state(executor) == before


def test_the_shape_of_a_fetched_and_of_a_cached_object_is_checked(
    make_executor: MakeExecutor, library: kaas.Library
) -> None:
    x = kaas.Buffer("x", (N // 4, 4), "int32")
    task = kaas.KTask([kaas.Kernel(library, "fill", 1, 1, [kaas.InOut(x), kaas.i32(1), kaas.i32(0)])], [x])
    executor = make_executor(64 * KIB)
    turned = np.arange(N, dtype=np.int32).reshape(4, N // 4)
    for source_ in (InputSource(key=b"turned", fetch=lambda: turned), InputSource(key=b"turned", fetch=lambda: turned)):
        with pytest.raises(WrongShape):
            executor.run(RunRequest(task, {"x": source_}, {}))
        executor.load([source_])
    flat = InputSource(key=b"turned", offset_bytes=0)
    np.testing.assert_array_equal(
        executor.run(RunRequest(task, {"x": flat}, {})).outputs["x"].reshape(-1), np.arange(N)
    )


def test_an_error_reports_by_how_much_a_request_is_too_large(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(3 * KIB)
    add(executor, task, 1, 2)
    before = state(executor)
    views = {"a": InputSource(key=b"big", fetch=lambda: array(0, 2 * N), offset_bytes=0), "b": source(1)}
    with pytest.raises(RequestTooLarge) as caught:
        executor.run(RunRequest(task, views, {}))
    error = caught.value
    assert (error.needed_bytes, error.capacity_bytes, error.excess_bytes) == (4 * KIB, 3 * KIB, KIB)
    assert state(executor) == before
    add(executor, task, 2, 1)


def test_an_arena_shrinks_for_a_request_that_needs_the_room(make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(8 * KIB)
    x, y = kaas.Buffer("x", 7 * N, "int32"), kaas.Buffer("y", N, "int32")
    fill = kaas.KTask([kaas.Kernel(library, "fill", 14, 128, [kaas.Out(x), kaas.i32(1), kaas.i32(7 * N)])], [x])
    scale = kaas.KTask(
        [kaas.Kernel(library, "scale", 2, 128, [kaas.In(x), kaas.Out(y), kaas.i32(2), kaas.i32(N)])], [y]
    )
    for _ in range(2):
        np.testing.assert_array_equal(executor.run(RunRequest(fill, {}, {})).outputs["x"], array(1, 7 * N))
        assert executor.cache.arena_bytes == 7 * KIB
        result = executor.run(RunRequest(scale, {"x": InputSource(array(4, 7 * N), key=b"x")}, {}))
        np.testing.assert_array_equal(result.outputs["y"], array(8))
        assert executor.cache.arena_bytes == KIB


def test_an_input_that_cannot_be_had(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    add(executor, task, 1, 2)
    before = state(executor)

    def broken() -> Any:
        raise LookupError("gone")

    for bad in (InputSource(key=b"bad", fetch=broken), InputSource(fetch=broken)):
        with pytest.raises(InputFailed) as caught:
            executor.run(RunRequest(task, {"a": source(3), "b": bad}, {}))
        assert (caught.value.buffer, caught.value.reason) == ("b", "LookupError: gone")
        assert isinstance(caught.value.__cause__, LookupError)
        assert state(executor) == before


@contextmanager
def without_copies_out(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let copies from the device fail."""

    def refuse(*_: Any) -> None:
        raise DeviceError("no copies today", call="cuMemcpyDtoHAsync", code=1, code_name="CUDA_ERROR_INVALID_VALUE")

    with monkeypatch.context() as patched:
        patched.setattr(Stream, "copy_out", refuse)
        yield


def test_a_failed_copy_leaves_the_state_unchanged(
    make_executor: MakeExecutor, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(64 * KIB)
    add(executor, task, 1, 2)
    before = state(executor)

    with without_copies_out(monkeypatch), pytest.raises(DeviceError, match="no copies today"):
        add(executor, task, 1, 3)
    assert state(executor) == before
    assert add(executor, task, 1, 3).loaded == (b"\3",)


def test_the_driver_has_less_than_the_budget(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    add(executor, task, 1, 2)
    with executor.device.context:
        with pytest.raises(OutOfDeviceMemory):  # makes the driver's pools free their reserves
            executor.device.allocate(executor.device.info().memory_bytes)
        taken = executor.device.allocate(executor.device.free_bytes() - KIB)
    try:
        assert add(executor, task, 3, 1).evicted == ()
        assert add(executor, task, 4, 1).evicted == (b"\2",)  # known only from the driver's refusal
        assert executor.cache.device.capacity_bytes == 4 * KIB
        with pytest.raises(OutOfDeviceMemory), executor.device.context:
            executor.device.allocate(KIB)
    finally:
        with executor.device.context:
            executor.device.free(taken)


def test_closing_gives_all_memory_back(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    observer = open_device("software", 1)

    def free_bytes() -> int:
        with observer.context:
            return observer.free_bytes()

    before = free_bytes()
    executor = make_executor(64 * KIB)
    add(executor, task, 1, 2)
    assert free_bytes() == before - executor.cache.used_bytes
    executor.close()
    assert free_bytes() == before
    observer.close()


# --- the host tier


def test_an_evicted_object_is_loaded_again_without_a_fetch(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(3 * KIB, 64 * KIB)  # the arena and two objects
    fetched: list[int] = []

    def watched(value: int) -> InputSource:
        def fetch() -> Any:
            fetched.append(value)
            return array(value)

        return InputSource(key=bytes([value]), fetch=fetch)

    for a, b in ((1, 2), (3, 4), (1, 2), (4, 3)):
        result = executor.run(RunRequest(task, {"a": watched(a), "b": watched(b)}, {}))
        np.testing.assert_array_equal(result.outputs["c"], array(a + b))
    assert fetched == [1, 2, 3, 4]
    device, host, store = (result.stats.tiers[tier] for tier in ("device", "host", "store"))
    assert (device.objects, device.compulsory, device.capacity, device.evictions, device.evicted_bytes) == (
        0, 0, 2, 2, 2 * KIB)  # fmt: skip
    assert (host.objects, host.nbytes, host.misses, host.evictions) == (2, 2 * KIB, 0, 0)
    assert (store.objects, store.nbytes, store.seconds) == (0, 0, 0.0)
    assert device.seconds > 0
    assert (result.stats.misses, result.stats.miss_bytes) == (2, 2 * KIB)


def test_each_tier_counts_its_own(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(5 * KIB, 2 * KIB)
    first = add(executor, task, 1, 2).tiers
    assert first["device"][:6] == (0, 0, 2, 0, 0, 0)
    assert first["host"][:6] == (0, 0, 2, 0, 0, 0)
    assert first["store"][:2] == (2, 2 * KIB)
    assert min(first[tier].seconds for tier in ("device", "host", "store")) > 0
    second = add(executor, task, 1, 3).tiers
    assert second["device"][:6] == (1, KIB, 1, 0, 0, 0)
    assert second["host"][:6] == (0, 0, 1, 0, 1, KIB)
    assert set(executor.cache.host.sizes) == {b"\1", b"\3"}  # objects that a request uses stay in both
    assert add(executor, task, 1, 3).tiers == {"device": (2, 2 * KIB, 0, 0, 0, 0, 0.0)}


def test_a_failed_request_leaves_both_tiers_as_they_were(
    make_executor: MakeExecutor, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(64 * KIB, 64 * KIB)
    add(executor, task, 1, 2)
    before = dict(executor.cache.host.sizes), executor.cache.host.reserved_bytes, *state(executor)

    with without_copies_out(monkeypatch), pytest.raises(DeviceError, match="no copies today"):
        add(executor, task, 1, 3)
    assert (executor.cache.host.sizes, executor.cache.host.reserved_bytes, *state(executor)) == before
    assert add(executor, task, 1, 3).tiers["host"].compulsory == 1


def test_a_host_without_lockable_memory(
    make_executor: MakeExecutor, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(3 * KIB, 64 * KIB)
    add(executor, task, 1, 2)

    def refuse(*_: Any) -> None:
        raise OutOfDeviceMemory("no more", call="cuMemHostAlloc", code=2, code_name="CUDA_ERROR_OUT_OF_MEMORY")

    with monkeypatch.context() as patched:
        patched.setattr(OpenDevice, "allocate_host", refuse)
        add(executor, task, 3, 4)
    assert executor.cache.host.capacity_bytes == executor.cache.host.reserved_bytes == 2 * KIB
    assert add(executor, task, 1, 2).tiers["host"].objects == 2
    assert add(executor, task, 5, 1).tiers["host"].evictions == 1


def test_constants_of_functions_leave_last(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(4 * KIB)
    weights = InputSource(array(7), key=b"weights", constants=b"model")
    for value in (1, 2, 1, 3):
        executor.run(RunRequest(task, {"a": weights, "b": source(value)}, {}))
    assert add(executor, task, 1, 4).evicted == (b"\3",)
    assert add(executor, task, 5, 1).evicted == (b"\4",)
    assert b"weights" in executor.cache.sizes


# --- parts of large objects


def views(*offsets: int, whole: np.ndarray[Any, Any], fetched: list[int] | None = None) -> dict[str, InputSource]:
    def fetch() -> Any:
        if fetched is not None:
            fetched.append(1)
        return whole

    return {name: InputSource(key=b"w", fetch=fetch, offset_bytes=at) for name, at in zip("ab", offsets, strict=True)}


def test_only_the_read_parts_of_a_large_object_are_cached(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, whole_object_bytes=8 * KIB)
    whole = np.arange(16 * N, dtype=np.int32)
    fetched: list[int] = []

    def run(a: int, b: int) -> Any:
        result = executor.run(RunRequest(task, views(a * KIB, b * KIB, whole=whole, fetched=fetched), {}))
        np.testing.assert_array_equal(result.outputs["c"], whole[a * N :][:N] + whole[b * N :][:N])
        return result.stats

    assert run(1, 12).loaded == (b"w",)
    assert executor.cache.sizes == {b"w[1024:2048": KIB, b"w[12288:13312": KIB}
    assert (run(12, 1).hits, len(fetched)) == (2, 1)
    stats = run(1, 2)
    assert (stats.hits, stats.misses, stats.evicted, len(fetched)) == (1, 1, (), 2)
    executor.run(RunRequest(task, views(KIB + 512, 2 * KIB + 512, whole=whole), {}))  # joins two ranges and one beyond
    assert executor.cache.sizes == {b"w[12288:13312": KIB, b"w[1024:3584": 2 * KIB + 512}
    assert executor.cache.host.sizes == executor.cache.sizes
    assert run(1, 2).misses == 0


def test_a_whole_object_replaces_its_parts(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB, whole_object_bytes=KIB)
    whole = np.arange(2 * N, dtype=np.int32)
    executor.run(RunRequest(task, views(0, KIB, whole=whole), {}))
    assert len(executor.cache.sizes) == 2
    x, y = kaas.Buffer("x", 2 * N, "int32"), kaas.Buffer("y", N, "int32")
    kernel = kaas.Kernel(
        task.kernels[0].library, "scale", 2, 128, [kaas.In(x, KIB), kaas.Out(y), kaas.i32(2), kaas.i32(N)]
    )
    result = executor.run(RunRequest(kaas.KTask([kernel], [y]), {"x": InputSource(whole, key=b"w")}, {}))
    np.testing.assert_array_equal(result.outputs["y"], 2 * whole[N:])
    assert executor.cache.sizes == {b"w": 2 * KIB}
    assert (result.stats.loaded, result.stats.evicted) == ((b"w",), ())
    assert executor.run(RunRequest(task, views(0, KIB, whole=whole), {})).stats.hits == 1


def test_parts_are_evicted_and_loaded_again(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(3 * KIB, whole_object_bytes=KIB)
    whole = np.arange(8 * N, dtype=np.int32)
    for a, b in ((0, 1), (2, 3), (0, 1), (7, 0)):
        result = executor.run(RunRequest(task, views(a * KIB, b * KIB, whole=whole), {}))
        np.testing.assert_array_equal(result.outputs["c"], whole[a * N :][:N] + whole[b * N :][:N])
    assert (result.stats.hits, result.stats.tiers["device"].evictions, result.stats.evicted) == (1, 1, ())
    assert add(executor, task, 1, 2).evicted == (b"w",)
    assert not executor._memory.ranges.parts(b"w")


def test_a_view_beyond_a_large_object(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB, whole_object_bytes=KIB)
    whole = np.arange(2 * N, dtype=np.int32)
    for _ in range(2):
        with pytest.raises(WrongSize) as caught:
            executor.run(RunRequest(task, views(0, KIB + 4, whole=whole), {}))
        assert caught.value.buffer == "b"
        assert executor.cache.sizes == {}


# --- loads before requests


def test_an_object_loaded_before_its_request_is_a_hit(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(4 * KIB, 64 * KIB)
    stats = executor.load([source(1), source(2), source(1)])
    assert (stats.loaded, stats.hits, stats.misses, stats.miss_bytes) == ((b"\1", b"\2"), 0, 2, 2 * KIB)
    assert not executor.cache.pinned
    assert executor.load([source(2)]).hits == 1
    assert add(executor, task, 1, 2).misses == 0


def test_a_load_fits_whole_or_changes_nothing(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(4 * KIB, 64 * KIB)
    add(executor, task, 1, 2)
    before = state(executor), executor.cache.host.sizes
    with pytest.raises(RequestTooLarge) as caught:
        executor.load([source(value) for value in range(3, 8)])
    assert caught.value.excess_bytes == KIB
    assert (state(executor), executor.cache.host.sizes) == before


def test_pinned_objects_leave_only_when_they_may(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(4 * KIB)
    for _ in range(2):
        executor.load([source(1)], pin=True)
    for value in range(2, 6):
        assert b"\1" not in add(executor, task, value, value + 1).evicted
    executor.load([source(2)], pin=True)
    with pytest.raises(OutOfDeviceMemory, match="pinned objects leave"):
        add(executor, task, 3, 4)
    assert executor.flush() == (b"\5", b"\6")  # the arena left before they did
    assert set(executor.cache.sizes) == {b"\1", b"\2"}
    executor.unpin([b"\1", b"\3"])
    assert executor.cache.pinned == {b"\2"}
    executor.unpin()
    assert not executor.cache.pinned
    assert add(executor, task, 3, 4).evicted == (b"\2",)


def test_flushing_gives_memory_back(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB, 64 * KIB, whole_object_bytes=KIB)
    whole = np.arange(8 * N, dtype=np.int32)
    add(executor, task, 1, 2)
    executor.run(RunRequest(task, views(0, 4 * KIB, whole=whole), {}))
    assert executor.flush([b"w", b"\1", b"unknown"]) == (b"w", b"\1")
    assert executor.cache.sizes == executor.cache.host.sizes == {b"\2": KIB}
    assert not executor._memory.ranges.parts(b"w")
    executor.flush()
    assert executor.cache.used_bytes == executor.cache.arena_bytes
    assert executor.cache.host.reserved_bytes == 0
    assert add(executor, task, 1, 2).tiers["device"].compulsory == 2


# --- orders of a policy


def test_the_victims_of_a_request_leave_first_and_no_more_than_needed(
    make_executor: MakeExecutor, task: kaas.KTask
) -> None:
    executor = make_executor(5 * KIB, 64 * KIB)  # the arena and four objects
    add(executor, task, 1, 2)
    add(executor, task, 3, 4)
    executor.load([source(3)], pin=True)
    inputs = {"a": source(4), "b": source(5)}
    stats = executor.run(RunRequest(task, inputs, {}, victims=(b"unknown", b"\4", b"\3", b"\2", b"\1"))).stats
    assert (stats.loaded, stats.evicted, stats.hosted) == ((b"\5",), (b"\2",), (b"\2",))  # 4 is used, 3 is pinned
    new = [source(value) for value in (6, 7, 8)]  # one of them gets the room of the arena
    assert executor.load(new, victims=(b"\5",)).evicted == (b"\5", b"\1")
    assert executor.load([source(6)], victims=(b"\4",)).evicted == ()


def test_a_victim_leaves_with_all_its_parts(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(5 * KIB, 64 * KIB, whole_object_bytes=KIB)
    executor.run(RunRequest(task, views(0, 4 * KIB, whole=np.arange(8 * N, dtype=np.int32)), {}))
    add(executor, task, 1, 2)
    assert executor.load([source(value) for value in (3, 4, 5)], victims=(b"w",)).evicted == (b"w",)


def test_an_object_goes_to_host_memory_and_comes_back_without_a_fetch(
    make_executor: MakeExecutor, task: kaas.KTask
) -> None:
    executor = make_executor(64 * KIB, 2 * KIB)
    add(executor, task, 1, 2)
    add(executor, task, 3, 4)  # host memory has room for two
    executor.load([source(3)], pin=True)
    assert executor.to_host([b"\1", b"\4", b"\3", b"unknown"]) == (b"\4",)
    assert set(executor.cache.sizes) == {b"\1", b"\2", b"\3"}
    stats = add(executor, task, 4, 1)
    assert (stats.tiers["host"].objects, stats.tiers["store"].objects) == (1, 0)
    assert stats.tiers["device"].capacity == 1


def test_a_load_is_told_from_a_run(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB)
    stats = add(executor, task, 1, 2)
    assert 0 < stats.load_s < stats.charged_s
    assert add(executor, task, 1, 2).load_s == 0
    assert executor.load([source(3)]).load_s > 0
