"""How many requests a device may run at a time (MQFQ-Sticky paper, section 4.3: D, fixed or by utilisation)."""

from __future__ import annotations

from collections.abc import Sequence

from kaas.scheduling.events import PhysicalDevice, Utilisation
from kaas.scheduling.policies.options import check_most, check_number, check_whole
from kaas.scheduling.policies.state import WorkerState

POLL_S = 0.2
"""The period of the devices' utilisation: the paper's."""


class DeviceTokens:
    """Gives a device tokens, of which each request that runs there has one.

    Args:
        most: tokens of a device; None: two; "utilisation": as many as slots, as long as the device's measured
            utilisation, smoothed, is at most `limit`, a part of 1.

    Fields:
        poll_s: the period in which the utilisation is needed; None if it is not.
    """

    def __init__(self, devices: Sequence[PhysicalDevice], most: int | str | None, limit: float) -> None:
        check_number("mqfq_sticky", "limit", limit, most=1)
        if most is not None and most != "utilisation":
            check_whole("mqfq_sticky", "D", most, least=1)
            fewest = min((each.slots for each in devices if each.slots is not None), default=None)
            check_most("mqfq_sticky", "D", most, fewest, "slots")
        self._most, self._limit = most if isinstance(most, int) else 2, limit
        self._busy: dict[int, float] | None = {} if most == "utilisation" else None
        self.poll_s = None if self._busy is None else POLL_S

    def left(self, worker: WorkerState) -> bool:
        """Return True if the device of a worker may run one more request."""
        if self._busy is not None:
            return not worker.running or self._busy.get(worker.device.index, 0.0) <= self._limit
        return len(worker.running) < self._most

    def measured(self, event: Utilisation) -> bool:
        """Take in a device's utilisation: half of the last value stays. Return True if tokens may have come back."""
        if self._busy is None:
            return False
        before = self._busy.get(event.device, event.busy)
        self._busy[event.device] = (before + event.busy) / 2
        return before > self._limit

    def taken(self, worker: WorkerState) -> None:
        """Count the request that was just dispatched to a device as a part of its utilisation."""
        if self._busy is not None:
            device = worker.device.index
            self._busy[device] = self._busy.get(device, 0.0) + 1.0 / worker.group.slots
