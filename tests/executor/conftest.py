"""An executor on the software GPU for all tests of this folder, and the library of their kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kaas
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.windows.gpu_window import GpuWindow
from kaas.executor.device.windows.pages import Pages
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.executor import Executor
from kaas.executor.plan.graph_cache import GraphCache
from kaas.executor.slots import Slot

KERNELS = Path(__file__).parent / "kernels"

MakeExecutor = Callable[..., Executor]


def opened(ordinal: int, windows: type[ClientWindow] | None = None) -> OpenDevice:
    """Return a software device, perhaps with windows of another kind."""
    device = open_device("software", ordinal)
    if windows is GpuWindow:
        device.windows, device.pages = windows, Pages(ordinal, "a GPU", on_host=False)
    return device


@pytest.fixture(scope="session")
def library() -> kaas.Library:
    return kaas.Library.from_file(KERNELS / "simple.ptx")


@pytest.fixture(scope="session", params=["none", "fence", "fence of a GPU"])
def executor(softgpu: tuple[int, ...], request: pytest.FixtureRequest) -> Iterator[Executor]:  # noqa: ARG001
    """An executor, without fences, with those of a software device, and with those of a GPU."""
    isolation, *of_gpu = request.param.split(" of ")
    made = Executor(opened(0, GpuWindow if of_gpu else None), cache_bytes=64 << 20, isolation=isolation)
    yield made
    made.close()


@pytest.fixture
def make_executor(softgpu: tuple[int, ...]) -> Iterator[MakeExecutor]:  # noqa: ARG001
    """Make new executors with small budgets in bytes, for the device and for the host."""
    made: list[Executor] = []

    def make(
        cache_bytes: int, host_cache_bytes: int = 0, *, windows: type[ClientWindow] | None = None, **options: Any
    ) -> Executor:
        device = opened(1, windows)
        made.append(Executor(device, cache_bytes=cache_bytes, host_cache_bytes=host_cache_bytes, **options))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


def graphs_of(executor: Executor, task: kaas.KTask) -> GraphCache:
    """Return the graphs of the slot in which a kTask has run."""
    slots: list[Slot] = executor._slots.every()
    return next(slot.plans.graphs[task.key] for slot in slots if task.key in slot.plans.graphs)


TEMPORARY = """.version 8.0
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 t) { .reg .b64 %t; ld.param.u64 %t, [t]; st.global.u32 [%t], 1; ret; }
.visible .entry first(.param .u64 t, .param .u64 y)
{ .reg .b64 %t, %y; .reg .b32 %v; ld.param.u64 %t, [t]; ld.param.u64 %y, [y]; ld.global.u32 %v, [%t];
  st.global.u32 [%y], %v; ret; }"""


def with_temporary(nbytes: int) -> kaas.KTask:
    """Return a kTask that needs so many bytes for a while."""
    t, y = kaas.Buffer("t", nbytes // 4, "uint32"), kaas.Buffer("y", 1, "uint32")
    code = kaas.Library.from_ptx(TEMPORARY)
    kernels = [
        kaas.Kernel(code, "touch", 1, 1, [kaas.Out(t)]),
        kaas.Kernel(code, "first", 1, 1, [kaas.In(t), kaas.Out(y)]),
    ]
    return kaas.KTask(kernels, [y])
