"""Faults with several requests at a time: each succeeds or ends with its error, and does not harm the others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import kaas
import softgpu as software
from kaas.errors import DeviceLost, OutOfDeviceMemory
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.faults.conftest import ORDINAL, Open, new_context
from tests.faults.test_recoverable import spoil, spoil_request
from tests.faults.workload import SIZES, Accounting, Draw, attempt, content, right, tasks
from tests.timeouts import TIMEOUT_S

SLOTS = 2
ROUNDS = 250
LOSSES = 40


@pytest.fixture
def reset(forgiven: None) -> Iterator[None]:  # noqa: ARG001
    yield
    new_context()


def together(work: Callable[[int], Counter[str]]) -> Counter[str]:
    """Run the work in as many threads as there are slots. Return the number of requests by their end."""
    with ThreadPoolExecutor(SLOTS) as threads:
        counts = [threads.submit(work, number) for number in range(SLOTS)]
        return sum((count.result(TIMEOUT_S) for count in counts), Counter())


@pytest.mark.usefixtures("all_given_back")
def test_random_faults_in_two_slots(opened: Open, library: kaas.Library, host_memory: set[int]) -> None:
    executor = opened(slots=SLOTS)
    accounting = Accounting(executor)

    def work(number: int) -> Counter[str]:
        draw, ended = Draw(library, number), Counter[str]()
        for _ in range(ROUNDS):
            case, possible = spoil(draw, draw.case())
            error = attempt(case, executor.run, *possible, OutOfDeviceMemory)  # the fault may be the other thread's
            ended[type(error).__name__] += 1
            software.forgive()  # also the faults for the other thread
        return ended

    ended = together(work)
    assert ended.keys() == {"NoneType", "OutOfDeviceMemory", "InputFailed", "WrongSize"}
    assert executor.lost is None
    accounting.check()
    draw = Draw(library, SLOTS)
    for _ in range(10):
        right(draw.case(), executor.run)
    accounting.check()
    executor.close()
    assert not host_memory


def test_a_failing_neighbour_changes_no_result(opened: Open, library: kaas.Library) -> None:
    executor = opened(slots=SLOTS)

    def work(number: int) -> Counter[str]:
        draw, ended = Draw(library, number), Counter[str]()
        for _ in range(ROUNDS):
            if number == 0:
                right(draw.case(), executor.run)
                continue
            case, possible = spoil_request(draw, draw.case())
            error = attempt(case, executor.run, *possible)
            ended[type(error).__name__] += 1
        return ended

    ended = together(work)
    assert ended.keys() == {"InputFailed", "WrongSize"}


@pytest.mark.usefixtures("reset")
@pytest.mark.parametrize("kind", ["launch_failure", "device_lost"])
def test_running_requests_fail_when_the_device_is_lost(opened: Open, library: kaas.Library, kind: str) -> None:
    lost = 0
    for round_number in range(LOSSES // 2):
        executor = opened(slots=SLOTS)
        software.inject(software.Fault(kind, at=1 + 3 * round_number % 20), ORDINAL)

        def work(number: int, executor: Executor = executor, seed: int = 2 * round_number) -> Counter[str]:
            draw, ended = Draw(library, seed + number), Counter[str]()
            for _ in range(6):
                error = attempt(draw.case(), executor.run, DeviceLost)
                ended[type(error).__name__] += 1
                if error is not None:
                    assert executor.lost is not None
                    assert isinstance(attempt(draw.case(), executor.run, DeviceLost), DeviceLost)
                    break
            return ended

        lost += together(work)["DeviceLost"]
        executor.close()
        new_context()
    assert lost > LOSSES // 2


@pytest.mark.usefixtures("reset")
def test_requests_that_wait_for_room_fail_when_the_device_is_lost(opened: Open, library: kaas.Library) -> None:
    """One request has most of the memory and hangs. The other waits for room, and is not part of the fault."""
    n = SIZES[-1]
    values = {name: InputSource(content(n, number)) for number, name in enumerate("ab")}
    request = RunRequest(tasks(library, n)[1], values, {})
    executor = opened(slots=SLOTS)
    software.inject(software.Fault("hang"), ORDINAL)
    ended: list[Any] = []

    def run() -> None:
        with pytest.raises(DeviceLost) as caught:
            executor.run(request)
        ended.append(caught.value.code_name)

    runs = [threading.Thread(target=run, daemon=True) for _ in range(SLOTS)]
    for thread in runs:
        thread.start()
    end = time.monotonic() + TIMEOUT_S
    while not executor._admission._queue:
        assert time.monotonic() < end
    while any(thread.is_alive() for thread in runs):
        software._present().library.softgpu_end_hangs()
        assert time.monotonic() < end
    assert ended == ["CUDA_ERROR_LAUNCH_TIMEOUT"] * SLOTS
