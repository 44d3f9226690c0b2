"""Adaptive: boosted arrivals, locality, and memory by its worth; fair between clients, and in time for deadlines.

Each part has a source: the order is that of gamma-Boost (Yu, Scully 2024), the place that of LALB, the memory that of
GreedyDual-Size-Frequency (FaasCache, 2021), fairness that of start-time fair queueing between clients (DLPM, 2025).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter

from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies.boost import Boost, Costs
from kaas.scheduling.policies.boosted_scores import BoostedScores
from kaas.scheduling.policies.fair_share import ClientShare
from kaas.scheduling.policies.fair_turns import FairTurns
from kaas.scheduling.policies.flows_by_client import FlowsByClient, HeldBack
from kaas.scheduling.policies.holdings import NOTHING, Holdings, WorkingSet
from kaas.scheduling.policies.keep import Keep
from kaas.scheduling.policies.local_queues import LocalQueues
from kaas.scheduling.policies.options import check_flag, check_number
from kaas.scheduling.policies.orders import FunctionFlows, by_age
from kaas.scheduling.policies.reader_queue import Readers
from kaas.scheduling.policies.scheduler import Scheduler
from kaas.scheduling.policies.state import Chosen, Queue, QueuedRequest, RequestOrder, Serves, WorkerGroup, WorkerState
from kaas.scheduling.policies.urgent import UrgentRequests

COMPARED = 16
"""Free devices that are compared for a request: those with its memory, and for one that has to be loaded others."""
PRIORITY_THEN_TIME = itemgetter(0, 1, 2)


class Adaptive(Scheduler):
    """At each free device the request goes that arrived first, after a boost that is larger for cheap ones.

    Args:
        T: seconds of all devices, per weight, by which a client may be ahead of the one that waits and has had least.
        boost: a factor for the boosts; 0: first come, first served.
        fair: False: clients have no shares.
    """

    def __init__(
        self,
        devices: Sequence[PhysicalDevice],
        *,
        T: float = 10.0,  # noqa: N803 - the name of the option
        boost: float = 1.0,
        fair: bool = True,
    ) -> None:
        check_number("adaptive", "T", T)
        check_number("adaptive", "boost", boost)
        check_flag("adaptive", "fair", fair)
        self.lead_s = T * len(devices) if fair else math.inf
        self.boost = Boost(boost)
        self._orders: list[BoostedArrivals] = []
        super().__init__(devices)
        self.clients = self._fair_share
        self.costs = Costs(self._estimates, max(devices, key=lambda device: device.speed))
        self.mixed = len({(device.kind, device.speed) for device in devices}) > 1
        self.keep = Keep(self._holdings, self._estimates)

    def order(self, serves: Serves) -> RequestOrder:
        """Return the order of boosted arrivals; eTasks of one function go in the order of their arrival."""
        if serves.kind is WorkerKind.ETASK:
            return super().order(serves)
        made = BoostedArrivals(self, self._holdings)
        self._orders.append(made)
        self._estimated.append(made.estimated)
        self._recharged.append(made.recharged)
        return made

    def victims(self, request: QueuedRequest, worker: WorkerState) -> tuple[bytes, ...]:
        """Return the objects worth least on the device; those that its local queue reads stay."""
        return self.worth_least(request.reads, worker)

    def worth_least(self, reads: WorkingSet, worker: WorkerState) -> tuple[bytes, ...]:
        """Return the objects that a worker gives up for a working set."""
        orders = self._orders
        needed = (each for order in orders for each in order.needed_sets(worker))
        waits = orders[0].waited_for if len(orders) == 1 else lambda sets: any(each.waited_for(sets) for each in orders)
        return self.keep.victims(reads, worker.device.index, self.now_s, needed, waits)

    # --- the questions of the order

    def idle_worker(self, group: WorkerGroup) -> WorkerState | None:
        """Return the free worker that looks for a request next."""
        return self._placement.best(group)

    def held_by(self, worker: WorkerState) -> dict[WorkingSet, None]:
        """Return the working sets that are whole on a worker's device, or will be."""
        return self._holdings.memories[worker.device.index].whole

    def cost_s(self, request: QueuedRequest, worker: WorkerState) -> float:
        """Return the seconds that a request takes on a worker, with the load of what is missing."""
        return self._estimates.run_s(request, worker.device.spec) + self._estimates.load_s(request, worker.device.spec)

    def prefetch(self, request: QueuedRequest, worker: WorkerState) -> bool:
        """Load a request's memory on a busy worker, if no device has it and what leaves is worth less."""
        constants = request.reads.constants
        if not constants.nbytes or constants.whole:
            return False
        victims = self.worth_least(constants, worker)
        if not self.keep.brings(constants, worker.device.index, victims, self.now_s):
            return False
        self._cache_orders.prefetch(worker, constants.sizes, victims)
        return True

    def hit(self, request: QueuedRequest, idle: WorkerState) -> WorkerState | None:
        """Return the free worker on which a request loads nothing, `idle` before others; None if the devices differ."""
        constants = request.reads.constants
        if self.mixed or not constants.nbytes or idle.device.index in constants.whole:
            return None if self.mixed else idle
        memories, least, found = self._holdings.memories, (math.inf, 0, 0), None
        for worker in islice(request.group.free_on(constants.whole), COMPARED) if request.reads is constants else ():
            device = worker.device.index
            order = len(worker.running), -memories[device].free_bytes, device  # as `_preference` has it
            if order < least:
                least, found = order, worker
        return found

    def destination(self, request: QueuedRequest, idle: WorkerState, local: LocalQueues) -> WorkerState | None:
        """Return the worker that a request without a `hit` goes to; None: the request was promised to a busy one.

        That is a busy device with the request's memory, if the wait there costs less than a load on a free device; or
        the free device where it ends first, of equals the one that loses least. On devices of different speed a busy
        device may lack the memory. A load delays all that wait, but relieves the busy device of those promised to it.
        """
        group, holders = request.group, request.reads.constants.whole
        some = dict.fromkeys(group.free_on(holders))
        if not some or self.mixed:
            some |= dict.fromkeys((idle, *islice(group.free_on(group.open), COMPARED)))
        free = min(some, key=partial(self._preference, request)) if len(some) > 1 else next(iter(some))
        if free.device.index in holders and not self.mixed:
            return free
        devices = {each.index: None for each in group.partition.devices} if self.mixed else holders
        run_s = self._estimates.run_s(request, free.device.spec)
        load_s = self._estimates.load_s(request, free.device.spec)
        end_s, least_s = self.now_s + run_s + load_s, 0.0 if self.mixed else run_s
        others = (group.ready - len(local) - 1) / len(group.workers)
        busy = local.soonest(request, devices, self.now_s, least_s=least_s, before_s=end_s + others * load_s)
        if busy is None:
            return free
        spared_s = others * (load_s - self._estimates.load_s(request, busy.device.spec))
        end_s += spared_s / (1 + local.length(busy))
        if local.ends_s(request, busy, self.now_s) >= end_s:
            return free
        local.promise(request, busy, end_s - self.cost_s(request, busy))  # begun later, it costs more than the load
        return None

    def _preference(self, request: QueuedRequest, worker: WorkerState) -> tuple[float, ...]:
        """Return the order of free workers for a request: by its cost there, by what else runs, by what is lost."""
        device, reads = worker.device.index, request.reads
        missing_bytes, free_bytes = reads.nbytes - reads.held.get(device, 0), self._holdings.memories[device].free_bytes
        # where devices are alike, the run is as long everywhere, and so is the load of a byte
        cost = self.cost_s(request, worker) if self.mixed else missing_bytes
        lost = self.keep.loss(reads, device, self.now_s) if missing_bytes > max(0, free_bytes) else 0.0
        return cost, len(worker.running), lost, -free_bytes, device


