"""Graphs of kernel launches: they are built, re-pointed to other parameters, and launched (cuGraphLaunch)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from kaas.executor.device.code import LoadedKernel
from kaas.executor.device.driver_errors import call, check
from kaas.executor.device.partitions import SmPartition
from kaas.executor.device.streams import Stream


@dataclass(frozen=True, slots=True)
class KernelNode:
    """One kernel launch: the kernel, its grid and block, and its dynamic shared memory in bytes."""

    function: LoadedKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int


class ParameterBlock:
    """Host memory for one launch's parameters, in the form in which the driver copies them at each change."""

    __slots__ = ("_launch", "_pointers", "memory", "node_params")

    def __init__(self, launch: KernelNode, initial: bytes, partition: SmPartition | None = None) -> None:
        """partition: of the device, which runs the kernel; None: the whole device."""
        self.memory = bytearray(initial or b"\0")
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        offsets = [offset for offset, _ in launch.function.params]
        self._pointers = (ctypes.c_void_p * max(1, len(offsets)))(*(base + offset for offset in offsets))
        params = driver.CUDA_KERNEL_NODE_PARAMS()
        if partition is None:
            params.func = launch.function.handle
        else:
            params.kern, params.ctx = launch.function.kernel, partition.context
        params.gridDimX, params.gridDimY, params.gridDimZ = launch.grid
        params.blockDimX, params.blockDimY, params.blockDimZ = launch.block
        params.sharedMemBytes = launch.shared_bytes
        params.kernelParams = ctypes.addressof(self._pointers)
        params.extra = 0
        self.node_params = params
        self._launch = launch

    def launch(self, stream: Stream) -> None:
        """Launch the kernel alone, without a graph."""
        node = self._launch
        function, pointers = node.function.handle, ctypes.addressof(self._pointers)
        status = driver.cuLaunchKernel(
            function, *node.grid, *node.block, node.shared_bytes, stream.handle, pointers, 0
        )[0]
        check("cuLaunchKernel", status)


class Graph:
    """A graph of kernel launches, added one by one in an order that respects the edges."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._nodes: list[Any] = []

    def add(self, block: ParameterBlock, after: Sequence[int]) -> None:
        """Add a launch that runs after the launches with these indices."""
        dependencies = [self._nodes[index] for index in after]
        node = call(driver.cuGraphAddKernelNode, self._handle, dependencies, len(dependencies), block.node_params)
        self._nodes.append(node)

    def instantiate(self, launches: int) -> GraphInstance:
        """Return an instance. launches: number of different launches, which recur in the graph in this order."""
        repeated = [self._nodes[index::launches] for index in range(launches)]
        return GraphInstance(call(driver.cuGraphInstantiate, self._handle, 0), repeated)

    def close(self) -> None:
        """Free the graph. Its instances stay."""
        call(driver.cuGraphDestroy, self._handle)


class GraphInstance:
    """A graph that can be launched, also with new parameters. Its runs never overlap."""

    __slots__ = ("_nodes", "handle")

    def __init__(self, handle: Any, nodes: Sequence[Sequence[Any]]) -> None:
        self.handle = handle
        self._nodes = nodes

    def set_parameters(self, indices: Iterable[int], blocks: Sequence[ParameterBlock]) -> None:
        """Give all launches with these indices the parameters that are in their blocks now."""
        handle, set_parameters = self.handle, driver.cuGraphExecKernelNodeSetParams
        for index in indices:
            params = blocks[index].node_params
            for node in self._nodes[index]:
                status = set_parameters(handle, node, params)[0]
                if status:  # checked here first, since this loop is hot
                    check("cuGraphExecKernelNodeSetParams", status)

    def launch(self, stream: Stream, times: int = 1) -> None:
        """Launch the graph so many times, one run after the other."""
        for _ in range(times):
            if status := driver.cuGraphLaunch(self.handle, stream.handle)[0]:
                check("cuGraphLaunch", status)

    def close(self) -> None:
        """Free the instance."""
        call(driver.cuGraphExecDestroy, self.handle)
