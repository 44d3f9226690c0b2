"""Executors that fail on purpose, on a device that other tests do not use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda.bindings import driver

import kaas
import softgpu as software
from kaas.executor.device.device import open_device
from kaas.executor.device.device_memory import HostMemory
from kaas.executor.device.driver_errors import call
from kaas.executor.executor import Executor
from tests.faults.workload import CACHE_BYTES, HOST_BYTES, WHOLE_BYTES

ORDINAL = 1
KERNELS = Path(__file__).parents[1] / "executor" / "kernels"

Open = Callable[..., Executor]


def new_context() -> None:
    """Reset a lost device, as the end of its process does: everything in its context is freed."""
    software.forgive()
    context = call(driver.cuDevicePrimaryCtxRetain, ORDINAL)
    while int(call(driver.cuCtxGetCurrent)) == int(context):
        call(driver.cuCtxPopCurrent)  # lost executors leave the context on their threads
    call(driver.cuDevicePrimaryCtxReset, ORDINAL)


@pytest.fixture(scope="session")
def library() -> kaas.Library:
    return kaas.Library.from_file(KERNELS / "simple.ptx")


@pytest.fixture(autouse=True)
def forgiven(softgpu: tuple[int, ...]) -> Iterator[None]:  # noqa: ARG001
    yield
    software.forgive()


@pytest.fixture
def opened(forgiven: None) -> Iterator[Open]:  # noqa: ARG001
    """Make executors with small budgets, and close them at the end."""
    made: list[Executor] = []

    def make(**options: Any) -> Executor:
        sizes: dict[str, Any] = {
            "cache_bytes": CACHE_BYTES,
            "host_cache_bytes": HOST_BYTES,
            "whole_object_bytes": WHOLE_BYTES,
        }
        made.append(Executor(open_device("software", ORDINAL), **(sizes | options)))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def all_given_back(forgiven: None) -> Iterator[None]:  # noqa: ARG001
    """Check that the device has as much free memory at the end as before; for `usefixtures`, which come first."""
    observer = open_device("software", ORDINAL)
    with observer.context:
        before = observer.free_bytes()
    yield
    with observer.context:
        assert observer.free_bytes() == before
    observer.close()


@pytest.fixture
def host_memory(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the addresses of all page-locked memory that executors have not freed."""
    live: set[int] = set()
    init, close = HostMemory.__init__, HostMemory.close

    def counted(self: HostMemory, address: int, nbytes: int) -> None:
        live.add(address)
        init(self, address, nbytes)

    def discounted(self: HostMemory) -> None:
        live.remove(self.address)
        close(self)

    monkeypatch.setattr(HostMemory, "__init__", counted)
    monkeypatch.setattr(HostMemory, "close", discounted)
    return live
