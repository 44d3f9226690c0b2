"""Flows: places by virtual time, the device that each is warm on, what active ones bring and what others give up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from kaas.scheduling.events import FunctionKnown, PhysicalDevice, RequestDone
from kaas.scheduling.policies.cache_orders import CacheOrders
from kaas.scheduling.policies.estimates import Mean, Means, means, of_kind, told
from kaas.scheduling.policies.fair_share import SHORTEST_WAIT_S
from kaas.scheduling.policies.holdings import NOTHING, Holdings, WorkingSet
from kaas.scheduling.policies.locality import COMPARED, Locality
from kaas.scheduling.policies.orders import PriorityQueue, SortKey
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.reader_queue import ReaderQueue
from kaas.scheduling.policies.state import Queue, WorkerGroup, WorkerState


@dataclass(slots=True, eq=False)
class TimedFlow:
    """One client's calls of one function, also while it has no request.

    Fields:
        vt: its virtual time: the start tag of its first request, or the finish tag of its last one. weight: that of its
            client, by which it is ahead. in_flight: requests that run. gap_s: seconds between arrivals. arrived_s: the
            last arrival. device: where its memory is, or goes. reads: what its last request read. has_memory: that has
            constants. active: it may have memory on its device. queue: its waiting requests, unless its client is
            parked. rests_until_s: the end of its rest, if it rests. runs, device_s: the times of its own requests, as
            `FunctionTimes` has those of all clients' requests.
    """

    vt: float = 0.0
    weight: float = 1.0
    in_flight: int = 0
    gap_s: Mean = field(default_factory=Mean)
    arrived_s: float | None = None
    device: int = -1
    reads: WorkingSet = NOTHING
    has_memory: bool = False
    active: bool = False
    queue: Queue | None = None
    rests_until_s: float = 0.0
    runs: Means = field(default_factory=means)
    device_s: Mean = field(default_factory=Mean)

    def ran(
        self,
        event: RequestDone,
        device: PhysicalDevice,
        given: Callable[[], Mapping[str, FunctionKnown]],
        *,
        whole: bool,
    ) -> None:
        """Take in what a request took.

        given: returns what was told of its function, where the flow's times begin. whole: with loads, too.
        """
        if not self.runs:
            self.runs.update((kind, told(known.run_s, known.observations)) for kind, known in given().items())
        self.runs[device.kind].add(event.run_s * device.speed)
        if whole:
            self.device_s.add(event.device_s)

    def mean_s(self, device: PhysicalDevice, *, whole: bool) -> float | None:
        """Return the seconds of its requests on a device, with loads if `whole`; None if none has ended yet."""
        if whole and self.device_s.count:
            return self.device_s.value
        mean = self.runs.get(device.kind) or of_kind(self.runs, device.kind)
        return None if mean is None else mean.value / device.speed


class PriorityLevel:
    """The flows of one priority.

    Fields:
        vt: the least virtual time; it never falls. waiting: the flows with requests, by their virtual time. throttled:
            those of them that are too far ahead, by virtual time. able: the others, by the policy's order, with what
            those that have memory read. able_on: the same by their device; -1 has those without device or memory.
            resting: active flows without requests, by virtual time.
    """

    def __init__(self) -> None:
        self.vt = 0.0
        self.waiting: PriorityQueue[TimedFlow] = PriorityQueue()
        self.throttled: PriorityQueue[TimedFlow] = PriorityQueue()
        self.able: ReaderQueue[TimedFlow] = ReaderQueue()
        self.able_on = defaultdict[int, PriorityQueue[TimedFlow]](PriorityQueue)
        self.resting: PriorityQueue[TimedFlow] = PriorityQueue()

    def advance(self) -> bool:
        """Let the least virtual time grow with the flows that wait or rest. Return True if it has grown."""
        waiting, resting = self.waiting.first(), self.resting.first()
        if waiting is None or waiting.vt <= self.vt or (resting is not None and resting.vt <= self.vt):
            return False
        self.vt = waiting.vt if resting is None else min(waiting.vt, resting.vt)
        return True

    def let_go(self, flow: TimedFlow, key: SortKey) -> None:
        """Give a flow its place among those that may go."""
        self.throttled.discard(flow)
        if flow.has_memory:
            self.able.put_reader(flow, key, flow.reads.constants)
            self.able_on[flow.device].put(flow, key)
        else:
            self.able.put(flow, key)
            self.able_on[-1].put(flow, key)

    def throttle(self, flow: TimedFlow, key: SortKey) -> None:
        """Hold a flow back."""
        self._remove_able(flow)
        self.throttled.put(flow, key)

    def move(self, flow: TimedFlow, device: int) -> None:
        """Take in that a flow will be one of another device's."""
        if flow.has_memory and flow in self.able:
            self.able_on[flow.device].discard(flow)
            self.able_on[device].put(flow, self.able.key(flow))

    def firsts_on(self, device: int, held: Collection[WorkingSet]) -> list[TimedFlow | None]:
        """Return the first flow that finds its memory on a device, and the first ones of the device's and of none's."""
        own = [self.able_on[place].first() for place in (device, -1) if place in self.able_on]
        return [self.able.first_reading(held), *own]

    def remove(self, flow: TimedFlow) -> None:
        """Remove a flow with requests from all places."""
        self.waiting.discard(flow)
        if flow in self.able:
            self._remove_able(flow)
        else:
            self.throttled.discard(flow)

    def _remove_able(self, flow: TimedFlow) -> None:
        self.able.discard(flow)
        self.able_on[flow.device if flow.has_memory else -1].discard(flow)


