"""The part that all policies share: take in an event, dispatch, then give devices to groups that still wait.

A policy adds its rules (`Rules`): the group of a request (`place`), the order of its requests (`order`), which group is
served first (`urgency`), and others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kaas.errors import PolicyError
from kaas.scheduling import events
from kaas.scheduling.decisions import Decision, Dispatch, Reject, WakeAt
from kaas.scheduling.policies.cache_orders import CacheOrders
from kaas.scheduling.policies.device_shares import DeviceShares
from kaas.scheduling.policies.estimates import Estimates
from kaas.scheduling.policies.explained import Explained
from kaas.scheduling.policies.fair_share import NO_CLIENT, SHORTEST_WAIT_S, ClientShare, FairShare
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.locality import Locality
from kaas.scheduling.policies.orders import Parked
from kaas.scheduling.policies.oversized import Oversized
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.presence import DevicePresence
from kaas.scheduling.policies.requests import RequestTable
from kaas.scheduling.policies.rules import Rules
from kaas.scheduling.policies.running_alone import RunningAlone
from kaas.scheduling.policies.state import (
    SHARED,
    Partition,
    QueuedRequest,
    Serves,
    WorkerGroup,
    WorkerState,
)

GROUPS = 4096
"""Groups without worker and request that are kept, since they know when they last gave up a device."""


class Scheduler(Rules, Explained):
    """The stateful part of a policy. Decisions follow from the state alone, so equal events give equal decisions."""

    def __init__(self, devices: Sequence[events.PhysicalDevice]) -> None:
        self.now_s = 0.0
        self._fair_share = FairShare(len(devices))
        self._holdings = Holdings(devices)
        self._locality = Locality(self._holdings)
        self._estimates = Estimates()
        self._placement = Placement(
            self.partitions(devices), self._fair_share, self.rank, self.order, conserving=self.conserving_devices
        )
        self._presence = DevicePresence(self._placement, self._fair_share)
        self._cache_orders = CacheOrders(self._holdings, self._placement)
        self._alone = RunningAlone(self._placement, self._fair_share)
        self._oversized = Oversized(self._holdings)
        self._requests = RequestTable(self._holdings)
        caches = self._holdings, self._cache_orders
        self._device_shares = DeviceShares(
            devices, self._placement, *caches, self._estimates, self._fair_share, self.wake_at, self.predicted_rate
        )
        self._parked = Parked()
        self._estimated: list[Callable[[str], None]] = []  # called with each function whose estimates have changed
        self._recharged: list[Callable[[ClientShare], None]] = []  # with each client whose charge or device has changed
        self._dirty: dict[WorkerGroup, None] = {}
        self._touched: dict[Partition, None] = {}
        self._open = False
        self._most_groups = GROUPS
        self._wake_s: float | None = None

    # --- events

    def handle(self, event: events.Event) -> list[Decision]:
        """Take an event into the state, and return the decisions that follow."""
        self.now_s = self._placement.now_s = event.time_s
        self._fair_share.wake_s = None
        if self._wake_s is not None and event.time_s >= self._wake_s - SHORTEST_WAIT_S:
            self._wake_s = None
            self._device_shares.decide()
            self._mark_dirty_all()
        if self._holdings.leaving and not isinstance(event, events.RequestDone | events.Ordered):
            self._holdings.let_go()
        match event:
            case events.RequestArrived():
                self._arrive(event)
            case events.RequestDone():
                self._done(event)
            case events.InputsReady():
                self._enqueue(self._requests.awaiting_inputs(event.request))
            case events.Residency():
                self._holdings.moved(event, self._placement.known(event.worker).device.index)
            case events.RequestCancelled():
                if (request := self._requests[event.request]).worker is None:  # else RequestDone frees its slot
                    self._leave(request)
            case events.WorkerReady():
                self._device_shares.ready(event)
                self._mark_dirty(self._placement.ready(event).group)
                if event.kind is events.WorkerKind.EXECUTOR:
                    self._holdings.ready(event.device, event.memory_bytes)
            case events.WorkerGone():
                self._lose(event)
            case events.WorkerAdopted():
                self._adopt(event)
            case events.ClientKnown():
                self._know(event)
            case events.ShareKnown() | events.PromiseKnown() | events.ShareGone():
                self._device_shares.handle(event)
                self._mark_dirty_all()
            case events.ClientGone():
                self._fair_share.gone(event.client)
                self._placement.stop_idle(event.client)  # workers that only this client's requests could use
                self._mark_dirty_all()
            case events.DeviceAdded() | events.DeviceRemoved():
                self._presence.change(event)
                if isinstance(event, events.DeviceRemoved):
                    self._device_shares.removed(event)
                self._mark_dirty_all()
            case events.Tick():
                self._open = True  # one that comes after other events of its time does not ask for another Tick
                self._mark_dirty_all()
            case events.FunctionKnown():
                self._estimates.known(event)
                for estimated in self._estimated:
                    estimated(event.function)
            case events.Ordered():
                self._cache_orders.answered(event)
            case events.Utilisation():
                self.measured(event)
        return self._decide()

    def _know(self, event: events.ClientKnown) -> None:
        share = self._fair_share.know(event)
        for group in self._placement.groups.values():
            group.order.unpark(share)  # its priority may have changed
        for recharged in self._recharged:
            recharged(share)  # its weight may have changed, too
        self._mark_dirty_all()

    def _arrive(self, event: events.RequestArrived) -> None:
        share = self._fair_share[event.client]
        self._fair_share.arrived(share, again=event.attempt > 1)
        group = self._group(event.kind, event.client, event.function)
        if event.request in self._requests:
            raise PolicyError(f"request {event.request} arrived twice")
        reads = self._holdings.working_set(event.inputs)
        request = QueuedRequest(event.request, share, group, event.function, reads, event.deadline_s, event.alone)
        request.arrived_s, request.device_share = event.time_s, event.share
        self._requests[request.id] = request
        if not group.workers and (reason := self._placement.no_start_reason(group)) is not None:
            self._reject(request, reason)
        elif event.share and (late_s := self._device_shares.late_s(request, again=event.attempt > 1)) is not None:
            self._reject(request, f"{event.function} would end after {late_s:.3g} s, and is promised less", late_s)
        elif event.ready:
            self._enqueue(request)

    def place(self, kind: events.WorkerKind, client: str, function: str) -> tuple[Serves, Partition]:
        """Return which requests wait together, and where: here all kTasks, and each function's eTasks by client."""
        serves = SHARED if kind is events.WorkerKind.EXECUTOR else Serves(kind, client, function)
        return serves, self._placement.partitions[0]

    def _group(self, kind: events.WorkerKind, client: str, function: str) -> WorkerGroup:
        serves, place = self.place(kind, client, function)
        group = self._placement.groups.get(serves)
        if group is None:
            if len(self._placement.groups) >= self._most_groups:
                self._placement.forget({request.group for request in self._requests.values()})
                self._most_groups = max(GROUPS, 2 * len(self._placement.groups))
            group = self._placement.group(serves, place)
        return group

    def _enqueue(self, request: QueuedRequest) -> None:
        group = request.group
        if request.device_share and request.device_share not in self._device_shares:
            request.device_share = ""
        held = request.alone or request.deadline_s is not None or request.share.limited or self._holdings.uneven
        worker = None
        if group.open and not (held or self._dirty or group.alone or group.aside or self._device_shares.active):
            worker = group.order.at_once(request)  # then the next one needs no place
        if worker is None:
            group.enqueue(request)
            self._mark_dirty(group)
        else:
            self._touched[group.partition] = None
            self._begin(request, worker)

    def _dequeue(self, request: QueuedRequest) -> None:
        if request.group.aside:
            self._oversized.give_back(request)
        request.group.dequeue(request)
        if request.alone:
            self._alone.release(request)

    def _leave(self, request: QueuedRequest) -> None:
        if request.ready:
            self._dequeue(request)
            self._mark_dirty(request.group)
        self._requests.forget(request)
        self._fair_share.ended(request.share)

    def _done(self, event: events.RequestDone) -> None:
        request = self._requests[event.request]
        worker, share = request.worker, request.share
        if worker is None or worker.id != event.worker:
            raise PolicyError(f"request {event.request} does not run on worker {event.worker}")
        self._placement.free_slot(worker, event.slot, request)
        if self._device_shares.active:
            self._device_shares.ended(request, worker, event)
        worker.group.order.freed(request, worker)
        worker.group.order.ended(request, event)
        if self._holdings.leaving:
            self._holdings.let_go(worker.device.index, request.dispatch)
        if request.victims:
            self._holdings.kept(request.victims, worker.device.index)
        if request.brings:
            found = event.outcome is events.Outcome.SUCCEEDED and not event.loaded_bytes
            self._holdings.ended(request.brings, worker.device.index, found=found)
        self._requests.forget(request)
        self._estimates.ended(event, request.function, worker.device.spec)
        for estimated in self._estimated if worker.group.partition.waiting else ():  # else none moves
            estimated(request.function)
        if share is not NO_CLIENT:
            # a request that failed before it had the device, or began in an earlier epoch, is no measure of others
            counts = request.estimate_s is not None and (event.device_s or event.outcome is not events.Outcome.FAILED)
            latency_s = None if request.arrived_s is None else event.time_s - request.arrived_s
            self._fair_share.measured(share, request.estimate_s, event.device_s, latency_s if counts else None)
            for recharged in self._recharged if worker.group.partition.waiting else ():
                recharged(share)
            self._fair_share.ended(share)
        self._freed(worker, share)

    def _freed(self, worker: WorkerState, share: ClientShare) -> None:
        """Mark the groups that may go on after a request or a worker has ended."""
        self._mark_dirty(worker.group)
        if len(workers := worker.device.workers) > 1 or worker.id not in workers:
            for other in workers.values():
                self._mark_dirty(other.group)
        if share.limited:
            self._parked.unpark(share)
            self._mark_dirty_all()

    def _adopt(self, event: events.WorkerAdopted) -> None:
        serves = Serves(event.kind, event.client, event.function)
        where = self._placement.devices[event.device].partition
        fits = (serves, where) == self.place(*serves) and (serves.client or serves == where.home)
        if fits:
            group = self._placement.group(serves, where, born=event.device)
        else:
            group = WorkerGroup(serves, where, (0, event.device), self.order(serves))
        self._device_shares.ready(event)
        worker = self._placement.adopt(event, group)
        if event.kind is events.WorkerKind.EXECUTOR:
            self._holdings.ready(event.device, event.memory_bytes)
        for running in event.running:
            share = self._fair_share[running.client] if running.client else NO_CLIENT
            request = self._requests.adopt(running, share, worker, event.time_s)
            group.order.dispatched(request, worker)
            if share is not NO_CLIENT:
                self._fair_share.adopted(share)
        self._placement.offer(worker)
        if not fits:  # another policy started it, and this policy does not use such workers
            self._placement.stop(worker)
        self._mark_dirty(worker.group)

    def _lose(self, event: events.WorkerGone) -> None:
        worker, charged_s = self._placement.gone(event), dict(event.device_s)
        for request in worker.running.values():
            worker.group.running -= 1
            worker.group.order.freed(request, worker)
            if self._device_shares.active:
                self._device_shares.ended(request, worker)
            self._holdings.ended(request.brings, worker.device.index)
            self._requests.forget(request)
            if request.share is not NO_CLIENT:
                self._fair_share.lost(request.share, request.estimate_s, charged_s.get(request.id, 0.0))
                for recharged in self._recharged:
                    recharged(request.share)
                self._fair_share.ended(request.share)
                self._freed(worker, request.share)
        worker.group.order.lost(worker)
        self._cache_orders.lost(worker)
        if not worker.device.workers:
            self._holdings.emptied(worker.device.index)
        self._freed(worker, NO_CLIENT)
        self._placement.inherit(worker.device)
        if worker.starting:
            self._give_up(worker.group.partition)
            for group in [each for each in worker.group.partition.waiting.values() if each.aside]:
                self._mark_dirty(group)  # no worker may start any more on the device that its requests wait for

    def _give_up(self, where: Partition) -> None:
        """Reject the requests for which no worker can ever start."""
        queued = self._requests.queued(where)
        reasons = {group: self._placement.no_start_reason(group) for group in dict.fromkeys(r.group for r in queued)}
        for request in queued:
            if (reason := reasons[request.group]) is not None:
                self._reject(request, reason)

    def _reject(self, request: QueuedRequest, reason: str, late_s: float | None = None) -> None:
        self._leave(request)
        self._placement.decisions.append(Reject(request.id, reason, late_s))

    # --- decisions

    def _decide(self) -> list[Decision]:
        placement = self._placement
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for group in dirty if len(dirty) == 1 else sorted((g for g in dirty if g.ready), key=self.urgency):
                self._dispatch_group(group)
        if placement.reserved:
            placement.settle_reservations()
        if self._open:
            for where in self._touched:
                if where.waiting or where.free:
                    placement.serve(where, self.urgency)
            if placement.reserved:
                placement.settle_reservations()
        self._touched.clear()
        decisions, placement.decisions = placement.decisions, []
        wake_s = self._fair_share.wake_s
        if wake_s is not None and (self._wake_s is None or wake_s < self._wake_s):
            self._wake_s = wake_s
            decisions.append(WakeAt(wake_s))
        return decisions

    def _dispatch_group(self, group: WorkerGroup) -> None:
        for request in [each for each in group.alone.values() if each.late(self.now_s)] if group.alone else ():
            self._dequeue(request)
        while group.alone and (claimed := self._alone.next(group, self.now_s)) is not None:
            self._dispatch(*claimed)
        if self._device_shares.active:
            self._dispatch_shares(group, others=True)
        if group.aside:
            self._oversized.bring_back(group)
        order = group.order
        while group.clients and group.open and (chosen := order.next()) is not None:
            request, worker = chosen
            share = request.share
            if share.limited and self._fair_share.held(share, self.now_s):
                self._parked.park(share, order)
            elif request.deadline_s is not None and request.late(self.now_s):
                self._dequeue(request)  # its caller has a reply, or gets one now
            elif not self._holdings.uneven:
                self._dispatch(request, worker)
            elif (larger := self._oversized.worker_for(request, worker, self.rank)) is not None:
                self._dispatch(request, larger)
        order.settled()
        if self._device_shares.active:
            self._dispatch_shares(group, others=False)

    def _dispatch_shares(self, group: WorkerGroup, *, others: bool) -> None:
        """Dispatch requests with shares in their turn. others: requests without a share have turns, too."""
        for request, worker in self._device_shares.grants(group, others=others):
            if request.late(self.now_s):
                self._dequeue(request)
            else:
                self._dispatch(request, worker)

    def _dispatch(self, request: QueuedRequest, worker: WorkerState) -> None:
        self._dequeue(request)
        self._begin(request, worker)

    def _begin(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Give a request, which does not wait, a slot of a worker."""
        request.worker, share = worker, request.share
        slot = self._placement.take_slot(worker, request)
        request.estimate_s = self._fair_share.dispatched(share)
        device, reads = worker.device.spec, request.reads
        self._estimates.called(request.function, self.now_s)
        request.ends_s = self.now_s + self._estimates.run_s(request, device)
        victims: tuple[bytes, ...] = ()
        if reads.nbytes:
            if reads.missing_bytes(device.index):
                request.ends_s += self._estimates.load_s(request, device)
                victims = request.victims = self.victims(request, worker)
                self._holdings.give_up(victims, device.index)
            request.brings = self._holdings.dispatched(reads.sizes, device.index, (share, request.function))
        request.dispatch = self._holdings.dispatches
        share.last_device = device.index
        for recharged in self._recharged if request.group.partition.waiting else ():
            recharged(share)
        decided = Dispatch(request.id, worker.id, slot, victims, request.promised)
        if self._device_shares.active:
            tokens = self._device_shares.begun(request, worker)
            decided = Dispatch(request.id, worker.id, slot, victims, request.promised, *tokens)
        self._placement.decisions.append(decided)
        request.group.order.dispatched(request, worker)

    # --- state

    def _mark_dirty(self, group: WorkerGroup) -> None:
        if group.ready:
            self._dirty[group] = None
        self._touched[group.partition] = None

    def _mark_dirty_all(self) -> None:
        self._parked.unpark_all()
        for where in self._placement.partitions:
            self._touched[where] = None
            self._dirty |= dict.fromkeys(where.waiting.values())
