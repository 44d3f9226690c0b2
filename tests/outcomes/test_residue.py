"""A client's kernels do not find data of another client's kernels in shared and local memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kaas.executor.device.device import open_device
from kaas.executor.executor import Executor, InputSource, RunRequest
from tests.gpu import residue

CACHE_BYTES = 16 << 20


@pytest.fixture
def executor(softgpu: tuple[int, ...]) -> Iterator[Executor]:  # noqa: ARG001
    made = Executor(open_device("software", 1), slots=2, cache_bytes=CACHE_BYTES)
    yield made
    made.close()


def run(executor: Executor, symbol: str, client: str, slot: int) -> list[int]:
    request = RunRequest(residue.task(symbol), {"out": InputSource(np.zeros(2, np.uint32))}, {}, client)
    return executor.run(request, slot).outputs["out"].tolist()  # type: ignore[no-any-return]


def test_another_client_finds_nothing_in_shared_and_local_memory(executor: Executor) -> None:
    """With any number of slots, and although the clients take turns."""
    for slot in (0, 1, 0):
        run(executor, "leave", "one", 0)
        assert run(executor, "look", "two", slot) == [0, 0]
