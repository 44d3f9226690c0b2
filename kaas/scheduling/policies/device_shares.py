"""Requests with a share of each device: they take turns by `TokenScheduler`, and others run as far as it leaves SMs.

On each device the token scheduler says which share goes next. Requests without a share are one more in its eyes: when
their turn comes, the worker is open to them, and the policy's order chooses among them as ever. Without shares nothing
of this is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kaas.errors import PolicyError
from kaas.scheduling.events import PhysicalDevice, ShareGone, ShareKnown, WorkerAdopted, WorkerKind, WorkerReady
from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import QueuedRequest, WorkerGroup, WorkerState
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.tokens import OTHERS, Tokens, TokenScheduler


@dataclass(slots=True, eq=False)
class _SharedDevice:
    """The tokens of a device. granted: SMs for the next request without a share, as of the last look."""

    scheduler: TokenScheduler
    sms: int
    granted: int = 0
    held: dict[int, None] = field(default_factory=dict)


class DeviceShares:
    """The shares of all devices.

    Args:
        wake_at: asks for a Tick.

    Fields:
        active: there are shares.
    """

    def __init__(
        self,
        devices: list[PhysicalDevice],
        placement: Placement,
        holdings: Holdings,
        estimates: Estimates,
        fair_share: FairShare,
        wake_at: Callable[[float], None],
    ) -> None:
        self._windows_s = {device.index: device.window_s for device in devices}
        self._placement = placement
        self._holdings = holdings
        self._estimates = estimates
        self._fair_share = fair_share
        self._wake_at = wake_at
        self.active = False
        self._shares: dict[str, ShareKnown] = {}
        self._devices: dict[int, _SharedDevice] = {}
        self._extents: dict[int, DeviceExtent] = {}

    def __contains__(self, share: str) -> bool:
        return share in self._shares

    # --- events

    def known(self, event: ShareKnown) -> None:
        """Give a share its part of each device."""
        if not (0 < event.sms <= 1 and 0 <= event.least <= event.most <= 1 and event.most > 0 and event.share):
            raise PolicyError(f"a share has parts of a device, from 0 to 1, not {event}")
        self._shares[event.share] = event
        if not self.active:
            self.active = True
            for index in self._windows_s:
                self._begin_device(index)
        for device in self._devices.values():
            device.scheduler.give(event.share, event.sms, event.least, event.most)

    def gone(self, event: ShareGone) -> None:
        """Take a share away. The scheduler puts its waiting requests among the others."""
        if self._shares.pop(event.share, None) is None:
            return
        for device in self._devices.values():
            device.scheduler.take(event.share)
        if not self._shares:
            self.active = False
            self._devices.clear()
            for worker in self._placement.workers.values():
                self._open(worker, granted=True)

    def ready(self, event: WorkerReady | WorkerAdopted) -> None:
        """Take in the SMs of a device whose executor can run requests."""
        extent = DeviceExtent(event.sms, event.sm_step)
        if event.kind is WorkerKind.EXECUTOR and self._extents.get(event.device) != extent:
            self._extents[event.device] = extent
            if self.active:
                self._begin_device(event.device)

    def _begin_device(self, index: int) -> None:
        extent = self._extents.get(index, DeviceExtent(1))
        device = self._devices[index] = _SharedDevice(TokenScheduler(extent, self._windows_s[index]), extent.sms)
        for share in self._shares.values():
            device.scheduler.give(share.share, share.sms, share.least, share.most)
        for worker in self._placement.devices[index].workers.values():
            for request in worker.running.values():
                self._take(device, request, Tokens(OTHERS, extent.sms))

    # --- the requests that go

    def grants(self, group: WorkerGroup, *, others: bool) -> Iterator[tuple[QueuedRequest, WorkerState]]:
        """Yield the requests with shares that go now, and their workers. Each has begun when the next is asked for.

        others: requests without a share have turns, too. The workers are open to them where it is their turn.
        """
        for worker in sorted(group.workers.values(), key=lambda each: (len(each.running), each.device.index)):
            if worker.starting or worker.stopping or worker.alone is not None or worker.gated:
                continue
            grant = self._next(group, worker, others=others)
            while worker.free and grant is not None and grant.share != OTHERS:
                request = self._first(group, grant.share, worker)
                assert request is not None, "it waits"
                self._devices[worker.device.index].granted = grant.sms
                yield request, worker
                grant = self._next(group, worker, others=others)

    def _next(self, group: WorkerGroup, worker: WorkerState, *, others: bool = True) -> Tokens | None:
        """Return the grant that goes next on a worker, which is open to requests without a share if it is theirs."""
        device, now_s = self._devices[worker.device.index], self._placement.now_s
        waiting: dict[str, float] = {}
        for share in group.shared:
            if (request := self._first(group, share, worker)) is not None:
                waiting[share] = self._expected_s(request, worker)
        if others and group.ready > group.ready_shared:
            waiting[OTHERS] = 0.0
        grant = device.scheduler.next(waiting, now_s)
        if (wake_s := device.scheduler.wakes_s(waiting, now_s)) is not None:
            self._wake_at(wake_s)
        mine = grant is not None and grant.share == OTHERS
        device.granted = grant.sms if grant is not None and mine else 0
        self._open(worker, granted=mine)
        return grant

    def _open(self, worker: WorkerState, *, granted: bool) -> None:
        if worker.closed is granted:
            worker.closed = not granted
            self._placement.offer(worker)

    def _first(self, group: WorkerGroup, share: str, worker: WorkerState) -> QueuedRequest | None:
        """Return the request of a share that goes first on a worker: that of the client that has had least time."""
        now_s, held = self._placement.now_s, self._fair_share.held
        firsts = [next(iter(own.values())) for own in group.shared[share].values()]
        able = [
            each for each in firsts if self._fits(each, worker) and not (each.share.limited and held(each.share, now_s))
        ]
        return min(able, key=lambda each: (-each.share.priority, each.share.time_s, each.id), default=None)

    def _fits(self, request: QueuedRequest, worker: WorkerState) -> bool:
        """Return False if a request has to wait for a larger device."""
        if not self._holdings.uneven:
            return True

        def capacity_bytes(each: WorkerState) -> float:
            known = self._holdings.memories[each.device.index].capacity_bytes
            return math.inf if known is None else known

        most_bytes = max(capacity_bytes(each) for each in request.group.workers.values())
        return capacity_bytes(worker) >= min(request.reads.nbytes, most_bytes)

    def _expected_s(self, request: QueuedRequest, worker: WorkerState) -> float:
        spec = worker.device.spec
        run_s, missing = self._estimates.run_s(request, spec), request.reads.missing_bytes(worker.device.index)
        return run_s + (self._estimates.load_s(request, spec) if missing else 0.0)

    def begun(self, request: QueuedRequest, worker: WorkerState) -> Tokens:
        """Give a request that is dispatched its tokens, and return them: 0 SMs for all."""
        device = self._devices[worker.device.index]
        share = request.device_share if request.device_share in self._shares else OTHERS
        sms = device.sms if request.alone else device.granted or device.sms
        self._take(device, request, Tokens(share, sms))
        if share == OTHERS:
            self._next(request.group, worker)
        return Tokens(share, 0 if sms == device.sms else sms)

    def _take(self, device: _SharedDevice, request: QueuedRequest, grant: Tokens) -> None:
        now_s = self._placement.now_s
        device.scheduler.begin(request.id, grant, now_s, max(0.0, request.ends_s - now_s))

    def ended(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take a request's tokens back."""
        self._devices[worker.device.index].scheduler.end(request.id, self._placement.now_s)
