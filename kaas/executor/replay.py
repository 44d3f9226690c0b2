"""A plan in a slot: its graph, and the instances of it that are launched again and again, with what they point to."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from kaas.executor.arena import Layout
from kaas.executor.device import Device, Graph, GraphInstance, ParameterBlock
from kaas.executor.plan import Plan

T = TypeVar("T")

MAX_INSTANCES = 2
"""Two let a function alternate between two sets of addresses without re-pointing; more would only cost memory."""

_MAX_LAYOUTS = 16

_write_address = struct.Struct("<Q").pack_into


@dataclass(frozen=True, slots=True)
class Placement:
    """A layout with the arena at an address.

    Fields:
        addresses: of every buffer, then of every table; 0 for what does not lie in the arena.
    """

    arena: int
    addresses: list[int]


@dataclass(frozen=True, slots=True)
class Values:
    """What a request gives a plan's launches: addresses as in its Placement, but with none left open, and scalars."""

    placement: Placement
    addresses: list[int]
    scalars: list[bytes]


class Replay:
    """One plan's graph in one slot. Use it inside `device.current()`."""

    def __init__(self, plan: Plan, device: Device) -> None:
        self.plan = plan
        self._graph = _build(plan, device.graph())
        self._instances: list[_Instance] = []
        self._layouts: dict[int, Layout] = {}
        self._placements: dict[int, Placement] = {}

    def layout(self, resident: int) -> Layout:
        """`Plan.layout`, remembered."""
        known = self._layouts.get(resident)
        if known is None:
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
                self._placements.clear()
            known = self._layouts[resident] = self.plan.layout(resident)
        return known

    def place(self, resident: int, arena: int) -> Placement:
        """The layout for these resident inputs with the arena at this address, remembered while it stays there."""
        known = self._placements.get(resident)
        if known is None or known.arena != arena:
            addresses = [0] * len(self.plan.address_patches)
            for index, offset in self.layout(resident).offsets.items():
                addresses[index] = arena + offset
            known = self._placements[resident] = Placement(arena, addresses)
        return known

    def bind(self, values: Values) -> GraphInstance:
        """An instance whose launches have these values: the one that differs least from them, re-pointed."""
        best: tuple[_Instance, _Changes] | None = None
        for instance in self._instances:
            changes = instance.changes(values)
            if not changes.patches:
                return instance.graph
            if best is None or changes.patches < best[1].patches:
                best = instance, changes
        if len(self._instances) < MAX_INSTANCES:
            instance = _Instance(self.plan, self._graph.instantiate())
            self._instances.append(instance)
            best = instance, instance.changes(values)
        assert best is not None
        instance, changes = best
        instance.point(values, changes)
        return instance.graph

    def close(self) -> None:
        for instance in self._instances:
            instance.graph.close()
        self._instances.clear()
        self._graph.close()


def _build(plan: Plan, graph: Graph) -> Graph:
    after: list[list[int]] = [[] for _ in plan.launches]
    for before, later in plan.task.edges:
        after[later].append(before)
    try:
        for launch, parameters, dependencies in zip(plan.launches, plan.parameters, after, strict=True):
            graph.add(ParameterBlock(launch, parameters), dependencies)
    except BaseException:
        graph.close()
        raise
    return graph


@dataclass(frozen=True, slots=True)
class _Changes:
    """What would have to change in an instance: indices of addresses and of scalars, and in how many places."""

    addresses: Sequence[int]
    scalars: Sequence[int]
    patches: int


class _Instance:
    """A graph instance, with the parameters of its launches in host memory, where they are changed in place."""

    __slots__ = ("_blocks", "_memories", "_plan", "_values", "graph")

    def __init__(self, plan: Plan, graph: GraphInstance) -> None:
        self.graph = graph
        self._plan = plan
        self._blocks = [ParameterBlock(launch, parameters)
                        for launch, parameters in zip(plan.launches, plan.parameters, strict=True)]  # fmt: skip
        self._memories = [block.memory for block in self._blocks]
        self._values: Values | None = None

    def changes(self, values: Values) -> _Changes:
        plan, old = self._plan, self._values
        if old is None:
            addresses: Sequence[int] = range(len(values.addresses))
            scalars: Sequence[int] = range(len(values.scalars))
        else:
            # With the arena where it was, only inputs can have moved.
            candidates = plan.inputs if old.placement is values.placement else range(len(values.addresses))
            addresses = _differences(candidates, old.addresses, values.addresses)
            scalars = _differences(range(len(values.scalars)), old.scalars, values.scalars)
        patches = 0
        for index in addresses:
            patches += len(plan.address_patches[index])
        for index in scalars:
            patches += len(plan.scalar_patches[index])
        return _Changes(addresses, scalars, patches)

    def point(self, values: Values, changes: _Changes) -> None:
        """Gives the values to the launches that have others."""
        self._values = None  # should the driver refuse half way through, nothing counts as set
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
        self.graph.set_parameters(launches, self._blocks)
        self._values = values


def _differences(indices: Sequence[int], old: Sequence[T], new: Sequence[T]) -> Sequence[int]:
    return () if old == new else [index for index in indices if old[index] != new[index]]
