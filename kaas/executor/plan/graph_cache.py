"""The plans of a slot: their graphs, with instances that are launched again and again with the values they point to.

A kTask that repeats its kernels has a graph of one iteration, and graphs of several iterations in a row. So many
iterations take few launches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import msgspec

from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_memory import HOST_ROOM
from kaas.executor.device.graphs import Graph, GraphInstance, ParameterBlock
from kaas.executor.device.partitions import SmPartition
from kaas.executor.device.streams import EventPair, Stream
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.plan.arena import Layout
from kaas.executor.plan.loaded_kernels import LoadedKernels
from kaas.executor.plan.plan import Plan, make_plan
from kaas.executor.profile import KernelTime, launch_timed
from kaas.ktask.graph import KTask

T = TypeVar("T")

MAX_PLANS = 256
"""Plans that a slot keeps. Beyond them it drops the least recently used plan, with its graph."""

MAX_INSTANCES = 2
"""Two instances let a function alternate between two sets of addresses without re-pointing. More cost only memory."""

CHAIN_GROWTH = 4
"""The ratio of lengths of a chain and the next shorter one. A chain is made for requests that launch it at least so
many times: for fewer launches, changing its many parameters takes longer than the launches that it saves."""

MAX_PARTITION_KERNELS = 1024
"""Kernels of a plan's graphs for parts of the device: beyond them, graphs are closed that were used longest ago. They
take 2 to 3 KB each. The graphs of one request have fewer, or there is one."""

MAX_CHAIN_KERNELS = 128
"""The most kernels of a chain: its launch then costs little compared with even the smallest kernels."""

_MAX_LAYOUTS = 16

_EVENT_PAIRS = 32
"""The most launches that a profiled request has under way at once."""

_write_address = struct.Struct("<Q").pack_into


Launches = list[tuple[GraphInstance, int]]
"""(Graph instance, number of launches), in the order of the launches."""


@dataclass(frozen=True, slots=True)
class ArenaPlacement:
    """A layout with the arena at an address.

    Fields:
        arena: address of the arena.
        addresses: of every buffer, then of every table; 0 for those outside the arena.
        open: indices of the buffers that may have another address in each request.
    """

    arena: int
    addresses: list[int]
    open: tuple[int, ...]


class LaunchValues(msgspec.Struct, frozen=True):
    """The values of a request for a plan's launches: the addresses of its placement, completed, and the scalars.

    A Struct, since each warm request makes one.
    """

    placement: ArenaPlacement
    addresses: list[int]
    scalars: list[bytes]


class GraphCache:
    """One plan's graphs in one slot. Use it inside `device.context`."""

    def __init__(self, plan: Plan, device: OpenDevice) -> None:
        self.plan = plan
        self._device = device
        self._event_pairs: list[EventPair] = []
        self._chains: dict[tuple[int, SmPartition | None], _Chain] = {(1, None): _Chain(plan, device.graph(), 1)}
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._placements: dict[tuple[int, int], ArenaPlacement] = {}

    def layout(self, resident: int, kept: int = 0) -> Layout:
        """Return `Plan.layout`, from a cache."""
        known = self._layouts.get((resident, kept))
        if known is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
                self._placements.clear()
            known = self._layouts[resident, kept] = self.plan.layout(resident, kept)
        return known

    def place(self, resident: int, arena: int, kept: int = 0) -> ArenaPlacement:
        """Return `layout` with the arena at this address, from a cache while the arena stays there."""
        known = self._placements.get((resident, kept))
        if known is None or known.arena != arena:
            plan = self.plan
            addresses = [0] * len(plan.address_patches)
            for index, offset in self.layout(resident, kept).offsets.items():
                addresses[index] = arena + offset
            elsewhere = dict.fromkeys((*plan.inputs, *plan.outputs)) if kept else plan.inputs
            known = self._placements[resident, kept] = ArenaPlacement(arena, addresses, tuple(elsewhere))
        return known

    def bind(self, values: LaunchValues, iterations: int = 1, partition: SmPartition | None = None) -> Launches:
        """Return the launches that run the kernels so many times with these values.

        partition: of the device, on which they run; None: the whole device.

        Raises:
            OutOfDeviceMemory: this process may not take the local memory of the kernels.
        """
        self._check_room()
        if iterations == 1:
            return [(self._chain(1, partition).bind(values).graph, 1)]
        parts = split(iterations, len(self.plan.launches))
        return [(self._chain(length, partition).bind(values).graph, times) for length, times in parts]

    def profile(
        self, values: LaunchValues, stream: Stream, iterations: int = 1, partition: SmPartition | None = None
    ) -> tuple[KernelTime, ...]:
        """Run the kernels so many times with these values, one by one, and return their times.

        partition: of the device, as of `bind`.
        """
        self._check_room()
        if not self._event_pairs:
            self._event_pairs = [EventPair() for _ in range(_EVENT_PAIRS)]
        blocks = self._chain(1, partition).bind(values).blocks
        kernels = self.plan.task.kernels
        if partition is None:
            times = launch_timed(blocks, iterations, stream, self._event_pairs)
        else:  # only the node of a graph has a partition in a stream of the whole device
            with ExitStack() as graphs:
                alone = [graphs.enter_context(closing(self._alone(block))) for block in blocks]
                times = launch_timed(alone, iterations, stream, self._event_pairs)
        return tuple(
            KernelTime(kernel.symbol, index, seconds, iterations)
            for index, (kernel, seconds) in enumerate(zip(kernels, times, strict=True))
        )

    def close(self) -> None:
        """Free the graphs and the events."""
        while self._event_pairs:
            self._event_pairs.pop().close()
        while self._chains:
            self._chains.popitem()[1].close()

    def _check_room(self) -> None:
        if self.plan.local_bytes:
            HOST_ROOM.check(self.plan.local_bytes, self._device.info().name)

    def _alone(self, block: ParameterBlock) -> GraphInstance:
        """Return a graph of one launch."""
        with closing(self._device.graph()) as graph:
            graph.add(block, ())
            return graph.instantiate(1)

    def _chain(self, length: int, partition: SmPartition | None) -> _Chain:
        chain = self._chains.pop((length, partition), None)
        if chain is None:
            if partition is not None:
                self._make_room(length)
            chain = _Chain(self.plan, self._device.graph(), length, partition)
        self._chains[length, partition] = chain  # the last one is the most recently used
        return chain

    def _make_room(self, length: int) -> None:
        """Close graphs of parts of the device until there is room for another one."""
        kept = [key for key in self._chains if key[1] is not None]
        while kept and (length + sum(each for each, _ in kept)) * len(self.plan.launches) > MAX_PARTITION_KERNELS:
            self._chains.pop(kept.pop(0)).close()


