"""Outputs are copied to the host in pieces, through page-locked memory that is used again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kaas
import softgpu
from kaas.errors import DeviceError, OutOfDeviceMemory
from kaas.executor.device import device_to_host
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.streams import Stream
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.conftest import MakeExecutor

CHUNK_BYTES = 1024
SIZES = (0, 4, 1024, 1028, 2048, 3000 * 4, 5 * 1024)
"""Bytes of the outputs: none, one piece or less, many pieces, with and without a rest."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_to_host, "CHUNK_BYTES", CHUNK_BYTES)


def doubled(library: kaas.Library) -> tuple[kaas.KTask, dict[str, InputSource], dict[str, Any]]:
    """Return a kTask that doubles arrays of all these sizes, with its inputs and outputs."""
    kernels, sources, expected = [], {}, {}
    for number, nbytes in enumerate(SIZES):
        n = nbytes // 4
        x, y = kaas.Buffer(f"x{number}", n, "int32"), kaas.Buffer(f"y{number}", n, "int32")
        args: list[Any] = [kaas.In(x), kaas.Out(y), kaas.i32(2), kaas.i32(n)]
        kernels.append(kaas.Kernel(library, "scale", -(-n // 128) or 1, 128, args))
        sources[x.name] = InputSource(np.arange(number, number + n, dtype=np.int32))
        expected[y.name] = 2 * np.arange(number, number + n, dtype=np.int32)
    return kaas.KTask(kernels, list(expected)), sources, expected


def check(executor: Executor, library: kaas.Library) -> None:
    task, sources, expected = doubled(library)
    result = executor.run(RunRequest(task, sources, {}))
    assert list(result.outputs) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(result.outputs[name], array, err_msg=name)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_outputs_of_all_sizes(make_executor: MakeExecutor, library: kaas.Library, seed: int | None) -> None:
    executor = make_executor(1 << 20)
    softgpu.set_strict(seed)
    try:
        for _ in range(3):
            check(executor, library)
    finally:
        softgpu.set_strict(None)


def test_pieces_take_the_same_two_chunks(
    make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(1 << 20)
    sizes: list[int] = []
    allocate = OpenDevice.allocate_host

    def counted(device: OpenDevice, nbytes: int) -> Any:
        sizes.append(nbytes)
        return allocate(device, nbytes)

    monkeypatch.setattr(OpenDevice, "allocate_host", counted)
    for _ in range(3):
        check(executor, library)
    assert sizes == [CHUNK_BYTES] * 2


def test_without_lockable_memory(
    make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(1 << 20)

    def refuse(*_: Any) -> None:
        raise OutOfDeviceMemory("no more", call="cuMemHostAlloc", code=2, code_name="CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(OpenDevice, "allocate_host", refuse)
    check(executor, library)


def test_copies_of_a_failed_request_reach_no_output(
    make_executor: MakeExecutor, library: kaas.Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make_executor(1 << 20)
    copy_out, copies = Stream.copy_out, 0

    def refuse(stream: Stream, *args: Any) -> None:
        nonlocal copies
        copies += 1
        if copies == 8:  # in the middle of the large ones
            raise DeviceError("not today", call="cuMemcpyDtoHAsync", code=1, code_name="CUDA_ERROR_INVALID_VALUE")
        copy_out(stream, *args)

    monkeypatch.setattr(Stream, "copy_out", refuse)
    with pytest.raises(DeviceError, match="not today"):
        check(executor, library)
    check(executor, library)
