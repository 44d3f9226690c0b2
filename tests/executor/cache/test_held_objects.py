"""Objects in device memory that the pool holds: kernels read them there, and they take no room of the executor's."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceError, KaasError, RequestTooLarge
from kaas.executor.device.device_memory import HeldMemory, sealed_file
from kaas.executor.executor import Executor, InputSource, RunRequest
from kaas.executor.objects import HeldValue
from kaas.executor.slots import Slot
from tests.executor.conftest import MakeExecutor

KIB = 1024
N = 256
WHOLE_BYTES = 2 << 20
DEVICE = 1  # that of `make_executor`
A, B, C = (kaas.Buffer(name, N, "int32") for name in "abc")


@pytest.fixture(scope="module")
def task(library: kaas.Library) -> kaas.KTask:
    """c = a + b."""
    return kaas.KTask(
        [kaas.Kernel(library, "add", 2, 128, [kaas.In(A), kaas.In(B), kaas.Out(C), kaas.i32(N)])], [C]
    )  # fmt: skip


def array(value: int) -> np.ndarray[Any, Any]:
    return np.full(N, value, np.int32)


class Made:
    """Memory with arrays of 1, 2 and so on, as executors get it.

    Fields:
        fetched: how often an executor has asked for one of them.
    """

    def __init__(self, executor: Executor, count: int) -> None:
        values = [(number * KIB, array(number + 1)) for number in range(count)]
        with executor.device.context:
            self._file = sealed_file([(at, each.tobytes()) for at, each in values], WHOLE_BYTES, DEVICE, "")
        self.inode = os.fstat(self._file).st_ino
        self.memory = HeldMemory(self._file)
        self.fetched = 0

    def source(self, value: int, offset_bytes: int | None = None) -> InputSource:
        """An input that is one of the arrays."""
        held = HeldValue(self.memory, (value - 1) * KIB, KIB, WHOLE_BYTES)

        def fetch() -> HeldValue:
            self.fetched += 1
            return held

        return InputSource(key=bytes([value]), fetch=fetch, offset_bytes=offset_bytes, constants=b"tuple")

    def mappings(self) -> list[str]:
        """The access of each mapping of the memory in this process."""
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        return [access for _, access, _, _, inode, *_ in lines if int(inode) == self.inode]

    def close(self) -> None:
        os.close(self._file)


@pytest.fixture
def executor(make_executor: MakeExecutor) -> Executor:
    return make_executor(64 * KIB, 64 * KIB)


@pytest.fixture
def made(executor: Executor) -> Iterator[Made]:
    memory = Made(executor, 3)
    yield memory
    memory.close()


def add(executor: Executor, task: kaas.KTask, a: InputSource, b: InputSource, expected: int) -> Any:
    result = executor.run(RunRequest(task, {"a": a, "b": b}, {}))
    np.testing.assert_array_equal(result.outputs["c"], array(expected))
    return result.stats


def test_kernels_read_held_objects_where_they_are(executor: Executor, made: Made, task: kaas.KTask) -> None:
    stats = add(executor, task, made.source(1), made.source(2), 3)
    assert stats.loaded == (b"\1", b"\2")
    assert executor.cached_bytes == (0, 0)
    assert made.mappings() == ["r--s"]
    stats = add(executor, task, made.source(1), made.source(3), 4)
    assert (stats.hits, stats.loaded) == (1, (b"\3",))
    add(executor, task, made.source(3), made.source(2), 5)
    assert made.fetched == 3
    assert made.mappings() == ["r--s"]


def test_the_mapping_goes_with_the_last_object(executor: Executor, made: Made, task: kaas.KTask) -> None:
    add(executor, task, made.source(1), made.source(2), 3)
    assert executor.flush([b"\1"]) == (b"\1",)
    assert made.mappings() == ["r--s"]
    assert executor.flush([b"\2"]) == (b"\2",)
    assert made.mappings() == []
    add(executor, task, made.source(1), made.source(2), 3)
    assert made.mappings() == ["r--s"]
    executor.close()
    assert made.mappings() == []


def test_a_failed_request_leaves_no_mapping(
    executor: Executor, made: Made, task: kaas.KTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        mapped.extend(made.mappings())
        raise KaasError("no copies")

    mapped: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(Slot, "copy_in", fail)
        with pytest.raises(KaasError, match="no copies"):
            executor.run(RunRequest(task, {"a": made.source(1), "b": made.source(2)}, {}))
    assert mapped == ["r--s"]
    assert made.mappings() == []
    add(executor, task, made.source(1), made.source(2), 3)


def test_held_objects_leave_for_no_other_object(made: Made, make_executor: MakeExecutor, task: kaas.KTask) -> None:
    small = make_executor(3 * KIB)
    for other in range(4, 10):
        source = InputSource(key=bytes([other]), fetch=partial(array, other))
        stats = add(small, task, made.source(1), source, 1 + other)
        assert b"\1" not in stats.evicted
    assert made.fetched == 1
    assert small.cached_bytes[0] <= 3 * KIB


def test_a_request_whose_held_objects_are_larger_than_the_executors_memory_runs(
    made: Made, make_executor: MakeExecutor, task: kaas.KTask
) -> None:
    room_for_the_output = make_executor(KIB + 256)
    room_for_the_output.prepare(task)
    add(room_for_the_output, task, made.source(1), made.source(2), 3)
    other = InputSource(key=b"other", fetch=partial(array, 4))
    with pytest.raises(RequestTooLarge) as refused:
        room_for_the_output.run(RunRequest(task, {"a": made.source(1), "b": other}, {}))
    assert (refused.value.needed_bytes, refused.value.capacity_bytes) == (2 * KIB, KIB + 256)


def test_a_kernel_that_writes_an_input_gets_a_copy(executor: Executor, made: Made, library: kaas.Library) -> None:
    kernel = kaas.Kernel(library, "add", 2, 128, [kaas.In(A), kaas.In(B), kaas.InOut(A), kaas.i32(N)])
    task = kaas.KTask([kernel], [A])
    for _ in range(2):
        result = executor.run(RunRequest(task, {"a": made.source(1), "b": made.source(2)}, {}))
        np.testing.assert_array_equal(result.outputs["a"], array(3))
    assert made.mappings() == ["r--s"]


def test_a_view_of_a_large_held_object_takes_no_room(make_executor: MakeExecutor, task: kaas.KTask) -> None:
    executor = make_executor(64 * KIB, whole_object_bytes=KIB)
    made = Made(executor, 8)
    held = HeldValue(made.memory, 0, 8 * KIB, WHOLE_BYTES)
    view = [InputSource(key=b"all", fetch=lambda: held, offset_bytes=at * KIB) for at in range(8)]
    add(executor, task, view[2], view[4], 8)
    add(executor, task, view[0], view[7], 9)
    assert executor.cached_bytes == (0, 0)
    executor.flush()
    assert made.mappings() == []
    made.close()


def test_memory_that_is_not_sealed_is_refused(executor: Executor, task: kaas.KTask) -> None:
    file = os.memfd_create("other", os.MFD_ALLOW_SEALING)
    os.ftruncate(file, WHOLE_BYTES)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    held = HeldValue(HeldMemory(file), 0, KIB, WHOLE_BYTES)
    with pytest.raises(DeviceError, match="no memory of a software GPU"):
        executor.run(RunRequest(task, {"a": InputSource(key=b"x", fetch=lambda: held), "b": InputSource(array(1))}, {}))
    assert (executor.cache.sizes, executor.cached_bytes) == ({}, (0, 0))
    os.close(file)