class SlotPlans:
    """The plans of one slot. Use it inside `device.context`. Any thread may `unload`; one at a time calls the rest.

    Fields:
        kernels: the loaded code. graphs: by the kTask's key, the least recently used first.
        current: the plan of the present request, whose code stays; None: the slot has no request.
    """

    def __init__(self, device: OpenDevice, window: ClientWindow | None) -> None:
        """window: the kernels are confined to it; None: they are not."""
        self._device = device
        self._lock = Lock()
        self.kernels = LoadedKernels(device, window)
        self.graphs: dict[str, GraphCache] = {}
        self.current: Plan | None = None

    def get(self, task: KTask, capacity_bytes: int, client: str | None = None) -> GraphCache:
        """Return the plan of a kTask with its graphs, which the kTask's first request makes. It is the current one.

        Args:
            task: the kTask.
            capacity_bytes: of the device's cache.
            client: the client of the request, if it has one.

        Raises:
            The errors of `make_plan`.
        """
        with self._lock:
            graphs = self._get(task, capacity_bytes)
            if client is not None and graphs.plan.globals:
                stale = {library.name for library in graphs.plan.globals if library.stale(client)}
                if stale:
                    self._drop(stale)
                    graphs = self._get(task, capacity_bytes)
            self.current = graphs.plan
            return graphs

    def unload(self) -> bool:
        """Unload code with variables that the current plan does not use; return False if there is none."""
        with self._lock:
            used = self.current.globals if self.current is not None else ()
            idle = self.kernels.with_globals() - {library.name for library in used}
            self._drop(idle)
            return bool(idle)

    def close(self) -> None:
        """Free the plans and unload their code; the last request must have ended."""
        with self._lock:
            while self.graphs:
                self.graphs.popitem()[1].close()
            self.kernels.close()

    def _get(self, task: KTask, capacity_bytes: int) -> GraphCache:
        graphs = self.graphs.pop(task.key, None)
        if graphs is None:
            device = self._device
            name = device.info().name
            plan = make_plan(task, self.kernels, device.limits, capacity_bytes, name, apart=device.checks)
            graphs = GraphCache(plan, device)
            if len(self.graphs) >= MAX_PLANS:
                self.graphs.pop(next(iter(self.graphs))).close()
                in_use = (graphs, *self.graphs.values())
                self.kernels.keep({library.hash for one in in_use for library in one.plan.task.libraries})
        self.graphs[task.key] = graphs  # the last one is the most recently used
        return graphs

    def _drop(self, libraries: AbstractSet[str]) -> None:
        for key, graphs in list(self.graphs.items()):
            if any(library.name in libraries for library in graphs.plan.globals):
                self.graphs.pop(key).close()
        self.kernels.drop(libraries)