class Rests:
    """The rests of flows without requests: each is active for as long as its next request may be expected.

    Args:
        alpha: a rest takes so many times the mean time between a flow's arrivals. unknown_s: the length of a rest while
            no such time is known.

    Fields:
        next_s: the time at which the next rest ends; None if no flow rests.
    """

    def __init__(self, alpha: float, unknown_s: float) -> None:
        self._alpha, self._unknown_s = alpha, unknown_s
        self._gap_s = Mean()
        self._ends: PriorityQueue[TimedFlow] = PriorityQueue()
        self.next_s: float | None = None

    def arrived(self, flow: TimedFlow, now_s: float) -> None:
        """Take in the arrival of a request."""
        if flow.arrived_s is not None:
            flow.gap_s.add(now_s - flow.arrived_s)
            self._gap_s.add(now_s - flow.arrived_s)
        flow.arrived_s = now_s

    def begin(self, flow: TimedFlow, now_s: float) -> None:
        """Begin the rest of a flow."""
        known = flow.gap_s if flow.gap_s.count else self._gap_s  # one that came once: as others come
        flow.rests_until_s = now_s + (self._alpha * known.value if known.count else self._unknown_s)
        self._ends.put(flow, (flow.rests_until_s,))
        self._changed()

    def discard(self, flow: TimedFlow) -> None:
        """End the rest of a flow, if it rests."""
        self._ends.discard(flow)
        self._changed()

    def _changed(self) -> None:
        first = self._ends.first()
        self.next_s = None if first is None else first.rests_until_s

    def ended(self, now_s: float) -> TimedFlow | None:
        """Return a flow whose rest has ended, and count it no more; None if there is none."""
        if self.next_s is None or self.next_s > now_s + SHORTEST_WAIT_S:
            return None
        flow = self._ends.first()
        assert flow is not None, "a flow rests until then"
        self.discard(flow)
        return flow


