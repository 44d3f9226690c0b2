"""Devices that come and go: those that are away have no worker but such as stop."""

from __future__ import annotations

from kaas.errors import PolicyError
from kaas.scheduling.events import DeviceAdded, DeviceRemoved
from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.reclaiming import FAILED_STARTS
from kaas.scheduling.policies.state import DeviceState


class DevicePresence:
    """Adds devices to what groups may have, and takes them away."""

    def __init__(self, placement: Placement, fair_share: FairShare) -> None:
        self._placement = placement
        self._fair_share = fair_share

    def change(self, event: DeviceAdded | DeviceRemoved) -> None:
        """Take in that a device comes or goes.

        Raises:
            PolicyError: there is no such device.
        """
        device = self._placement.devices.get(event.device)
        if device is None:
            raise PolicyError(f"no such device: {event.device}")
        device.away = isinstance(event, DeviceRemoved)
        if device.away:
            self._remove(device)
        else:
            device.failures = min(device.failures, FAILED_STARTS - 1)  # one more start is tried
            self._placement.free(device)
        self._fair_share.devices = sum(not each.away for each in self._placement.devices.values()) or 1

    def _remove(self, device: DeviceState) -> None:
        device.partition.free.discard(device.index)
        if (group := device.reservation) is not None:
            device.reservation = None
            group.reserved -= 1
            self._placement.held_by(group)
        for worker in [each for each in device.workers.values() if not each.stopping]:
            self._placement.stop(worker)
            worker.group.order.lost(worker)
