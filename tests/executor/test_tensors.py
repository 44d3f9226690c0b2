"""Arrays of other libraries on a CUDA device, as inputs: what they hold, in the order of their own streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kaas
from kaas.errors import DeviceUnavailable, NotContiguous, WrongDtype, WrongSize
from kaas.executor.device import Device, open_device
from kaas.executor.executor import Executor, Request, Source
from kaas.executor.tensors import on_host
from tests.executor.conftest import MakeExecutor
from tests.exporters import DeviceArray, Exporter, strides

N = 1000
A, B, C = (kaas.Buffer(name, N, "int32") for name in "abc")
INTS = np.arange(N, dtype=np.int32)
ORDINAL = 1
"""Of the device on which `make_executor` makes executors."""


@pytest.fixture(params=[0, 1], ids=["another device", "the same device"])
def place(request: pytest.FixtureRequest, softgpu: tuple[int, ...]) -> Iterator[tuple[Device, int]]:  # noqa: ARG001
    device = open_device("software", request.param)
    yield device, request.param
    device.close()


def add(library: kaas.Library, output: kaas.Buffer = C, first: Any = None) -> kaas.KTask:
    args = [first or kaas.In(A), kaas.In(B), kaas.Out(output), kaas.i32(N)]
    return kaas.KTask([kaas.Kernel(library, "add", 8, 128, args)], [output])


def run(executor: Executor, task: kaas.KTask, **inputs: Any) -> dict[str, np.ndarray[Any, Any]]:
    sources = {name: value if isinstance(value, Source) else Source(value) for name, value in inputs.items()}
    return executor.run(Request(task, sources, {})).outputs


def test_copied_to_the_host(place: tuple[Device, int]) -> None:
    device, ordinal = place
    tensor = DeviceArray(device, ordinal, INTS.reshape(10, 100))
    array = on_host("a", tensor)
    np.testing.assert_array_equal(array, tensor.array)
    assert array.dtype == np.int32
    (stream,) = tensor.streams
    assert stream is not None
    assert stream > 2  # one of its own, which the exporter makes wait


def test_as_inputs(place: tuple[Device, int], make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(1 << 20)
    a, b = DeviceArray(*place, INTS), DeviceArray(*place, 2 * INTS)
    for _ in range(2):
        np.testing.assert_array_equal(run(executor, add(library), a=a, b=b)["c"], 3 * INTS)


def test_as_a_view(place: tuple[Device, int], make_executor: MakeExecutor, library: kaas.Library) -> None:
    executor = make_executor(1 << 20)
    both = DeviceArray(*place, np.concatenate([INTS, 2 * INTS]))
    inputs = {"a": Source(both, offset_bytes=0), "b": Source(both, offset_bytes=4 * N)}
    np.testing.assert_array_equal(run(executor, add(library), **inputs)["c"], 3 * INTS)


def test_as_an_object_that_is_cached(
    place: tuple[Device, int], make_executor: MakeExecutor, library: kaas.Library
) -> None:
    executor = make_executor(1 << 20)
    tensor = DeviceArray(*place, INTS)
    inputs = {"a": Source(key=b"a", fetch=lambda: tensor), "b": Source(INTS)}
    for _ in range(2):
        np.testing.assert_array_equal(run(executor, add(library), **inputs)["c"], 2 * INTS)
    assert len(tensor.streams) == 1


def test_what_a_kernel_writes_is_a_copy(
    place: tuple[Device, int], make_executor: MakeExecutor, library: kaas.Library
) -> None:
    executor = make_executor(1 << 20)
    tensor = DeviceArray(*place, INTS)
    kernel = kaas.Kernel(library, "axpy", 8, 128, [kaas.i32(3), kaas.In(B), kaas.InOut(A), kaas.i32(N)])
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
def test_what_does_not_fit_is_a_typed_error(
    place: tuple[Device, int],
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
