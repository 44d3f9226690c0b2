"""MQFQ-Sticky: fair queueing over flows that stay where their memory is (MQFQ-Sticky paper, section 4).

Each client's calls of one function are a flow. With each dispatched request the flow's virtual time grows by its
mean run time, divided by the client's weight. A flow more than T ahead of the least is throttled; of the others the one
with fewest requests in flight goes next, on the device that has its memory. The memory of a flow that is throttled, or
that had no request for longer than its arrivals let expect, is the first to leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import islice

from kaas.scheduling.events import FunctionKnown, Outcome, PhysicalDevice, RequestDone, Utilisation, WorkerKind
from kaas.scheduling.policies.device_tokens import DeviceTokens
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.flow_scores import TimedFlowOrder
from kaas.scheduling.policies.holdings import NOTHING
from kaas.scheduling.policies.options import check_choice, check_number
from kaas.scheduling.policies.orders import SortKey
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Chosen, Queue, QueuedRequest, RequestOrder, Serves, WorkerGroup, WorkerState
from kaas.scheduling.policies.warm_flows import PriorityLevel, Rests, TimedFlow, WarmFlows

ORDERS = ("paper", "longest", "least_vt", "sticky")
MOST_FLOWS = 50_000
"""Flows that are remembered; beyond this number the one called longest ago goes, if it has no request."""


class MqfqSticky(Scheduler):
    """Fair queueing with over-run, and sticky flows.

    Args:
        T: seconds of virtual time by which a flow may be ahead of the least. alpha: an empty flow stays active for so
            many times the mean time between its arrivals.
        D: requests that a device runs at a time; None: two, or fewer if the device has fewer slots. "utilisation": as
            many as slots, as long as its measured utilisation is below `limit`, a part of 1.
        order: which of the flows that may go is next. "paper": for D = 1 the one with the longest queue, else the one
            with fewest in flight, and then the longest queue; "longest"; "least_vt"; "sticky": the flow that the
            device ran last, then as in the paper.
        global_vt: the flows of which the least virtual time is taken: "waiting", those with waiting requests, or
            "active", also empty ones that are active.
        tau: the seconds that a request counts: "run", or "all", with loads.
        sticky: "soft": a device for which no flow of its own may go takes one of another device; "hard": it stays free.
    """

    def __init__(
        self,
        devices: Sequence[PhysicalDevice],
        *,
        T: float = 10.0,  # noqa: N803 - the paper's names
        alpha: float = 1.5,
        D: int | str | None = None,  # noqa: N803
        limit: float = 0.9,
        order: str = "paper",
        global_vt: str = "waiting",
        tau: str = "run",
        sticky: str = "soft",
    ) -> None:
        check_number("mqfq_sticky", "T", T)
        check_number("mqfq_sticky", "alpha", alpha)
        self.tokens = DeviceTokens(devices, D, limit)
        check_choice("mqfq_sticky", "order", order, ORDERS)
        check_choice("mqfq_sticky", "global_vt", global_vt, ("waiting", "active"))
        check_choice("mqfq_sticky", "tau", tau, ("run", "all"))
        check_choice("mqfq_sticky", "sticky", sticky, ("soft", "hard"))
        self.T, self.alpha, self.order_by, self.global_vt, self.hard = T, alpha, order, global_vt, sticky == "hard"
        self.tau_all, self.one_at_a_time = tau == "all", D == 1
        self.utilisation_every_s = self.tokens.poll_s
        super().__init__(devices)
        self.warm = WarmFlows(self._holdings, self._locality, self._placement, self._cache_orders)

    def order(self, serves: Serves) -> RequestOrder:
        """Return the order of flows of kTasks; eTasks of one function go in the order of their arrival."""
        return super().order(serves) if serves.kind is WorkerKind.ETASK else Flows(self)

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:
        """Return what was used longest ago, of flows that are not active."""
        return self.warm.victims(request.reads, worker.device.index)

    def measured(self, event: Utilisation) -> None:
        """Take in a device's utilisation, which may let it run one more request."""
        for worker in self._placement.devices[event.device].workers.values() if self.tokens.measured(event) else ():
            self._mark_dirty(worker.group)

    def tau_s(self, request: QueuedRequest, flow: TimedFlow, device: PhysicalDevice) -> float:
        """Return the seconds that a request counts at its dispatch: the mean of its flow, else of its function."""
        own_s = flow.mean_s(device, whole=self.tau_all)
        return self._estimates.run_s(request, device) if own_s is None else own_s

    def given(self, function: str) -> Mapping[str, FunctionKnown]:
        """Return what the policy was told of a function, by kind of device."""
        return self._estimates.of(function).given

    # --- places

    def free_workers(self, group: WorkerGroup) -> Iterator[WorkerState]:
        """Return an iterator over the workers that may run one more request, the one that is free longest first."""
        return (each for each in group.open.values() if not each.gated and self.tokens.left(each))

    def free_at_home(self, flow: TimedFlow, first: WorkerState) -> WorkerState | None:
        """Return the worker that may run a flow where its memory is; the first of all if it has none."""
        if flow.device < 0 or not flow.has_memory:
            return first
        group = first.group
        if (own := next(group.free_on((flow.device,)), None)) is not None and self.tokens.left(own):
            return own
        there = (each for each in group.free_on(flow.reads.constants.whole) if self.tokens.left(each))
        return min(there, default=None, key=self.rank)