def split(iterations: int, kernels: int) -> list[tuple[int, int]]:
    """Return (length, times) of the chains that make so many iterations of so many kernels, the longest first."""
    lengths = [1]
    while (length := lengths[-1] * CHAIN_GROWTH) * kernels <= MAX_CHAIN_KERNELS and iterations >= length * CHAIN_GROWTH:
        lengths.append(length)
    parts = []
    for length in reversed(lengths):
        times, iterations = divmod(iterations, length)
        if times:
            parts.append((length, times))
    return parts


class _Chain:
    """A graph of several iterations, which run one after the other, and its instances."""

    def __init__(self, plan: Plan, graph: Graph, length: int, partition: SmPartition | None = None) -> None:
        self._plan = plan
        self._graph = graph
        self._partition = partition
        self._instances: list[_Instance] = []
        _build(plan, graph, length, partition)

    def bind(self, values: LaunchValues) -> _Instance:
        """Re-point the instance that differs least from these values, and return it."""
        best: tuple[_Instance, _InstanceChanges] | None = None
        for instance in self._instances:
            changes = instance.changes(values)
            if changes is _NO_CHANGES:
                return instance
            if best is None or changes.patches < best[1].patches:
                best = instance, changes
        if len(self._instances) < MAX_INSTANCES:
            graph = self._graph.instantiate(len(self._plan.launches))
            instance = _Instance(self._plan, graph, self._partition)
            self._instances.append(instance)
            best = instance, instance.changes(values)
        assert best is not None
        instance, changes = best
        instance.point(values, changes)
        return instance

    def close(self) -> None:
        for instance in self._instances:
            instance.graph.close()
        self._instances.clear()
        self._graph.close()


def _build(plan: Plan, graph: Graph, length: int, partition: SmPartition | None) -> None:
    after: list[list[int]] = [[] for _ in plan.launches]
    for before, later in plan.task.edges:
        after[later].append(before)
    last = set(range(len(after))).difference(before for before, _ in plan.task.edges)
    blocks = plan.parameter_blocks(partition)
    try:
        for start in range(0, length * len(blocks), len(blocks)):
            former = [start - len(blocks) + index for index in last] if start else []
            for block, dependencies in zip(blocks, after, strict=True):
                graph.add(block, [start + index for index in dependencies] or former)
    except BaseException:
        graph.close()
        raise


class _InstanceChanges(msgspec.Struct, frozen=True):
    """The changes that an instance needs: indices of addresses and of scalars, and the number of patches."""

    addresses: Sequence[int]
    scalars: Sequence[int]
    patches: int


_NO_CHANGES = _InstanceChanges((), (), 0)


class _Instance:
    """A graph instance with the parameters of its launches in host memory, which are changed in place.

    All iterations have the same parameters.
    """

    __slots__ = ("_memories", "_plan", "_values", "blocks", "graph")

    def __init__(self, plan: Plan, graph: GraphInstance, partition: SmPartition | None) -> None:
        self.graph = graph
        self._plan = plan
        self.blocks = plan.parameter_blocks(partition)
        self._memories = [block.memory for block in self.blocks]
        self._values: LaunchValues | None = None

    def changes(self, values: LaunchValues) -> _InstanceChanges:
        plan, old = self._plan, self._values
        if old is not None and old.addresses == values.addresses and old.scalars == values.scalars:
            return _NO_CHANGES
        if old is None:
            addresses: Sequence[int] = range(len(values.addresses))
            scalars: Sequence[int] = range(len(values.scalars))
        else:
            # If the arena is where it was, only buffers outside of it can have moved.
            candidates = old.placement.open if old.placement is values.placement else range(len(values.addresses))
            addresses = _differences(candidates, old.addresses, values.addresses)
            scalars = _differences(range(len(values.scalars)), old.scalars, values.scalars)
        patches = 0
        for index in addresses:
            patches += len(plan.address_patches[index])
        for index in scalars:
            patches += len(plan.scalar_patches[index])
        return _InstanceChanges(addresses, scalars, patches)

    def point(self, values: LaunchValues, changes: _InstanceChanges) -> None:
        """Set the values in the launches that have other ones."""
        self._values = None  # if the driver refuses half way through, no value counts as set
        memories = self._memories
        launches: set[int] = set()
        for index in changes.addresses:
            address = values.addresses[index]
            for launch, at, offset_bytes in self._plan.address_patches[index]:
                _write_address(memories[launch], at, address + offset_bytes)
                launches.add(launch)
        for index in changes.scalars:
            data = values.scalars[index]
            for launch, at, _ in self._plan.scalar_patches[index]:
                memories[launch][at : at + len(data)] = data
                launches.add(launch)
        self.graph.set_parameters(launches, self.blocks)
        self._values = values


def _differences(indices: Sequence[int], old: Sequence[T], new: Sequence[T]) -> Sequence[int]:
    return () if old == new else [index for index in indices if old[index] != new[index]]
