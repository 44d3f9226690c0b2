"""Words in memory that streams write and wait for."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error, device_array, fails, ok, synchronize

pytestmark = pytest.mark.usefixtures("ctx")

GEQ, EQ, AND, NOR = range(4)


def stream() -> Any:
    return ok(driver.cuStreamCreate(1))


@pytest.mark.parametrize("late", [False, True])
def test_one_stream_waits_for_anothers_word(*, late: bool) -> None:
    address, seen = device_array(np.zeros(4, np.uint32))
    waiting, writing = stream(), stream()
    ok(driver.cuStreamWaitValue32(waiting, address, 5, GEQ))
    ok(driver.cuMemsetD32Async(int(address) + 8, 1, 1, waiting))
    if late:
        thread = threading.Thread(target=lambda: seen.__setitem__(0, 6))
        thread.start()
        thread.join()
    else:
        ok(driver.cuStreamWriteValue32(writing, address, 6, 0))
    ok(driver.cuStreamSynchronize(waiting))
    assert seen.tolist() == [6, 0, 1, 0]


@pytest.mark.parametrize(
    ("how", "before", "wanted"), [(GEQ, 1 << 40, 3), (EQ, 3, 3), (AND, 6, 2), (NOR, 1, 2), (GEQ, 0, (1 << 64) - 1)]
)
def test_conditions_on_64_bits(how: int, before: int, wanted: int) -> None:
    address, seen = device_array(np.array([before, 0], np.uint64))
    main = stream()
    ok(driver.cuStreamWaitValue64(main, address, wanted, how))
    ok(driver.cuStreamWriteValue64(main, int(address) + 8, before + 1, 0))
    ok(driver.cuStreamSynchronize(main))
    assert seen[1] == before + 1


def test_a_batch() -> None:
    address, seen = device_array(np.zeros(2, np.uint32))
    kinds = driver.CUstreamBatchMemOpType
    write, wait = driver.CUstreamBatchMemOpParams(), driver.CUstreamBatchMemOpParams()
    write.writeValue.operation = kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32
    write.writeValue.address, write.writeValue.value = address, 9
    wait.waitValue.operation = kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32
    wait.waitValue.address, wait.waitValue.value, wait.waitValue.flags = address, 9, EQ
    main = stream()
    ok(driver.cuStreamBatchMemOp(main, 2, [write, wait], 0))
    ok(driver.cuStreamSynchronize(main))
    assert seen.tolist() == [9, 0]


def test_a_wait_for_a_word_that_is_never_written_is_cancelled(library: ctypes.CDLL) -> None:
    address, _ = device_array(np.zeros(1, np.uint32))
    main = stream()
    library.softgpu_cancel(0)
    ok(driver.cuStreamWaitValue32(main, address, 1, EQ))
    fails(Error.CUDA_ERROR_LAUNCH_TIMEOUT, driver.cuStreamSynchronize, main)


def test_invalid_waits_for_words_are_refused() -> None:
    address, _ = device_array(np.zeros(2, np.uint32))
    main, bad = stream(), Error.CUDA_ERROR_INVALID_VALUE
    fails(bad, driver.cuStreamWaitValue32, main, int(address) + 2, 1, EQ)
    fails(bad, driver.cuStreamWaitValue64, main, int(address) + 4, 1, EQ)
    fails(bad, driver.cuStreamWaitValue32, main, 4096, 1, EQ)
    fails(bad, driver.cuStreamWaitValue32, main, address, 1, 4)


def test_a_word_in_strict_mode_orders_nothing_and_is_no_race(strict: Callable[[int], None]) -> None:
    strict(1)
    address, seen = device_array(np.zeros(2, np.uint32))
    waiting, writing = stream(), stream()
    ok(driver.cuStreamWriteValue32(writing, address, 1, 0))
    ok(driver.cuStreamWaitValue32(waiting, address, 1, EQ))
    ok(driver.cuStreamSynchronize(writing))
    ok(driver.cuStreamSynchronize(waiting))
    synchronize()
    assert seen[0] == 1