class BoostedArrivals(BoostedScores):
    """The flows, one client's calls of one function each, by their boosted arrivals; and the local queues of workers.

    Flows whose costs are in one class have the same boost, so the first of a class is the one that came first.
    """

    _policy: Adaptive

    def __init__(self, policy: Adaptive, holdings: Holdings) -> None:
        super().__init__()
        self._policy = policy
        self._local = LocalQueues(policy.cost_s, overrun=1.0)
        self._turns = FairTurns(policy.clients, policy.lead_s)
        self._held_back = HeldBack()
        flows = partial(FlowsByClient, self._held_back)
        self._readers: Readers[Queue] = Readers(flows)
        holdings.whole_changed.append(self._readers.whole_changed)
        self._costs: dict[Queue, tuple[int, int]] = {}  # the classes of a run, and of a run with the load
        self._classes = defaultdict[int, FlowsByClient](flows)  # by the class of a run with the load
        self._of_function = FunctionFlows()
        self._urgent = UrgentRequests()

    def needed_sets(self, worker: WorkerState) -> list[WorkingSet]:
        """Return what the requests read that wait for a worker or run there."""
        return [request.reads for request in (*worker.running.values(), *self._local.requests(worker))]

    def waited_for(self, constants: WorkingSet) -> bool:
        """Return True if a request waits that reads a working set, and may go."""
        return self._readers.first_of(constants) is not None

    # --- flows

    def flow(self, request: QueuedRequest) -> Hashable:
        """Return the client and the function of a request."""
        return request.share, request.function

    def at_once(self, request: QueuedRequest) -> WorkerState | None:
        """Return the free worker with the memory of a request, if all that wait are promised; None: there is none."""
        overdue_s = self._local.next_overdue_s
        if self._flows or (overdue_s is not None and overdue_s <= self._policy.now_s):
            return None
        idle = self._policy.idle_worker(request.group)
        worker = None if idle is None else self._policy.hit(request, idle)
        if worker is not None:
            if request.reads.nbytes:
                request.reads.constants.function = request.function
            self._turns.passes(request.share)
        return worker

    def add(self, request: QueuedRequest) -> None:
        """Add a request to its flow."""
        if request.reads.nbytes:
            request.reads.constants.function = request.function
        self._enter(request)
        if request.deadline_s is not None:
            self._urgent.add(request, request.deadline_s - 2 * self._policy.costs.seconds(request)[1])

    def drop(self, request: QueuedRequest) -> None:
        """Remove a request from its flow, or from a local queue."""
        if request.deadline_s is not None:
            self._urgent.discard(request)
        if request in self._local:
            self._local.withdraw(request)
        else:
            self._leave(request)

    def _enter(self, request: QueuedRequest) -> None:
        self._turns.came(request)
        super().add(request)

    def _leave(self, request: QueuedRequest) -> None:
        self._turns.left(request)
        super().drop(request)

    def offer(self, queue: Queue) -> None:
        """Give a flow, whose first request is another one, its places."""
        super().offer(queue)
        self._of_function.add(queue)
        if not self._turns.waits(queue.share):
            self.take_turns(queue.share)
        self._put(queue)

    def withdraw(self, queue: Queue) -> None:
        """Take a flow out of its places."""
        super().withdraw(queue)
        self._of_function.discard(queue)
        self._remove_place(queue)
        self.take_turns(queue.share)

    def _put(self, queue: Queue, costs: tuple[int, int] | None = None) -> None:
        head = queue.head
        costs = costs or self._policy.costs.classes(head)
        _, whole = costs
        known = self._costs.get(queue)
        if known is not None and known[1] != whole:
            self._leave_class(queue, known[1])
        self._costs[queue] = costs
        key = (-head.share.priority, head.arrived_s or 0.0, head.id)
        self._classes[whole].put(queue, key)
        if head.reads.constants is not NOTHING:
            self._readers.put(queue, key, head.reads.constants)
        elif queue in self._readers:
            self._readers.discard(queue)  # its run costs the same on each device

    def _remove_place(self, queue: Queue) -> None:
        if (costs := self._costs.pop(queue, None)) is not None:
            if queue in self._readers:
                self._readers.discard(queue)
            self._leave_class(queue, costs[1])

    def _leave_class(self, queue: Queue, whole: int) -> None:
        self._classes[whole].discard(queue)
        if not self._classes[whole]:
            del self._classes[whole]

    def recharged(self, share: ClientShare) -> None:
        """Take in that a client's charge has changed."""
        if share in self.clients:
            self.take_turns(share)

    def take_turns(self, share: ClientShare) -> None:
        """Let the clients go that may go now, and hold the others back."""
        waits = share in self.clients and share not in self._parked
        for changed in self._turns.changed(share, waits=waits):
            if self._turns.may_go(changed):
                self._held_back.release(changed)
            else:
                self._held_back.hold(changed)

    def estimated(self, function: str) -> None:
        """Give the flows of a function places by its new times, if these are of another class."""
        for queue in self._of_function.get(function, ()):
            if (known := self._costs.get(queue)) is not None:
                if known == (costs := self._policy.costs.classes(queue.head)):
                    return  # so are those of the others
                self._put(queue, costs)

    # --- workers

    def dispatched(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in that a request has begun, and how long it waited."""
        if request.arrived_s is not None:
            self._policy.boost.waited(self._policy.now_s - request.arrived_s)
        self._turns.began(request)
        self._local.update(worker)

    def freed(self, request: QueuedRequest, worker: WorkerState) -> None:  # noqa: ARG002
        """Take in that a request has ended on a worker."""
        self._local.update(worker)

    def lost(self, worker: WorkerState) -> None:
        """Take requests that waited for a worker back into their flows."""
        for request in self._local.lost(worker):
            self.add(request)

    def first(self, skipped: int = 0) -> QueuedRequest | None:
        """Return the most urgent request, those in local queues included."""
        waiting = super().first(skipped)
        return min([*self._local.heads(), *([waiting] if waiting else [])], default=None, key=by_age)

    # --- the next request

    def next(self) -> Chosen | None:
        """Return the request that goes now, and its worker."""
        if (promised := self._local.next(self.held)) is not None:
            return promised
        if (overdue_s := self._local.next_overdue_s) is not None and overdue_s <= self._policy.now_s:
            self._take_back()
        while self._flows and self.group and (idle := self._policy.idle_worker(self.group)) is not None:
            chosen = (self._urgent_one(idle) if self._urgent.waiting else None) or self._best(idle)
            if chosen is None:
                break
            to = self._policy.hit(chosen, idle) or self._policy.destination(chosen, idle, self._local)
            if to is not None:
                return chosen, to
            self._leave(chosen)
        return self._local.next(self.held) if self._local.due else None

    def held(self, request: QueuedRequest) -> bool:
        """Return True if a promised request may not go: limits, one of higher priority, or another client's turn."""
        share = request.share
        if share in self._parked:
            return True
        firsts = [least[0] for flows in self._classes.values() if (least := flows.least())]
        return bool(firsts) and (min(firsts) < -share.priority or self._turns.yields(share))

    def _take_back(self) -> None:
        """Let requests go elsewhere that have waited for a busy worker for too long, if another worker is free."""
        while (late := self._local.overdue(self._policy.now_s)) and self._policy.idle_worker(late.group) is not None:
            self._local.withdraw(late)
            late.promised = False
            self._enter(late)

    def _best(self, idle: WorkerState) -> QueuedRequest | None:
        """Return the request of the least boosted arrival on a device."""
        boosts, costs, classes = self._policy.boost, self._costs, self._classes
        hits = self._readers.leasts(self._policy.held_by(idle)) if self._readers.sets else ()
        found = [(hit[0], hit[1] - boosts[costs[hit[-1]][0]], hit[2], hit[-1]) for hit in hits]
        for whole, flows in classes.items():
            if least := flows.least():
                found.append((least[0], least[1] - boosts[whole], least[2], least[-1]))
        return min(found, key=PRIORITY_THEN_TIME)[-1].head if found else None

    def _urgent_one(self, idle: WorkerState) -> QueuedRequest | None:
        """Return the request of the earliest deadline that can still be met, of those with less slack than they cost.

        It loads nothing: loads for deadlines push out what others need, and more deadlines are missed than met.
        """
        if (first := self.sorted_heads().first()) is None:
            return None
        policy, priority = self._policy, first.share.priority

        def may_go(share: ClientShare) -> bool:
            return share.priority >= priority and share not in self._parked and self._turns.may_go(share)

        def cost_s(request: QueuedRequest) -> float:
            waits = request in self._local or request.reads.constants.missing_bytes(idle.device.index)
            return math.inf if waits else policy.cost_s(request, idle)

        return self._urgent.first(policy.now_s, may_go, lambda request: policy.costs.seconds(request)[0], cost_s)

    def settled(self) -> None:
        """Load what the next request reads on the worker that is free soonest, and promise the request to it."""
        overdue_s = self._local.next_overdue_s
        if overdue_s is not None and overdue_s > self._policy.now_s:
            self._policy.wake_at(overdue_s)
        if not self._readers.homeless:
            return
        worker = self._local.next_free()
        request = None if worker is None else self._best(worker)
        if worker is not None and request is not None and self._policy.prefetch(request, worker):
            # another worker that is free sooner may have it
            self._local.promise(request, worker, self._policy.now_s)
            self._leave(request)
