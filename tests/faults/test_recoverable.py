"""Faults that a device survives: the request succeeds or ends with the fault's error, and leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import kaas
import softgpu as software
from kaas.errors import InputFailed, KaasError, OutOfDeviceMemory, WrongSize
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.executor.interpreter import interpret
from tests.faults.conftest import ORDINAL, Open
from tests.faults.workload import (
    CACHE_BYTES,
    SIZES,
    Accounting,
    Case,
    Draw,
    attempt,
    cached,
    content,
    right,
    tasks,
)

SMALL, _, LARGE = SIZES
MOST_ALLOCATIONS = 8
FAULTS = 1000


def adding(library: kaas.Library, n: int, first: int, second: int) -> Case:
    """Return a case: c = a + b of two objects."""
    task = tasks(library, n)[0]
    arrays = {"a": content(n, first), "b": content(n, second)}
    return Case(RunRequest(task, {"a": cached(n, first), "b": cached(n, second)}, {}), interpret(task, arrays))


def cold(_: Executor, library: kaas.Library) -> Case:
    return adding(library, SMALL, 0, 1)


def warm(executor: Executor, library: kaas.Library) -> Case:
    right(adding(library, SMALL, 0, 1), executor.run)
    return adding(library, SMALL, 0, 1)


def growing(executor: Executor, library: kaas.Library) -> Case:
    """All objects are there, and the arena is too small."""
    right(adding(library, SMALL, 0, 1), executor.run)
    executor.load([cached(LARGE, 0), cached(LARGE, 1)])
    return adding(library, LARGE, 0, 1)


def evicting(executor: Executor, library: kaas.Library) -> Case:
    """The new objects evict the objects that are there."""
    for number in range(2, 8):
        right(adding(library, LARGE, number, number + 1), executor.run)
    assert executor.cache.used_bytes > CACHE_BYTES - 2 * 4 * LARGE
    return adding(library, LARGE, 0, 1)


SITUATIONS = {cold: 3, warm: 0, growing: 1, evicting: 2}
"""Situations, each with the number of allocations that its request makes."""


def run_out(at: int, times: int) -> None:
    """Make `times` allocations in a row fail, beginning with number `at`."""
    for number in range(times):
        software.inject(software.Fault("out_of_memory", at=at + number), ORDINAL)


@pytest.mark.usefixtures("all_given_back")
@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: str(situation.__name__))
def test_out_of_memory_at_every_allocation(
    opened: Open, library: kaas.Library, host_memory: set[int], situation: Callable[..., Case]
) -> None:
    """Two failures in a row fail the request: an allocation is tried again only once."""
    failed = []
    for at in range(1, MOST_ALLOCATIONS + 1):
        executor = opened()
        accounting = Accounting(executor)
        case = situation(executor, library)
        before = executor.cache.sizes
        run_out(at, 2)
        error = attempt(case, executor.run, OutOfDeviceMemory)
        if error is not None:
            assert error.fields["needed_bytes"] > 0
            assert error.fields["code_name"] == "CUDA_ERROR_OUT_OF_MEMORY"
            assert executor.cache.sizes.items() <= before.items()
            failed.append(at)
        software.forgive()
        assert executor.lost is None
        accounting.check()
        right(case, executor.run)
        accounting.check()
        executor.close()
    assert failed == list(range(1, SITUATIONS[situation] + 1))
    assert not host_memory


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: str(situation.__name__))
def test_one_allocation_that_fails_is_survived(
    opened: Open, library: kaas.Library, situation: Callable[..., Case]
) -> None:
    for at in range(1, MOST_ALLOCATIONS + 1):
        executor = opened()
        accounting = Accounting(executor)
        case = situation(executor, library)
        run_out(at, 1)
        right(case, executor.run)
        software.forgive()
        assert executor.cache.device.capacity_bytes == CACHE_BYTES
        accounting.check()
        executor.close()


@pytest.mark.parametrize("at", range(1, 5))
def test_a_slow_copy_changes_nothing(opened: Open, library: kaas.Library, at: int) -> None:
    executor = opened()
    accounting = Accounting(executor)
    software.inject(software.Fault("slow_copy", at=at, seconds=1e-3), ORDINAL)
    right(adding(library, LARGE, 0, 1), executor.run)
    accounting.check()


@pytest.mark.usefixtures("all_given_back")
@pytest.mark.parametrize("pin", [False, True])
def test_objects_that_cannot_be_loaded_ahead(opened: Open, host_memory: set[int], pin: bool) -> None:
    objects = [cached(LARGE, 0), cached(LARGE, 1)]
    for at in (1, 2):
        executor = opened()
        accounting = Accounting(executor)
        run_out(at, 2)
        with pytest.raises(OutOfDeviceMemory):
            executor.load(objects, pin=pin)
        software.forgive()
        assert not executor.cache.sizes
        accounting.check()
        executor.load(objects, pin=pin)
        executor.unpin()
        assert len(executor.cache.sizes) == 2
        accounting.check()
        executor.close()
    assert not host_memory


# --- at random


def unfetchable(source: InputSource) -> InputSource:
    def fetch() -> Any:
        raise ConnectionError("the store is gone")

    return msgspec.structs.replace(source, value=None, key=b"nowhere", fetch=fetch)


def spoil(draw: Draw, case: Case) -> tuple[Case, tuple[type[KaasError], ...]]:
    """Inject a fault, or make the request faulty. Return the case and its possible errors."""
    match draw.random.randrange(6):
        case 0 | 1 | 2:
            run_out(draw.random.randint(1, 4), draw.random.randint(1, 3))
            return case, (OutOfDeviceMemory,)
        case 3:
            software.inject(software.Fault("slow_copy", at=draw.random.randint(1, 4)), ORDINAL)
            return case, ()
        case _:
            return spoil_request(draw, case)


def tend(draw: Draw, executor: Executor) -> None:
    """Load, pin and forget objects, which a fault may prevent."""
    chosen = [cached(SMALL, 0), cached(LARGE, draw.random.randrange(3))]
    keys = [source.key for source in chosen if source.key is not None]
    run_out(draw.random.randint(1, 6), 2)
    try:
        executor.load(chosen, pin=draw.random.random() < 0.5)
    except OutOfDeviceMemory:
        assert not executor.cache.pinned
    executor.unpin()
    executor.flush(keys if draw.random.random() < 0.8 else None)
    assert not executor.cache.sizes.keys() & set(keys)


def spoil_request(draw: Draw, case: Case) -> tuple[Case, tuple[type[KaasError], ...]]:
    """Make the request faulty. Return the case and its error."""
    inputs = dict(case.request.inputs)
    name = draw.random.choice(sorted(inputs))
    if draw.random.random() < 0.5:
        inputs[name] = unfetchable(inputs[name])
        return Case(msgspec.structs.replace(case.request, inputs=inputs), {}), (InputFailed,)
    inputs[name] = InputSource(key=b"too-small", fetch=lambda: content(8, 1))
    return Case(msgspec.structs.replace(case.request, inputs=inputs), {}), (WrongSize,)


@pytest.mark.slow
@pytest.mark.usefixtures("all_given_back")
@pytest.mark.parametrize("seed", range(2))
def test_a_thousand_random_faults(opened: Open, library: kaas.Library, host_memory: set[int], seed: int) -> None:
    executor = opened()
    accounting = Accounting(executor)
    draw = Draw(library, seed)
    ended: Counter[str] = Counter()
    for _ in range(FAULTS):
        case, possible = spoil(draw, draw.case())
        before = executor.cache.sizes
        error = attempt(case, executor.run, *possible)
        ended[type(error).__name__] += 1
        if error is not None:
            assert executor.cache.sizes.items() <= before.items()
        if draw.random.random() < 0.1:
            tend(draw, executor)
        software.forgive()
        accounting.check()
        right(draw.case(), executor.run)
        accounting.check()
    assert ended.keys() == {"NoneType", "OutOfDeviceMemory", "InputFailed", "WrongSize"}
    assert min(ended.values()) >= FAULTS // 50
    executor.close()
    assert not host_memory