class Flows(TimedFlowOrder):
    """The flows with their virtual times. The least one is taken without the flows of clients that limits hold back."""

    _policy: MqfqSticky

    def __init__(self, policy: MqfqSticky) -> None:
        super().__init__()
        self._policy, self._running = policy, 0
        self._known: dict[Hashable, TimedFlow] = {}  # the one called last at the end
        self._levels = defaultdict[int, PriorityLevel](PriorityLevel)
        self._unsorted: dict[TimedFlow, Queue] = {}  # those with requests, whose places may be others
        self._rests, self._resting_count = Rests(policy.alpha, policy.T), policy.global_vt == "active"
        self._last: dict[int, TimedFlow] = {}

    def flow(self, request: QueuedRequest) -> Hashable:
        """Return the client and the function of a request."""
        return request.share, request.function

    # --- requests

    def _known_flow(self, request: QueuedRequest) -> TimedFlow:
        """Return the flow of a request that comes, as the one called last."""
        name = request.flow = self.flow(request)
        flow = self._known[name] = self._known.pop(name) if name in self._known else TimedFlow()
        if len(self._known) > MOST_FLOWS:
            self._forget()
        return flow

    def at_once(self, request: QueuedRequest) -> WorkerState | None:
        """Return the worker that is free longest, for a flow without memory: it is the least one, and goes anywhere."""
        policy, memory = self._policy, request.reads.constants.nbytes or self._rests.next_s is not None
        if self._flows or memory or self._resting_count or policy.order_by == "sticky":
            return None
        worker = next(policy.free_workers(request.group), None)
        if worker is not None:
            flow, level = self._known_flow(request), self._levels[request.share.priority]
            policy.warm.reads(flow, request.reads)
            flow.vt = level.vt = max(flow.vt, level.vt)
        return worker

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its flow."""
        flow = self._known_flow(request)
        if flow.queue is not None:
            self._unsorted[flow] = flow.queue  # its queue is longer now
            if flow.reads.constants is not request.reads.constants:
                self._levels[flow.queue.share.priority].remove(flow)
        if flow.reads is not request.reads:
            self._policy.warm.reads(flow, request.reads)
        if flow.has_memory or self._resting_count:
            self._rests.arrived(flow, self._policy.now_s)
        super().add(request)

    def offer(self, queue: Queue) -> None:
        """Give a flow, whose first request is another one, its places. One that comes back begins at the least time."""
        flow, level = self._known[queue.flow], self._levels[queue.share.priority]
        if flow.queue is not None and flow not in level.waiting and flow not in self._unsorted:
            self.withdraw(queue)  # the priority of its client has changed
        super().offer(queue)
        if flow.weight != queue.share.weight:  # what it is ahead counts by the new weight
            flow.vt = level.vt + max(0.0, flow.vt - level.vt) * flow.weight / queue.share.weight
            flow.weight = queue.share.weight
        if flow.queue is None:
            flow.vt = max(flow.vt, level.vt)
            flow.queue = queue
            for each in self._levels.values() if self._resting_count else ():
                each.resting.discard(flow)
            if flow.active:
                self._rests.discard(flow)
        self._unsorted[flow] = queue

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its flow."""
        super().drop(request)
        if request.worker is None and request.flow not in self._flows:  # it left, and does not run
            self._rest(self._known[request.flow])

    def withdraw(self, queue: Queue) -> None:
        """Take a flow out of its places, since it is empty or its client is held back."""
        super().withdraw(queue)
        flow = self._known[queue.flow]
        if flow.queue is not None:
            flow.queue = None
            self._unsorted.pop(flow, None)
            for level in self._levels.values():  # its priority may have changed
                level.remove(flow)
            if flow.active and not queue.requests:
                self._stay(flow, queue.share)
            self._advance(self._levels[queue.share.priority])

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Charge a request that has begun."""
        self._running += 1
        if request.flow is None:
            request.flow = self.flow(request)  # it runs alone
        flow = self._known.get(request.flow)
        if flow is None:
            return  # an earlier epoch of the pool dispatched it
        flow.in_flight += 1
        flow.vt += self._policy.tau_s(request, flow, worker.device.spec) / request.share.weight
        self._policy.tokens.taken(worker)
        if flow.active:
            self._rests.discard(flow)
        if flow.device != worker.device.index:
            self._move(flow, worker.device.index)
        self._last[worker.device.index] = flow
        if flow.has_memory or self._resting_count:
            self._policy.warm.activate(flow)
        if flow.queue is not None:
            self._unsorted[flow] = flow.queue
        elif self._resting_count:
            self._stay(flow, request.share)
            self._advance(self._levels[request.share.priority])

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:  # noqa: ARG002
        """Take in that a request has ended."""
        self._running -= 1
        flow = self._known.get(request.flow)
        if flow is None or not flow.in_flight:
            return
        flow.in_flight -= 1
        if flow.queue is not None:
            self._unsorted[flow] = flow.queue
        elif flow.active and request.flow not in self._flows:
            self._stay(flow, request.share)
            self._rest(flow)
        if flow.has_memory:
            self._policy.warm.freed(flow)

    def ended(self, request: QueuedRequest, event: RequestDone) -> None:
        """Take in what a run took. One that failed moves no mean; it pays the mean at least, or nothing."""
        flow, worker = self._known.get(request.flow), request.worker
        if flow is None or worker is None:
            return
        device = worker.device.spec
        if event.outcome is Outcome.SUCCEEDED:
            flow.ran(event, device, lambda: self._policy.given(request.function), whole=self._policy.tau_all)
            return
        beyond_s = (event.device_s if self._policy.tau_all else event.run_s) - self._policy.tau_s(request, flow, device)
        flow.vt += (max(0.0, beyond_s) if event.device_s else beyond_s) / request.share.weight
        if flow.queue is not None:
            self._unsorted[flow] = flow.queue

    def lost(self, worker: WorkerState) -> None:
        """Let the flows of a worker that has ended choose a device anew."""
        for flow in self._policy.warm.on(worker.device.index):
            self._move(flow, -1)

    # --- virtual time

    def _sort(self) -> None:
        """Give the flows that have changed their places: once for each event, whatever has changed."""
        if not self._unsorted:
            return
        unsorted, self._unsorted = self._unsorted, {}
        for flow, queue in unsorted.items():
            level, key = self._levels[queue.share.priority], (flow.vt, queue.head.id)
            for places in (level.waiting, level.throttled) if flow in level.throttled else (level.waiting,):
                places.put(flow, key)
        for level in self._levels.values():
            self._advance(level)
        for flow in unsorted:
            self._place(flow)

    def _place(self, flow: TimedFlow) -> None:
        """Throttle a flow with requests, or let it go."""
        assert flow.queue is not None, "only flows with requests have a place"
        level, queue = self._levels[flow.queue.share.priority], flow.queue
        if flow.vt - level.vt > self._policy.T:
            level.throttle(flow, (flow.vt, queue.head.id))
            self._policy.warm.deactivate(flow)
            return
        if not flow.active and (flow.has_memory or self._resting_count):
            self._move(flow, self._policy.warm.device_for(flow))
            self._policy.warm.activate(flow)
        level.let_go(flow, self._key(flow, queue))

    def _advance(self, level: PriorityLevel) -> None:
        """Let the least virtual time grow, and flows go that are no longer too far ahead; first comes `_sort`."""
        grows = not self._unsorted and level.advance()
        while grows and (flow := level.throttled.first()) is not None and flow.vt - level.vt <= self._policy.T:
            level.throttled.discard(flow)
            self._place(flow)

    def _key(self, flow: TimedFlow, queue: Queue) -> SortKey:
        key, order = (flow.in_flight, -len(queue.requests), flow.vt, queue.head.id), self._policy.order_by
        skipped = 2 if order == "least_vt" else 1 if order == "longest" or self._policy.one_at_a_time else 0
        return key[skipped:]

    # --- activity and memory

    def _move(self, flow: TimedFlow, device: int) -> None:
        """Let a flow stick to another device."""
        if device == flow.device:
            return
        if flow.queue is not None:
            self._levels[flow.queue.share.priority].move(flow, device)
        self._policy.warm.move(flow, device)

    def _stay(self, flow: TimedFlow, share: ClientShare) -> None:
        """Count an empty flow among those that give the least virtual time, if it is active and the policy wants it."""
        if self._resting_count and flow.active:
            self._levels[share.priority].resting.put(flow, (flow.vt,))

    def _rest(self, flow: TimedFlow) -> None:
        """Let an empty flow be active while it runs, and for as long as its next request may be expected."""
        if flow.active and not flow.in_flight:
            self._rests.begin(flow, self._policy.now_s)

    def _end_rests(self) -> None:
        while (flow := self._rests.ended(self._policy.now_s)) is not None:
            self._policy.warm.deactivate(flow)
            for level in self._levels.values():
                if flow in level.resting:
                    level.resting.discard(flow)
                    self._advance(level)
        if self._rests.next_s is not None:
            self._policy.wake_at(self._rests.next_s)

    def _forget(self) -> None:
        """Forget the two flows called longest ago; one that has requests counts as called now instead."""
        for name in list(islice(self._known, 2)):
            flow = self._known.pop(name)
            if name in self or flow.in_flight:
                self._known[name] = flow
                continue
            self._policy.warm.deactivate(flow)
            self._rests.discard(flow)
            for level in self._levels.values():
                level.resting.discard(flow)
            self._policy.warm.reads(flow, NOTHING)

    # --- the next request

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker."""
        self._sort()
        self._end_rests()
        for priority in sorted(self._levels, reverse=True):
            level = self._levels[priority]
            if level.waiting:
                flow, worker = self._choose(level)
                if flow is None and not self._running:  # the least virtual time is that of a flow without requests
                    flow = level.waiting.first()
                worker = worker or self._policy.warm.roomiest(self._free_workers())
                return (flow.queue.head, worker) if flow and flow.queue and worker else None
        return None

    def _choose(self, level: PriorityLevel) -> tuple[TimedFlow | None, WorkerState | None]:
        """Return the flow that goes next, and its worker, or None for the one with most room.

        Each free device has flows: those whose memory it has, and those assigned to it. The first of all these, by the
        policy's order, goes. If there is none, the first of all other flows goes, unless the policy's flows are hard.
        The flows are walked through by their order, and the devices in turns with them, until either walk is complete.
        """
        if self._policy.order_by == "sticky" and (again := self._last_again(level)) is not None:
            return again
        found, first = None, None
        for flow, worker in zip(level.able, self._free_workers(), strict=False):
            first = first or worker
            if (home := self._policy.free_at_home(flow, first)) is not None:
                if found is None or level.able.key(flow) < level.able.key(found):
                    return flow, home
                break
            device = worker.device.index
            own = (found, *level.firsts_on(device, self._policy.warm.held_on(device)))
            found = min((each for each in own if each is not None), default=None, key=level.able.key)
        if found is not None and first is not None:
            return found, self._policy.free_at_home(found, first)
        return (None if self._policy.hard else level.able.first()), None

    def _free_workers(self) -> Iterator[WorkerState]:
        return self._policy.free_workers(self.group) if self.group else iter(())

    def _last_again(self, level: PriorityLevel) -> tuple[TimedFlow, WorkerState] | None:
        """Return the flow that the first free device ran last, if it may go on there."""
        for worker in self._free_workers():
            last = self._last.get(worker.device.index)
            if last is not None and last in level.able and last.device == worker.device.index:
                return last, worker
        return None

    def settled(self) -> None:
        """Bring the memory of the flows that became active and whose requests still wait."""
        self._sort()
        self._end_rests()
        if self._policy.warm.came:
            self._policy.warm.bring_all()
