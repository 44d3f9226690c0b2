"""Strict mode finds nodes of a graph that touch the same bytes without an edge, whatever the order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Kernels, kernel_params, ok, synchronize
from softgpu.tests.driver.mistakes import BYTES, COUNT, SEEDS, device, failure_message, pinned, stream

pytestmark = pytest.mark.usefixtures("ctx")


def nodes(graph: Any, kinds: str, address: Any) -> list[Any]:
    """Nodes without edges that touch the same bytes: a kernel, a set, a copy out, in the order of their letters."""
    made = []
    for kind in kinds:
        match kind:
            case "k":
                types = (None, ctypes.c_int, ctypes.c_int)
                params = kernel_params(Kernels()["add"], (address, COUNT, 1), types, block=COUNT)
                made.append(ok(driver.cuGraphAddKernelNode(graph, None, 0, params)))
            case "s":
                fill = driver.CUDA_MEMSET_NODE_PARAMS()
                fill.dst, fill.elementSize, fill.width, fill.height, fill.value = address, 4, COUNT, 1, 7
                made.append(ok(driver.cuGraphAddMemsetNode(graph, None, 0, fill, context())))
            case _:
                copy = driver.CUDA_MEMCPY3D()
                copy.srcMemoryType, copy.srcDevice = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE, address
                copy.dstMemoryType, copy.dstHost = driver.CUmemorytype.CU_MEMORYTYPE_HOST, pinned()
                copy.WidthInBytes, copy.Height, copy.Depth = BYTES, 1, 1
                made.append(ok(driver.cuGraphAddMemcpyNode(graph, None, 0, copy, context())))
    return made


def context() -> Any:
    return ok(driver.cuCtxGetCurrent())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kinds", ["ks", "sk", "kc", "ck", "sc", "cs", "kk", "kcs"])
def test_a_missing_edge(library: ctypes.CDLL, strict: Callable[[int], None], kinds: str, seed: int) -> None:
    strict(seed)
    for edge in (True, False):
        graph = ok(driver.cuGraphCreate(0))
        made = nodes(graph, kinds, device())
        for before, after in pairwise(made):
            if edge or after is not made[-1]:
                ok(driver.cuGraphAddDependencies(graph, [before], [after], [driver.CUgraphEdgeData()], 1))
        ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), stream()))
        if edge:
            synchronize()
    assert "no edges of their graph order them" in failure_message(library)


def test_steps_that_only_read_need_no_edge(strict: Callable[[int], None]) -> None:
    strict(0)
    graph = ok(driver.cuGraphCreate(0))
    nodes(graph, "ccc", device())
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), stream()))
    synchronize()


def test_launches_of_one_instance_follow_each_other(strict: Callable[[int], None]) -> None:
    strict(0)
    graph = ok(driver.cuGraphCreate(0))
    nodes(graph, "k", device())
    instance = ok(driver.cuGraphInstantiate(graph, 0))
    for _ in range(3):
        ok(driver.cuGraphLaunch(instance, stream()))
    synchronize()
