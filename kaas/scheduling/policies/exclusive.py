"""Exclusive (paper §4.1.4): no worker serves two functions; each client and function has a group of workers.

A request that its group cannot start at once takes a free device, or one of the largest group if that has more devices;
ties go to the group that gave a device up least recently. Otherwise it waits for a worker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Partition, Serves, partition


class Exclusive(Scheduler):
    """Requests of a group run in the order of their arrival, by `Scheduler.order`.

    kTasks have executors, eTasks processes of their own. `Placement` gives devices to the groups, by their sizes.
    """

    conserving_devices: ClassVar[bool] = False

    def partitions(self, devices: Sequence[PhysicalDevice]) -> list[Partition]:
        """Return one partition of all devices; no worker starts before a request needs one."""
        return [partition(devices)]

    def place(self, kind: WorkerKind, client: str, function: str) -> tuple[Serves, Partition]:
        """Return a group for each client and function."""
        return Serves(kind, client, function), self._placement.partitions[0]
