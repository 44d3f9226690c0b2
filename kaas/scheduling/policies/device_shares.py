"""Requests with a share of each device: they take turns by `TokenScheduler`, and others run as far as it leaves SMs.

On each device the token scheduler says which share goes next. Requests without a share are one more in its eyes: when
their turn comes, the worker is open to them, and the policy's order chooses among them as ever. Without shares nothing
of this is asked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kaas.errors import PolicyError
from kaas.scheduling.decisions import Granted, GrantedShare
from kaas.scheduling.events import (
    DeviceRemoved,
    Outcome,
    PhysicalDevice,
    PromiseKnown,
    RequestDone,
    ShareGone,
    ShareKnown,
    WorkerAdopted,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.cache_orders import CacheOrders
from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.fair_share import FairShare
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.share_memory import ShareMemory
from kaas.scheduling.policies.state import QueuedRequest, WorkerGroup, WorkerState
from kaas.scheduling.sharing.load import Predictor
from kaas.scheduling.sharing.promises import DECIDE_S, PromisedFunction, Promises
from kaas.scheduling.sharing.rectangles import DeviceExtent
from kaas.scheduling.sharing.scaler import Grant
from kaas.scheduling.sharing.scaling import Configuration
from kaas.scheduling.sharing.tokens import OTHERS, Tokens, TokenScheduler

NONE = Tokens(OTHERS, 0)


@dataclass(slots=True, eq=False)
class _SharedDevice:
    """The tokens of a device.

    Fields:
        sms: of the device. next: for the next request, as of the last look. accounts: of each share with a promise, the
            names under which its instances here take tokens.
    """

    scheduler: TokenScheduler
    sms: int
    next: Tokens = NONE
    accounts: dict[str, list[str]] = field(default_factory=dict)


class _PromisedRun(NamedTuple):
    """A running request with a promise. granted: its part of the SMs."""

    share: str
    granted: float


class DeviceShares:
    """The shares of all devices.

    Args:
        wake_at: asks for a Tick. predictor: of the loads of functions with promises.

    Fields:
        active: there are shares. missed: windows that each share has missed, on all devices (`TokenScheduler`).
    """

    def __init__(
        self,
        devices: Sequence[PhysicalDevice],
        placement: Placement,
        holdings: Holdings,
        cache_orders: CacheOrders,
        estimates: Estimates,
        fair_share: FairShare,
        wake_at: Callable[[float], None],
        predictor: Predictor,
    ) -> None:
        self._windows_s = {device.index: device.window_s for device in devices}
        self._kinds = dict.fromkeys(device.kind for device in devices)
        self._placement = placement
        self._holdings = holdings
        self._estimates = estimates
        self._fair_share = fair_share
        self._memory = ShareMemory(holdings, cache_orders)
        self._wake_at = wake_at
        self.active = False
        self.missed: Counter[str] = Counter()
        self._shares: dict[str, ShareKnown] = {}
        self._promised: dict[str, PromiseKnown] = {}
        self._promises = Promises(max(self._windows_s.values()), predictor)
        self._placed: set[str] = set()  # promises with a part of a device
        self._told: dict[str, Granted] = {}
        self._runs: dict[int, _PromisedRun] = {}
        self._devices: dict[int, _SharedDevice] = {}
        self._extents: dict[int, DeviceExtent] = {}

    def __contains__(self, share: str) -> bool:
        """True if requests of a share have a part of a device."""
        return share in self._shares or share in self._placed

    # --- events

    def handle(self, event: ShareKnown | PromiseKnown | ShareGone) -> None:
        """Take in that there is a share, or a promise, or that it is taken away."""
        match event:
            case ShareKnown():
                self._known(event)
            case PromiseKnown():
                self._promise(event)
            case ShareGone():
                self._gone(event)

    def _known(self, event: ShareKnown) -> None:
        if not (0 < event.sms <= 1 and 0 <= event.least <= event.most <= 1 and event.most > 0 and event.share):
            raise PolicyError(f"a share has parts of a device, from 0 to 1, not {event}")
        if event.share in self._promised:
            self._take_back(event.share)
        self._shares[event.share] = event
        self._memory.limit(event.share, event.memory_bytes)
        self._begin()
        for device in self._devices.values():
            device.scheduler.give(event.share, event.sms, event.least, event.most)
        self._fix()

    def _promise(self, event: PromiseKnown) -> None:
        if not (0 < event.slo_s < math.inf and event.share):
            raise PolicyError(f"a promise is a number of seconds, not {event}")
        self._take_share(event.share)
        self._promised[event.share] = event
        self._begin()
        self._fix()
        self._promises.promise(event.share, event.slo_s)
        self._settle()

    def _gone(self, event: ShareGone) -> None:
        if event.share in self._promised:
            self._take_back(event.share)
        elif self._take_share(event.share):
            del self.missed[event.share]
            self._fix()
            self._unshare(event.share)
        if self.active and not (self._shares or self._promised):
            self.active = False
            self._devices.clear()
            for worker in self._placement.workers.values():
                self._open(worker, granted=True)

    def _take_share(self, share: str) -> bool:
        """Take a share away that is no promise; return True if it was there."""
        for device in self._devices.values() if share in self._shares else ():
            device.scheduler.take(share)
        self._memory.limit(share, None)
        return self._shares.pop(share, None) is not None

    def ready(self, event: WorkerReady | WorkerAdopted) -> None:
        """Take in the SMs of a device whose executor can run requests."""
        if event.kind is not WorkerKind.EXECUTOR:
            return
        extent = DeviceExtent(event.sms, event.sm_step, event.slots)
        if self._extents.get(event.device) != extent:
            self._extents[event.device] = extent
            if self.active:
                self._begin_device(event.device)
        self._promises.add_device(event.device, extent, self._placement.now_s)
        self._settle()

    def removed(self, event: DeviceRemoved) -> None:
        """Take in that a device goes: instances there go elsewhere."""
        self._promises.remove_device(event.device, self._placement.now_s)
        self._settle()

    def decide(self) -> None:
        """Fit the instances of functions with promises to their loads, and ask to be woken again."""
        if self._promised:
            self._promises.decide_all(self._placement.now_s)
            self._settle()
            if self._placed:
                self._wake_at(self._placement.now_s + DECIDE_S)

    def _begin(self) -> None:
        if not self.active:
            self.active = True
            for index in self._windows_s:
                self._begin_device(index)

    def _begin_device(self, index: int) -> None:
        extent = self._extents.get(index, DeviceExtent(1))
        scheduler = TokenScheduler(extent, self._windows_s[index], self.missed)
        device = self._devices[index] = _SharedDevice(scheduler, extent.sms)
        for share in self._shares.values():
            device.scheduler.give(share.share, share.sms, share.least, share.most)
        self._promises.changed |= dict.fromkeys(self._promised)
        for worker in self._placement.devices[index].workers.values():
            for request in worker.running.values():
                self._take(device, request, Tokens(OTHERS, extent.sms))

    def _fix(self) -> None:
        """Keep the room of shares without promises, as long as there are promises."""
        if self._promised:
            parts = {name: (share.sms, share.least) for name, share in self._shares.items()}
            self._promises.fix(parts, self._placement.now_s)
            self._settle()

    def _take_back(self, share: str) -> None:
        del self._promised[share]
        self._promises.forget(share)
        self._settle()

    def _settle(self) -> None:
        """Give the instances that have changed their tokens, and tell of them."""
        for share in [*self._promises.changed]:
            function = self._promises.functions.get(share)
            grants = [*self._promises.grants(share)]
            for index, device in self._devices.items():
                accounts = {
                    f"{share} #{grant.number}": (grant.spot.sms, grant.spot.quota)
                    for grant in grants
                    if grant.spot.device == index
                }
                if function is not None and function.trial is not None and function.trial.part is not None:
                    accounts = {share: (function.trial.part, 0.0)}
                for name in device.accounts.pop(share, ()):
                    if name not in accounts:
                        device.scheduler.take(name)
                        del self.missed[name]
                for name, (sms, least) in accounts.items():
                    device.scheduler.give(name, sms, least, 1.0)
                if accounts:
                    device.accounts[share] = [*accounts]
            if any(share in device.accounts for device in self._devices.values()):
                self._placed.add(share)
            else:
                self._placed.discard(share)
                self._unshare(share)
            if function is None:
                self._told.pop(share, None)
            elif self._told.get(share) != (granted := self._granted(share, function, grants)):
                self._told[share] = granted
                self._placement.decisions.append(granted)
        self._promises.changed.clear()

    def _unshare(self, share: str) -> None:
        """Put the waiting requests of a share that is gone among the others."""
        for group in self._placement.groups.values():
            group.unshare(share)

    def _granted(self, share: str, function: PromisedFunction, grants: list[Grant]) -> Granted:
        return Granted(
            share,
            tuple(GrantedShare(grant.spot.device, grant.spot.sms, grant.spot.quota) for grant in grants),
            self._promises.missing_of(share),
            None if function.trial is None else function.trial.part,
            None if function.unmet is None else function.unmet.p99_s,
        )

    # --- promises to requests

    def late_s(self, request: QueuedRequest, *, again: bool) -> float | None:
        """Take in a new request with a share. Return the seconds after which it would end, if it is to be rejected.

        A request that would end too late and may run on what is left has no share from then on.
        """
        share, now_s = request.device_share, self._placement.now_s
        promise = self._promised.get(share)
        if promise is None or again:
            return None
        function = self._promises.functions[share]
        if function.trial is not None and (points := self._profile(request)):
            self._promises.profiled(share, points)
        self._promises.arrived(share, now_s)
        self._promises.decide(share, now_s)
        waiting = sum(len(own) for own in request.group.shared.get(share, {}).values())
        running = sum(1 for run in self._runs.values() if run.share == share)
        left_s = math.inf if request.deadline_s is None else request.deadline_s - now_s
        late_s = self._promises.late_s(share, waiting, running, left_s, now_s)
        self._settle()
        self._wake_at(now_s + DECIDE_S)
        if late_s is not None and promise.best_effort:
            request.device_share, late_s = "", None
        return late_s

    def _profile(self, request: QueuedRequest) -> tuple[Configuration, ...]:
        """Return what is known of a request's function on shares of a device."""
        times = self._estimates.functions.get(request.function)
        given = () if times is None else (times.given.get(kind) for kind in self._kinds)
        return next((each.points for each in given if each is not None and each.points), ())

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
                request = self._first(group, self._share_of(grant.share, worker), worker)
                assert request is not None, "it waits"
                yield request, worker
                grant = self._next(group, worker, others=others)

    def _next(self, group: WorkerGroup, worker: WorkerState, *, others: bool = True) -> Tokens | None:
        """Return the grant that goes next on a worker, which is open to requests without a share if it is theirs."""
        device, now_s = self._devices[worker.device.index], self._placement.now_s
        waiting: dict[str, float] = {}
        for share in group.shared:
            accounts = self._accounts(share, device)
            if accounts and (request := self._first(group, share, worker)) is not None:
                waiting |= dict.fromkeys(accounts, self._expected_s(request, worker))
        if others and group.ready > group.ready_shared:
            waiting[OTHERS] = 0.0
        grant = device.scheduler.next(waiting, now_s)
        if (wake_s := device.scheduler.wakes_s(waiting, now_s)) is not None:
            self._wake_at(wake_s)
        device.next = grant or NONE
        self._open(worker, granted=grant is not None and grant.share == OTHERS)
        return grant

    def _accounts(self, share: str, device: _SharedDevice) -> Sequence[str]:
        """Return the names under which requests of a share take tokens on a device."""
        return (share,) if share in self._shares else device.accounts.get(share, ())

    def _share_of(self, account: str, worker: WorkerState) -> str:
        accounts = self._devices[worker.device.index].accounts
        return next((share for share, names in accounts.items() if account in names), account)

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
        memories = self._holdings.memories
        most_bytes = max(memories[each.device.index].most_bytes for each in request.group.workers.values())
        return memories[worker.device.index].most_bytes >= min(request.reads.nbytes, most_bytes)

    def _expected_s(self, request: QueuedRequest, worker: WorkerState) -> float:
        spec = worker.device.spec
        return self._estimates.run_s(request, spec) + self._estimates.load_s(request, spec)

    def begun(self, request: QueuedRequest, worker: WorkerState) -> Tokens:
        """Give a request that is dispatched its tokens, and return them: 0 SMs for all."""
        device, share = self._devices[worker.device.index], request.device_share
        accounts = self._accounts(share, device)
        if accounts and not request.alone and device.next.share in accounts:
            grant = device.next
        elif accounts:  # it runs alone, before its turn
            grant = Tokens(accounts[0], device.scheduler.size_of(accounts[0]))
        else:
            left = device.next.sms if device.next.share == OTHERS and not request.alone else 0
            grant = Tokens(OTHERS, left or device.sms)
        self._take(device, request, grant)
        self._memory.begun(request, worker)
        if share in self._promised:
            self._runs[request.id] = _PromisedRun(share, grant.sms / device.sms)
        if grant.share == OTHERS:
            self._next(request.group, worker)
        return Tokens(grant.share, 0 if grant.sms == device.sms else grant.sms)

    def _take(self, device: _SharedDevice, request: QueuedRequest, grant: Tokens) -> None:
        now_s = self._placement.now_s
        device.scheduler.begin(request.id, grant, now_s, max(0.0, request.ends_s - now_s))

    def ended(self, request: QueuedRequest, worker: WorkerState, done: RequestDone | None = None) -> None:
        """Take a request's tokens back. done: what it took; None if its worker was lost."""
        self._devices[worker.device.index].scheduler.end(request.id, self._placement.now_s)
        self._memory.ended(request, worker)
        run = self._runs.pop(request.id, None)
        if run is not None and done is not None and done.outcome is Outcome.SUCCEEDED and not done.loaded_bytes:
            run_s = done.run_s * worker.device.spec.speed
            self._promises.measured(run.share, run.granted, run_s, self._placement.now_s)
            self._settle()
