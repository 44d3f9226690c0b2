"""Strict mode for single tests, on a device that other tests do not use, since mistakes may lose it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kaas
import softgpu as software
from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor
from tests.faults.conftest import ORDINAL, new_context

KERNELS = Path(__file__).parents[1] / "executor" / "kernels"


@pytest.fixture(scope="session")
def library() -> kaas.Library:
    return kaas.Library.from_file(KERNELS / "simple.ptx")


@pytest.fixture
def strict(softgpu: tuple[int, ...]) -> Iterator[Callable[[int], None]]:  # noqa: ARG001
    """Return a function that turns strict mode on with a seed, until the test ends."""
    yield software.set_strict
    software.set_strict(None)
    new_context()


@pytest.fixture
def opened(strict: Callable[[int], None]) -> Iterator[Callable[..., Executor]]:
    """Return a function (seed, options) that makes executors in strict mode. They are closed at the end."""
    made: list[Executor] = []

    def make(seed: int, **options: Any) -> Executor:
        strict(seed)
        made.append(Executor(open_device("software", ORDINAL), **options))
        return made[-1]

    yield make
    for executor in made:
        executor.close()
