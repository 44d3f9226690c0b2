"""The devices that a pool has at the moment: a `kaas.Scale` decides by the load, and the policy hears of it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Container, Sequence

from kaas.config import Config
from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import DeviceAdded, DeviceRemoved, Event
from kaas.scheduling.sharing.devices import DeviceScaler
from kaas.share import Scale

_log = logging.getLogger(__name__)


class PoolDevices:
    """The devices of a pool. Use an object of this class from one event loop only.

    Args:
        tell: gives the policy an event. holds: whether limits hold a waiting request back.

    Fields:
        least: so many are there, if they start. away: those that are not there, or go. scaler: decides; None: no device
            comes or goes.
    """

    def __init__(self, config: Config, tell: Callable[[Event], None], holds: Callable[[int], bool]) -> None:
        assert config.devices is not None, "a pool gets a resolved configuration"
        self.least = len(config.devices)
        self.away: set[int] = set()
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self.scaler: DeviceScaler | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = math.inf
        if isinstance(scale := config.devices, Scale):
            self.least = scale.min
            self.scaler = DeviceScaler(scale.min, scale.max, idle_s=scale.idle_s, holds=holds)

    def begin(self, kept: Container[int], now_s: float) -> None:
        """Take away the devices that no load needs yet, but for those with workers: `kept`."""
        if self.scaler is not None:
            self._carry_out(self.scaler.begin(kept, now_s))

    def heard(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take in an event of the policy, and its decisions. What follows comes in a later turn of the loop."""
        assert self.scaler is not None, "only a pool whose devices come and go hears"
        self.scaler.observe(event, decisions)
        if self.scaler.wake_s < self._due_s:
            self._look_at(self.scaler.wake_s)

    def _look_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = time_s
        self._timer = self._loop.call_at(time_s, self._look) if time_s < math.inf else None

    def _look(self) -> None:
        assert self.scaler is not None, "it asked for this look"
        self._due_s = math.inf
        changes = self.scaler.decide(self._loop.time())
        self._look_at(self.scaler.wake_s)
        for change in changes:
            what = "a device comes" if isinstance(change, DeviceAdded) else "a device goes"
            _log.info(what, extra={"device": change.device})
        self._carry_out(changes)

    def _carry_out(self, changes: Sequence[DeviceAdded | DeviceRemoved]) -> None:
        for change in changes:
            if isinstance(change, DeviceAdded):
                self.away.discard(change.device)
            else:
                self.away.add(change.device)
            self._tell(change)
