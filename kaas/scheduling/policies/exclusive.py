"""Exclusive (paper §4.1.4): no worker serves two functions; a crew for each client and function, of what devices it can
hold against the others.

A request that its crew cannot start at once takes a free device, or one of the largest crew if that has more devices;
ties go to the crew that gave one up least recently. Otherwise it waits for a worker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Partition, Serves, partition


class Exclusive(Scheduler):
    """Requests of a crew run in the order of their arrival. kTasks have executors, eTasks their own processes."""

    conserving_devices: ClassVar[bool] = False

    def partitions(self, devices: Sequence[PhysicalDevice]) -> list[Partition]:
        return [partition(devices)]

    def place(self, kind: WorkerKind, client: str, function: str) -> tuple[Serves, Partition]:
        return Serves(kind, client, function), self._placement.partitions[0]
