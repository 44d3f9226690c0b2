"""Arrays of other libraries on a CUDA device as inputs: they are read in the order of their own streams."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu as software
from kaas.errors import DeviceUnavailable, NotContiguous, WrongDtype, WrongSize
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.host_arrays import on_host
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.conftest import MakeExecutor
from tests.exporters import DeviceArray, Exporter, InThreads, Producer, strides

N = 1000
A, B, C = (kaas.Buffer(name, N, "int32") for name in "abc")
INTS = np.arange(N, dtype=np.int32)
AXPY: list[Any] = [kaas.i32(3), kaas.In(B), kaas.InOut(A), kaas.i32(N)]
ORDINAL = 1
"""The device on which `make_executor` makes executors."""


@pytest.fixture(params=[0, 1], ids=["another device", "the same device"])
def place(request: pytest.FixtureRequest, softgpu: tuple[int, ...]) -> Iterator[tuple[OpenDevice, int]]:  # noqa: ARG001
    device = open_device("software", request.param)
    yield device, request.param
    device.close()


def add(library: kaas.Library, output: kaas.Buffer = C, first: Any = None) -> kaas.KTask:
    args = [first or kaas.In(A), kaas.In(B), kaas.Out(output), kaas.i32(N)]
    return kaas.KTask([kaas.Kernel(library, "add", 8, 128, args)], [output])


def run(executor: Executor, task: kaas.KTask, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    sources = {name: value if isinstance(value, InputSource) else InputSource(value) for name, value in inputs.items()}
    return executor.run(RunRequest(task, sources, {})).outputs


def test_copied_to_the_host(place: tuple[OpenDevice, int]) -> None:
    device, ordinal = place
    tensor = DeviceArray(device, ordinal, INTS.reshape(10, 100))
    array = on_host("a", tensor)
    np.testing.assert_array_equal(array, tensor.array)
    assert array.dtype == np.int32
    (stream,) = tensor.streams
    assert stream is not None
    assert stream > 2  # a new stream, which the exporter makes wait


def test_as_inputs(place: tuple[OpenDevice, int], make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(1 << 20)
    a, b = DeviceArray(*place, INTS), DeviceArray(*place, 2 * INTS)
    for _ in range(2):
        np.testing.assert_array_equal(run(executor, add(library), a=a, b=b)["c"], 3 * INTS)


def test_as_a_view(place: tuple[OpenDevice, int], make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(1 << 20)
    both = DeviceArray(*place, np.concatenate([INTS, 2 * INTS]))
    inputs = {"a": InputSource(both, offset_bytes=0), "b": InputSource(both, offset_bytes=4 * N)}
    np.testing.assert_array_equal(run(executor, add(library), **inputs)["c"], 3 * INTS)


@pytest.fixture
def here(softgpu: tuple[int, ...]) -> Iterator[OpenDevice]:  # noqa: ARG001
    """Return the device of the executors, opened once more."""
    device = open_device("software", ORDINAL)
    yield device
    device.close()


def no_trip(*_: Any) -> None:
    raise AssertionError("an array that lies on the device went through host memory")


def test_a_tensor_is_read_in_place(
    here: OpenDevice, make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(1 << 20)
    (slot,) = executor._slots
    copies: list[tuple[int, int, int]] = []
    monkeypatch.setattr("kaas.executor.device.host_arrays._copied", no_trip)
    monkeypatch.setattr(slot.stream, "copy_in", no_trip)
    monkeypatch.setattr(slot.stream, "copy", lambda *copied: copies.append(copied))
    a, b = DeviceArray(here, ORDINAL, INTS), DeviceArray(here, ORDINAL, 2 * INTS)
    np.testing.assert_array_equal(run(executor, add(library), a=a, b=b)["c"], 3 * INTS)
    assert copies == []
    assert executor.cache.arena_bytes <= 4096  # the output alone
    assert a.streams == [slot.stream.number]


def test_an_unaligned_array_is_copied_on_the_device(
    here: OpenDevice, make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(1 << 20)
    (slot,) = executor._slots
    monkeypatch.setattr("kaas.executor.device.host_arrays._copied", no_trip)
    monkeypatch.setattr(slot.stream, "copy_in", no_trip)
    tensor = DeviceArray(here, ORDINAL, np.concatenate([INTS, INTS]))
    inputs = {"a": InputSource(tensor, offset_bytes=4), "b": InputSource(tensor, offset_bytes=1024)}
    expected = np.roll(INTS, -1) + np.roll(INTS, -256)
    np.testing.assert_array_equal(run(executor, add(library), **inputs)["c"], expected)
    assert 8000 <= executor.cache.arena_bytes <= 8192  # the output, and the copy of the unaligned input


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_tensor_is_read_after_the_work_that_makes_it(
    here: OpenDevice, make_executor: MakeExecutor, library: kaas.Library, seed: int | None
) -> None:
    executor = make_executor(1 << 20)
    task = add(library)
    run(executor, task, a=INTS, b=INTS)
    software.set_strict(seed)
    try:
        for factor in (2, 3):
            a, b = (Producer(here, ORDINAL, factor * INTS) for _ in range(2))
            np.testing.assert_array_equal(run(executor, task, a=a, b=b)["c"], 2 * factor * INTS)
    finally:
        software.set_strict(None)


@pytest.mark.parametrize("seed", [None, *range(3)])
def test_run_local_waits_for_the_stream_of_the_thread_that_calls_it(
    place: tuple[OpenDevice, int], library: kaas.Library, seed: int | None
) -> None:
    task, writes = add(library), kaas.KTask([kaas.Kernel(library, "axpy", 8, 128, AXPY)], [A])
    kaas.run_local(task, {"a": INTS, "b": INTS}, device=ORDINAL)
    software.set_strict(seed)
    try:
        for factor in (2, 3):
            a, b = (InThreads(*place, factor * INTS) for _ in range(2))
            result = kaas.run_local(task, {"a": a, "b": b}, device=ORDINAL)["c"]
            np.testing.assert_array_equal(result, 2 * factor * INTS)
            again = InThreads(*place, factor * INTS)
            result = kaas.run_local(writes, {"a": kaas.View(again, 0), "b": b}, device=ORDINAL)["a"]
            np.testing.assert_array_equal(result, 4 * factor * INTS)
    finally:
        software.set_strict(None)


def test_released_when_the_request_has_ended(
    here: OpenDevice, make_executor: MakeExecutor, library: kaas.Library
) -> None:
    executor = make_executor(1 << 20)
    ends = []
    for _ in range(2):
        tensor = DeviceArray(here, ORDINAL, INTS.copy())
        ends.append(weakref.ref(tensor.array))
        run(executor, add(library), a=tensor, b=tensor)
        with pytest.raises(WrongSize):
            run(executor, add(library), a=tensor, b=INTS[:1])
        del tensor
    gc.collect()
    assert [end() for end in ends] == [None, None]


def test_as_an_object_that_is_cached(
    place: tuple[OpenDevice, int], make_executor: MakeExecutor, library: kaas.Library
) -> None:
    executor = make_executor(1 << 20)
    tensor = DeviceArray(*place, INTS)
    inputs = {"a": InputSource(key=b"a", fetch=lambda: tensor), "b": InputSource(INTS)}
    for _ in range(2):
        np.testing.assert_array_equal(run(executor, add(library), **inputs)["c"], 2 * INTS)
    assert len(tensor.streams) == 1


def test_an_array_that_a_kernel_writes_is_a_copy(
    place: tuple[OpenDevice, int], make_executor: MakeExecutor, library: kaas.Library
) -> None:
    executor = make_executor(1 << 20)
    tensor = DeviceArray(*place, INTS)
    kernel = kaas.Kernel(library, "axpy", 8, 128, AXPY)
    task = kaas.KTask([kernel], [A])
    for _ in range(2):
        np.testing.assert_array_equal(run(executor, task, a=tensor, b=INTS)["a"], 4 * INTS)
    np.testing.assert_array_equal(on_host("a", tensor), INTS)


@pytest.mark.parametrize(
    ("array", "fields", "error"),
    [
        (INTS.astype(np.float32), {}, WrongDtype),
        (INTS[:-1], {}, WrongSize),
        (INTS, {"strides": strides(2)}, NotContiguous),
    ],
)
def test_an_array_that_does_not_fit_is_a_typed_error(
    place: tuple[OpenDevice, int],
    make_executor: MakeExecutor,
    library: kaas.Library,
    array: Any,
    fields: dict[str, Any],
    error: type[Exception],
) -> None:
    executor = make_executor(1 << 20)
    with pytest.raises(error):
        run(executor, add(library), a=DeviceArray(*place, array, **fields), b=INTS)
    np.testing.assert_array_equal(run(executor, add(library), a=INTS, b=INTS)["c"], 2 * INTS)


def test_a_device_that_is_not_there(make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(1 << 20)
    with pytest.raises(DeviceUnavailable):
        run(executor, add(library), a=Exporter(INTS, (2, 7)), b=INTS)