class WarmFlows:
    """The memory of flows on devices.

    The paper moves the memory of a flow off the device whenever the flow is throttled or inactive. Here such memory is
    the first to leave, and moves at once only where active flows lack room: in free memory it harms none.

    Fields:
        came: the flows that have become active, and whose memory nothing brings yet.
    """

    def __init__(self, holdings: Holdings, locality: Locality, placement: Placement, cache_orders: CacheOrders) -> None:
        self._holdings = holdings
        self._locality = locality
        self._placement = placement
        self._cache_orders = cache_orders
        self._active: dict[int, dict[TimedFlow, None]] = {}
        self.came: dict[TimedFlow, None] = {}
        self._compared = 0  # workers compared so far

    def on(self, device: int) -> list[TimedFlow]:
        """Return the active flows whose memory is on a device, or goes there."""
        return list(self._active.get(device, ()))

    def reads(self, flow: TimedFlow, reads: WorkingSet) -> None:
        """Take in what the last request of a flow reads."""
        if flow.reads is not reads:
            self._holdings.retain(reads)
            self._holdings.release(flow.reads)
            flow.reads, flow.has_memory = reads, reads.constants.nbytes > 0

    def device_for(self, flow: TimedFlow) -> int:
        """Return the device of a flow: the one it has, or another where its memory is, else the one with most room.

        Where no device has room enough, it is the one whose losses were used longest ago. -1 if no executor is up.
        """
        holders = flow.reads.constants.whole
        if flow.device in holders or flow.queue is None:
            return flow.device
        head, memories = flow.queue.head, self._holdings.memories
        up = [index for index in holders if self._executor(index) is not None]
        if not up:
            up = [worker.device.index for worker in self._some(head.group) if not worker.stopping]
        key = lambda index: (*self._locality.suits(head, index), -memories[index].free_bytes, index)  # noqa: E731
        return min(up, default=-1, key=key)

    def _some(self, group: WorkerGroup) -> list[WorkerState]:
        """Return the workers of a group; of many, as many as are compared, in each turn the next ones."""
        workers = list(group.workers.values())
        if len(workers) <= COMPARED:
            return workers
        begin = self._compared % len(workers)
        self._compared += COMPARED
        return [*workers[begin : begin + COMPARED], *workers[: max(0, begin + COMPARED - len(workers))]]

    def held_on(self, device: int) -> dict[WorkingSet, None]:
        """Return the working sets that are whole on a device, or will be."""
        return self._holdings.memories[device].whole

    def roomiest(self, workers: Iterable[WorkerState]) -> WorkerState | None:
        """Return the worker on the device with most room, of the first ones."""
        able, memories = list(islice(workers, COMPARED)), self._holdings.memories
        return min(able, default=None, key=lambda each: (-memories[each.device.index].free_bytes, each.device.index))

    def move(self, flow: TimedFlow, device: int) -> None:
        """Let a flow stick to another device."""
        if flow.active:
            self._active[flow.device].pop(flow, None)
            self._active.setdefault(device, {})[flow] = None
        flow.device = device

    def activate(self, flow: TimedFlow) -> None:
        """Let a flow have memory on its device."""
        if not flow.active:
            flow.active = True
            self._active.setdefault(flow.device, {})[flow] = None
            self.came[flow] = None

    def deactivate(self, flow: TimedFlow) -> None:
        """Let a flow give its memory up."""
        if flow.active:
            flow.active = False
            self.came.pop(flow, None)
            self._active[flow.device].pop(flow, None)
            self.freed(flow)

    def freed(self, flow: TimedFlow) -> None:
        """Take in that a request of a flow has ended: one that is not active may have memory to give up."""
        if flow.has_memory and not flow.active and not flow.in_flight and flow.device >= 0:
            self._give_up(flow)

    def bring_all(self) -> None:
        """Load the memory of the flows that became active and whose requests still wait."""
        came, self.came = self.came, {}
        for flow in came:
            if flow.queue is not None and flow.device >= 0:
                self._bring(flow)

    def victims(self, reads: WorkingSet, device: int) -> tuple[bytes, ...]:
        """Return the objects of flows that are not active, those used longest ago first, as far as room is needed."""
        return self._holdings.least_recently_used(reads, device, [flow.reads for flow in self.on(device)])

    def _bring(self, flow: TimedFlow) -> None:
        """Prefetch the memory of a flow, if only that of flows that are not active has to leave."""
        device, constants = flow.device, flow.reads.constants
        worker, memory = self._executor(device), self._holdings.memories[device]
        missing_bytes = constants.missing_bytes(device)
        if worker is None or not missing_bytes:
            return
        victims = self.victims(constants, device)
        leaving_bytes = sum(self._holdings.size(key) for key in victims)
        if memory.capacity_bytes is None or missing_bytes <= memory.free_bytes + leaving_bytes:
            self._cache_orders.prefetch(worker, constants.sizes, victims)

    def _give_up(self, flow: TimedFlow) -> None:
        """Move the memory of a flow to the host, if active flows with requests lack room on its device."""
        device, active = flow.device, [each.reads for each in self.on(flow.device)]
        worker, memory = self._executor(device), self._holdings.memories[device]
        waiting = [each.reads for each in self.on(device) if each.queue is not None]
        lacking_bytes = sum(reads.missing_bytes(device) for reads in waiting)
        if worker is None or memory.capacity_bytes is None or lacking_bytes <= memory.free_bytes:
            return
        keys = [key for key in flow.reads.constants.sizes if key in memory.used and key not in memory.coming]
        if leaving := tuple(key for key in keys if not any(key in reads.sizes for reads in active)):
            self._cache_orders.to_host(worker, leaving)

    def _executor(self, device: int) -> WorkerState | None:
        """Return the executor of a device, if it is up."""
        workers = self._placement.devices[device].workers.values()
        return next((each for each in workers if not each.starting and not each.stopping), None)
