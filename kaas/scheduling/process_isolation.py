"""Process isolation: any policy, with executors of its own for each client.

The policy inside decides as ever: it sees one executor on each device, which serves all clients. Each decision about
that executor becomes one about the executor of the request's client on that device. So a device has executors of
several clients, and a spare one, which has started ahead and serves no client yet. If a request of a client without an
executor is dispatched to a device that has its most clients, an executor ends for it: `DeviceExecutors.gives_way`.

A request whose executor is not ready takes no slot: for the policy inside it fails without having had the device, and
arrives again as a request that awaits inputs, which are there when the executor is ready. Others go meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from msgspec import structs

from kaas.scheduling import events
from kaas.scheduling.candidates import Why
from kaas.scheduling.client_executors import ClientExecutor, DeviceExecutors, DividedOrder
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    Policy,
    Prefetch,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import Outcome, WorkerKind


class ProcessIsolation:
    """The policy that keeps the clients of another policy apart.

    Args:
        policy: the policy inside. devices: of the pool; each has a number of `client_executors`.
    """

    def __init__(self, policy: Policy, devices: Sequence[events.PhysicalDevice]) -> None:
        self._policy = policy
        self.utilisation_every_s = getattr(policy, "utilisation_every_s", None)
        self._why: Callable[[int], Why | None] = getattr(policy, "why", lambda _: None)
        self.missed_windows: Callable[[], Mapping[str, int]] = getattr(policy, "missed_windows", dict)
        self._devices = {each.index: DeviceExecutors(each.index, each.client_executors or 1) for each in devices}
        self._numbers = count()
        self._part_numbers = count(1)
        self._on: dict[int, DeviceExecutors] = {}  # the device of each executor
        self._shared: dict[int, DeviceExecutors] = {}  # the device of each executor that the policy sees
        self._etasks: dict[int, int] = {}  # the policy's numbers of eTask workers, by those of the pool
        self._requests: dict[int, events.RequestArrived] = {}
        self._busy: dict[str, int] = {}  # how many requests each client has
        self._placed: dict[int, DeviceExecutors] = {}  # the devices of those that executors run
        self._called: dict[int, int] = {}  # the worker of each that an eTask worker runs
        self._awaited: dict[int, ClientExecutor] = {}  # the executors that have started for requests
        self._readers: dict[bytes, dict[str, int]] = {}  # for each object, how many requests of a client read it
        self._parts: dict[int, tuple[DividedOrder, tuple[bytes, ...]]] = {}  # of orders, by number, with their objects
        self._refused: list[DividedOrder] = []
        self._touched: dict[DeviceExecutors, None] = {}  # devices where executors may have to start or end
        self._finishing: dict[DeviceExecutors, None] = {}  # devices where one ends that has requests to finish first
        self._inside: deque[events.Event] = deque()
        self._decisions: list[Decision] = []
        self._now_s = 0.0

    def why(self, request: int) -> Why | None:
        """Return why a request has not gone yet, as the policy inside does."""
        found = self._why(request)
        if found is not None and any(request in device.waiting for device in self._devices.values()):
            return replace(found, waits_for="an executor of its client")
        return found

    def handle(self, event: events.Event) -> list[Decision]:
        """Take an event in, and return the decisions that follow."""
        self._now_s = event.time_s
        # told with the next event: a policy that repeats a refused order at once does not do so for ever
        self._inside.extend([order.answer(event.time_s) for order in self._refused if order.shared in self._shared])
        self._refused.clear()
        self._inside.extend(self._translate(event))
        while self._inside or self._touched:
            for decision in self._policy.handle(self._inside.popleft()) if self._inside else ():
                self._carry_out(decision)
            while self._touched and not self._inside:  # an executor that runs a request does not end for another
                self._settle(self._touched.popitem()[0])
        decisions, self._decisions = self._decisions, []
        return decisions

    # --- events, as the policy inside sees them

    def _translate(self, event: events.Event) -> Iterator[events.Event]:
        match event:
            case events.RequestArrived():
                self._requests[event.request] = event
                self._count(event, 1)
                yield event
            case events.Tick():
                self._touched.update(dict.fromkeys([each for each in self._devices.values() if each.waiting]))
                yield event
            case events.RequestDone():
                yield from self._done(event)
            case events.WorkerReady() if event.worker in self._etasks:
                yield replace(event, worker=self._etasks[event.worker])
            case events.RequestCancelled():
                if event.request not in self._placed:
                    self._unplaced(event.request)
                yield event
            case events.WorkerReady():
                yield from self._ready(event)
            case events.WorkerGone():
                yield from self._gone(event)
            case events.WorkerAdopted():
                # only the pool's last process knew its client
                self._numbers = count(max(next(self._numbers), event.worker + 1))
                self._decisions.append(StopWorker(event.worker))
            case events.Residency() if event.worker in self._on:
                yield from self._moved(event, self._on[event.worker])
            case events.Ordered() if event.order in self._parts:
                yield from self._answered(event)
            case events.Residency() | events.Ordered():
                pass  # of an adopted executor
            case events.DeviceRemoved():
                yield event
                self._again(self._devices[event.device], len(self._devices[event.device].waiting))
            case events.ClientGone():
                for device in self._devices.values():
                    if (executor := device.executor_of(event.client)) is not None:
                        self._stop(executor)
                yield event
            case _:
                yield event

    def _done(self, event: events.RequestDone) -> Iterator[events.Event]:
        if (device := self._placed.get(event.request)) is not None:
            executor = device.executors[event.worker]
            del executor.running[event.request]
            executor.unused_s = event.time_s
            if device.waiting or device.closing:
                self._touched[device] = None
            for other in [each for each in self._finishing if each is not device]:
                self._again(other, 1)
            yield self._ended(event)
        elif event.worker in self._etasks:
            del self._called[event.request]
            self._forget(event.request)
            yield structs.replace(event, worker=self._etasks[event.worker])

    def _count(self, request: events.RequestArrived, more: int) -> None:
        """Count that a client has a request which reads its objects, or no longer has it."""
        self._busy[request.client] = self._busy.get(request.client, 0) + more
        if not self._busy[request.client]:
            del self._busy[request.client]
        for use in request.inputs:
            if use.key is not None:
                readers = self._readers.setdefault(use.key, {})
                readers[request.client] = readers.get(request.client, 0) + more
                if not readers[request.client]:
                    del readers[request.client]
                if not readers:
                    del self._readers[use.key]

    def _forget(self, request: int) -> None:
        if (arrived := self._requests.pop(request, None)) is not None:
            self._count(arrived, -1)

    def _unplaced(self, request: int) -> None:
        """Forget a request that does not run."""
        for device in self._devices.values():
            device.waiting.pop(request, None)
        self._served(request)
        self._forget(request)

    def _served(self, request: int) -> None:
        """Take in that no executor has to be kept for a request any more."""
        if (executor := self._awaited.pop(request, None)) is not None:
            executor.awaited.discard(request)
            self._touched[self._on[executor.worker]] = None

    def _ended(self, event: events.RequestDone) -> events.RequestDone:
        """Forget a request that an executor has run; return the event of its end."""
        device = self._placed.pop(event.request)
        self._forget(event.request)
        assert device.shared is not None, "a request is there"
        return structs.replace(event, worker=device.shared)

    def _ready(self, event: events.WorkerReady) -> Iterator[events.Event]:
        device = self._on[event.worker]
        executor = device.executors[event.worker]
        executor.ready = True
        device.start_s = min(device.start_s, event.time_s - executor.began_s)
        device.failed = False
        self._touched[device] = None
        if not device.seen and device.shared is not None:
            device.seen = True
            yield replace(event, worker=device.shared)

    def _gone(self, event: events.WorkerGone) -> Iterator[events.Event]:
        if (device := self._on.pop(event.worker, None)) is not None:
            yield from self._executor_gone(event, device)
        elif (etask := self._etasks.pop(event.worker, None)) is not None:
            for request in [each for each, worker in self._called.items() if worker == event.worker]:
                del self._called[request]
                self._forget(request)
            yield replace(event, worker=etask)

    def _executor_gone(self, event: events.WorkerGone, device: DeviceExecutors) -> Iterator[events.Event]:
        executor = device.executors.pop(event.worker)
        assert device.shared is not None, "its executors end first"
        self._touched[device] = None
        self._finishing.pop(device, None)
        unstarted = not executor.ready and not executor.stopping
        device.failed = device.failed or unstarted
        for part in executor.parts:
            yield from self._part_ended(part, (), event.time_s)
        for request in executor.awaited:
            del self._awaited[request]
        for request in list(device.waiting) if unstarted else ():
            self._unplaced(request)
            self._decisions.append(Reject(request, event.reason))
            yield events.RequestCancelled(event.time_s, request)
        charged_s = dict(event.device_s)
        if left := device.left(executor, list(executor.keys)):
            yield events.Residency(event.time_s, device.shared, (), left)
        for request, slot in executor.running.items():
            device_s = charged_s.get(request, 0.0)
            ended = (request, event.worker, slot, Outcome.FAILED, device_s, device_s)
            yield self._ended(events.RequestDone(event.time_s, *ended))
        if device.failed and not device.executors:
            device.closing = event.reason or "it ended"

    def _close(self, device: DeviceExecutors, shared: int) -> None:
        """Take the executor from the policy's view, which hears of its end, and of the requests that waited for it."""
        del self._shared[shared]
        self._inside.append(events.WorkerGone(self._now_s, shared, device.closing))
        self._inside += [events.InputsReady(self._now_s, request) for request in device.waiting]
        device.shared, device.seen, device.closing = None, False, ""
        device.waiting.clear()

    def _moved(self, event: events.Residency, device: DeviceExecutors) -> Iterator[events.Event]:
        executor = device.executors[event.worker]
        left = device.left(executor, event.evicted)
        loaded = device.loaded(executor, event.loaded)
        if (loaded or left) and device.shared is not None:
            host = tuple([key for key in event.host if key in left])
            yield events.Residency(event.time_s, device.shared, loaded, left, host)

    def _answered(self, event: events.Ordered) -> Iterator[events.Event]:
        order, keys = self._parts[event.order]
        self._on[event.worker].executors[event.worker].parts.discard(event.order)
        order.loaded.update(event.loaded)
        order.seconds += event.seconds
        yield from self._part_ended(event.order, [key for key in keys if key not in event.refused], event.time_s)

    def _part_ended(self, part: int, there: Sequence[bytes], time_s: float) -> Iterator[events.Event]:
        order, _ = self._parts.pop(part)
        order.parts -= 1
        order.there.update(there)
        if not order.parts and order.shared in self._shared:
            yield order.answer(time_s)

    # --- decisions of the policy inside

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Dispatch() if (device := self._shared.get(decision.worker)) is not None:
                self._dispatch(decision, device)
            case Dispatch():
                worker = self._called[decision.request] = self._etask(decision.worker)
                self._decisions.append(structs.replace(decision, worker=worker))
            case StartWorker(kind=WorkerKind.EXECUTOR):
                device = self._devices[decision.device]
                device.shared, device.failed = decision.worker, False
                self._shared[decision.worker] = device
                self._touched[device] = None
            case StartWorker():
                worker = next(self._numbers)
                self._etasks[worker] = decision.worker
                self._decisions.append(replace(decision, worker=worker))
            case StopWorker() if (device := self._shared.get(decision.worker)) is not None:
                device.closing = "stopped"
                self._touched[device] = None
            case StopWorker():
                self._decisions.append(StopWorker(self._etask(decision.worker)))
            case Prefetch() | Evict():
                self._order(decision)
            case Reject():
                self._unplaced(decision.request)
                self._decisions.append(decision)
            case _:
                self._decisions.append(decision)

    def _etask(self, worker: int) -> int:
        return next(outside for outside, inside in self._etasks.items() if inside == worker)

    def _order(self, decision: Prefetch | Evict) -> None:
        """Divide an order among the executors that it concerns."""
        device = self._shared.get(decision.worker)
        keys: dict[ClientExecutor, list[bytes]] = {}
        if device is not None:
            for key in decision.keys:
                for executor in self._concerned(decision, device, key):
                    keys.setdefault(executor, []).append(key)
        order = DividedOrder(decision.worker, decision.order, decision.keys, len(keys))
        for executor, mine in keys.items():
            part = next(self._part_numbers)
            executor.parts.add(part)
            self._parts[part] = order, tuple(mine)
            divided = replace(decision, worker=executor.worker, keys=tuple(mine), order=part)
            if isinstance(divided, Prefetch) and divided.victims:
                divided = replace(divided, victims=executor.own(divided.victims))
            self._decisions.append(divided)
        if not keys:
            self._refused.append(order)

    def _concerned(self, decision: Prefetch | Evict, device: DeviceExecutors, key: bytes) -> Iterator[ClientExecutor]:
        if isinstance(decision, Evict):
            yield from [each for each in device.executors.values() if key in each.keys]
            return
        for client in self._readers.get(key, ()):
            if (executor := device.executor_of(client)) is not None and executor.ready:
                yield executor
                return

    # --- executors

    def _dispatch(self, dispatch: Dispatch, device: DeviceExecutors) -> None:
        """Send a request to its client's executor, or let it wait for one without its slot."""
        request = self._requests[dispatch.request]
        executor = device.executor_of(request.client) or device.take(request, self._now_s)
        self._touched[device] = None
        self._served(dispatch.request)
        if executor is not None and executor.ready:
            for each in executor.awaited:
                del self._awaited[each]
            executor.awaited.clear()
            executor.running[dispatch.request], executor.has_share = dispatch.slot, bool(request.share)
            self._placed[dispatch.request] = device
            victims = executor.own(dispatch.victims) if dispatch.victims else ()
            self._decisions.append(structs.replace(dispatch, worker=executor.worker, victims=victims))
            return
        device.waiting[dispatch.request] = request
        ended = (dispatch.request, dispatch.worker, dispatch.slot, Outcome.FAILED, 0.0)
        again = structs.replace(request, time_s=self._now_s, ready=False, attempt=request.attempt + 1)
        self._inside += events.RequestDone(self._now_s, *ended), again

    def _settle(self, device: DeviceExecutors) -> None:
        """Let requests go that wait for executors; start, give away and end executors as far as that needs it."""
        for request, arrived in list(device.waiting.items()):
            executor = device.executor_of(arrived.client) or device.take(arrived, self._now_s)
            if executor is not None and executor.ready:
                del device.waiting[request]
                executor.awaited.add(request)
                self._awaited[request] = executor
                self._inside.append(events.InputsReady(self._now_s, request))
        if device.shared is None:
            return
        without = bool(device.without())
        if without and device.awaits_end():
            self._make_room(device)
        if device.executor_of("") is None and not device.closing and (without or not device.failed):
            worker = next(self._numbers)
            device.executors[worker] = ClientExecutor(worker, self._now_s)
            self._on[worker] = device
            self._decisions.append(StartWorker(worker, WorkerKind.EXECUTOR, device.index))
        elif device.closing and not device.executors:
            self._close(device, device.shared)
        elif device.closing:
            for executor in device.idle():
                self._stop(executor)

    def _make_room(self, device: DeviceExecutors) -> None:
        """End an executor for a client without one, now or at the time from which one may end."""
        if (executor := device.gives_way(self._now_s, self._busy)) is not None:
            self._stop(executor)
            if executor.running:
                self._finishing[device] = None
                self._again(device, len(device.waiting))
            return
        wake_s = device.next_s(self._now_s, self._busy)
        if wake_s and not self._now_s < device.wake_s <= wake_s:
            device.wake_s = wake_s
            self._decisions.append(WakeAt(wake_s))

    def _again(self, device: DeviceExecutors, most: int) -> None:
        """Let the policy decide again on requests that wait for an executor: another device may be free sooner."""
        for request in list(device.waiting)[:most]:
            del device.waiting[request]
            self._inside.append(events.InputsReady(self._now_s, request))

    def _stop(self, executor: ClientExecutor) -> None:
        executor.stopping = True
        self._decisions.append(StopWorker(executor.worker))


def isolated(policy: Policy, devices: Sequence[events.PhysicalDevice]) -> Policy:
    """Return a policy, which keeps clients apart if the devices have executors of each."""
    return ProcessIsolation(policy, devices) if any(each.client_executors for each in devices) else policy
