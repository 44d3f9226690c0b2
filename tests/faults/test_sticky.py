"""Sticky faults: the request ends with DeviceLost, the executor is lost, and a new one on the device works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kaas
import softgpu as software
from kaas.errors import DeviceLost
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.interpreter import interpret
from tests.faults.conftest import ORDINAL, Open, new_context
from tests.faults.workload import SIZES, Accounting, Case, Draw, attempt, cached, content, right, tasks
from tests.timeouts import TIMEOUT_S

KINDS = {
    "launch_failure": "CUDA_ERROR_LAUNCH_FAILED",
    "illegal_address": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "ecc": "CUDA_ERROR_ECC_UNCORRECTABLE",
    "device_lost": "CUDA_ERROR_UNKNOWN",
}
ENDLESS = Path(software.__file__).parent / "tests" / "compiler" / "kernels" / "endless.ptx"
LOSSES = 100


@pytest.fixture(autouse=True)
def reset(forgiven: None) -> Iterator[None]:  # noqa: ARG001
    yield
    new_context()


def chain(library: kaas.Library) -> Case:
    """Return a case of three kernels, the last one after the others."""
    n = SIZES[1]
    task = tasks(library, n)[1]
    arrays = {"a": content(n, 0), "b": content(n, 1)}
    return Case(RunRequest(task, {"a": cached(n, 0), "b": InputSource(arrays["b"])}, {}), interpret(task, arrays))


def loses(executor: Executor, request: RunRequest) -> DeviceLost:
    with pytest.raises(DeviceLost) as caught:
        executor.run(request)
    assert executor.lost is not None
    assert (executor.lost.code_name, executor.lost.call) == (caught.value.code_name, caught.value.call)
    return caught.value


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_every_kernel(opened: Open, library: kaas.Library, kind: str, at: int) -> None:
    executor, case = opened(), chain(library)
    right(case, executor.run)
    software.inject(software.Fault(kind, at=at), ORDINAL)
    error = loses(executor, case.request)
    assert error.code_name == KINDS[kind]
    assert error.call.startswith("cu")
    assert "kernel" in error.message or kind == "device_lost"
    again = loses(executor, case.request)
    assert again is not error
    assert again.fields == error.fields
    with pytest.raises(DeviceLost):
        executor.load([cached(SIZES[0], 0)])
    executor.close()
    new_context()
    fresh = opened()
    accounting = Accounting(fresh)
    right(case, fresh.run)
    accounting.check()


def test_a_fault_in_a_later_iteration(opened: Open, library: kaas.Library) -> None:
    task = tasks(library, 64)[4]
    software.inject(software.Fault("launch_failure", at=3), ORDINAL)
    assert "kernel axpy" in loses(opened(), RunRequest(task, {"a": cached(64, 0)}, {})).message


def test_a_hung_kernel_that_is_ended_loses_the_device(opened: Open, library: kaas.Library) -> None:
    executor, case = opened(), chain(library)
    software.inject(software.Fault("hang", at=2), ORDINAL)
    ended: list[Any] = []

    def run() -> None:
        ended.append(loses(executor, case.request))

    runs = [threading.Thread(target=run, daemon=True) for _ in range(2)]  # the other one waits for the slot
    for thread in runs:
        thread.start()
    while any(thread.is_alive() for thread in runs):
        software._present().library.softgpu_end_hangs()  # the hang may begin at any time
    assert [error.code_name for error in ended] == ["CUDA_ERROR_LAUNCH_TIMEOUT"] * 2
    new_context()
    right(case, opened().run)


def test_an_endless_kernel_that_is_cancelled_loses_the_device(opened: Open, library: kaas.Library) -> None:
    started, go = kaas.Buffer("started", 1, "int32"), kaas.Buffer("go", 64, "int32")
    endless = kaas.Kernel(kaas.Library.from_file(ENDLESS), "together", 1, 32, [kaas.InOut(started), kaas.InOut(go)])
    zeros = {"started": InputSource(np.zeros(1, np.int32)), "go": InputSource(np.zeros(64, np.int32))}
    executor = opened()
    ended: list[Any] = []
    request = RunRequest(kaas.KTask([endless], [started]), zeros, {})
    thread = threading.Thread(target=lambda: ended.append(loses(executor, request)), daemon=True)
    executor.prepare(request.task)
    thread.start()
    software.cancel(ORDINAL)
    thread.join(TIMEOUT_S)
    assert [error.code_name for error in ended] == ["CUDA_ERROR_LAUNCH_TIMEOUT"]
    new_context()
    right(chain(library), opened().run)


def test_random_losses(opened: Open, library: kaas.Library) -> None:
    draw, lost = Draw(library, 5), 0
    for _ in range(LOSSES):
        executor = opened()
        accounting = Accounting(executor)
        for _ in range(draw.random.randrange(3)):
            right(draw.case(), executor.run)
        accounting.check()
        kind = draw.random.choice(sorted(KINDS))
        software.inject(software.Fault(kind, at=draw.random.randint(1, 3)), ORDINAL)
        case = draw.case()
        error = attempt(case, executor.run, DeviceLost)
        if error is not None:
            assert error.fields["code_name"] == KINDS[kind]
            lost += 1
        executor.close()
        new_context()
    assert lost > LOSSES // 4
