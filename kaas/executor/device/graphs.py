"""Graphs of kernel launches: built, given other parameters, and launched (cuGraphLaunch)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from kaas.executor.device.code import LoadedKernel
from kaas.executor.device.driver_errors import call, check
from kaas.executor.device.streams import Stream


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel launch: kernel, grid, and where its parameters lie in host memory (the driver copies them)."""

    function: LoadedKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class ParameterBlock:
    """Host memory for one launch's parameters, in the form in which the driver takes them over again and again."""

    __slots__ = ("_launch", "_pointers", "memory", "node_params")

    def __init__(self, launch: KernelNode, initial: bytes) -> None:
        self.memory = bytearray(initial or b"\0")
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        offsets = [offset for offset, _ in launch.function.params]
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*(base + offset for offset in offsets))
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = launch.function.handle
        params.gridDimX, params.gridDimY, params.gridDimZ = launch.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = launch.block
        params.sharedMemBytes = launch.shared_bytes
        params.kernelParams = ctypes.addressof(self._pointers)
        params.extra = 0
        self.node_params = params
        self._launch = launch

    def launch(self, stream: Stream) -> None:
        """Launch it alone, without a graph."""
        what = self._launch
        function, pointers = what.function.handle, ctypes.addressof(self._pointers)
        status = driver.cuLaunchKernel(
            function, *what.grid, *what.block, what.shared_bytes, stream.handle, pointers, 0
        )[0]
        check("cuLaunchKernel", status)


class Graph:
    """A graph of kernel launches, added one by one in an order that respects the edges."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._nodes: list[Any] = []

    def add(self, block: ParameterBlock, after: Sequence[int]) -> None:
        """Add a launch that runs after those with these indices."""
        dependencies = [self._nodes[index] for index in after]
        node = call(driver.cuGraphAddKernelNode, self._handle, dependencies, len(dependencies), block.node_params)
        self._nodes.append(node)

    def instantiate(self, launches: int) -> GraphInstance:
        """Return an instance. launches: how many launches differ; they recur in the graph, always in this order."""
        repeated = [self._nodes[index::launches] for index in range(launches)]
        return GraphInstance(call(driver.cuGraphInstantiate, self._handle, 0), repeated)

    def close(self) -> None:
        call(driver.cuGraphDestroy, self._handle)


class GraphInstance:
    """A graph that can be launched, with new parameters for its launches. It cannot run beside itself."""

    __slots__ = ("_nodes", "handle")

    def __init__(self, handle: Any, nodes: Sequence[Sequence[Any]]) -> None:
        self.handle = handle
        self._nodes = nodes

    def set_parameters(self, indices: Iterable[int], blocks: Sequence[ParameterBlock]) -> None:
        """Give the launches with these indices, wherever they come, the parameters in their blocks now."""
        handle, set_parameters = self.handle, driver.cuGraphExecKernelNodeSetParams
        for index in indices:
            params = blocks[index].node_params
            for node in self._nodes[index]:
                status = set_parameters(handle, node, params)[0]
                if status:  # here too, since there are many
                    check("cuGraphExecKernelNodeSetParams", status)

    def launch(self, stream: Stream, times: int = 1) -> None:
        for _ in range(times):
            check("cuGraphLaunch", driver.cuGraphLaunch(self.handle, stream.handle)[0])

    def close(self) -> None:
        call(driver.cuGraphExecDestroy, self.handle)
