"""What all policies share: events into the books, then dispatch, then devices for those who still wait.

A policy says three things more: which crew a request belongs to (`place`), which request of a crew goes next to which
free worker (`choose`), and which crew is served first (`urgency`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from kaas.errors import PolicyError
from kaas.scheduling.events import (
    ClientGone,
    ClientKnown,
    Decision,
    Dispatch,
    Event,
    InputsReady,
    Outcome,
    PhysicalDevice,
    Reject,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    Tick,
    Utilisation,
    WakeAt,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.policies.fair_share import NOBODY, SHORTEST_WAIT_S, ClientShare, FairShare
from kaas.scheduling.policies.locality import Locality
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import (
    DeviceState,
    Partition,
    Queue,
    QueuedRequest,
    Serves,
    WorkerGroup,
    WorkerState,
)

SHARED = Serves(WorkerKind.EXECUTOR)
"""The crew of executors that run everybody's kTasks."""
CREWS = 4096
"""Crews without worker and request that are remembered, for when they last gave up a device."""


class Scheduler:
    """The part of a policy that keeps books. Each decision is made from them alone, so equal events give equal ones."""

    work_conserving: ClassVar[bool] = False
    fair: ClassVar[bool] = False
    """Clients that always have requests waiting get device time by their weights. Whoever says so is tested for it."""
    conserving_devices: ClassVar[bool] = True
    """A crew without requests gives its idle workers to whoever waits, whatever the sizes of their crews."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._accounts = FairShare(len(devices))
        self._locality = Locality(devices)
        self._fleet = Placement(
            self.territories(devices), self._accounts, self.rank, conserving=self.conserving_devices
        )
        self._requests: dict[int, QueuedRequest] = {}
        self._stirred: dict[WorkerGroup, None] = {}
        self._touched: dict[Partition, None] = {}
        self._open = False
        self._most_crews = CREWS
        self._now_s = 0.0
        self._wake_s: float | None = None

    # --- what a policy says

    def territories(self, devices: Sequence[PhysicalDevice]) -> list[Partition]:
        """Who competes for which devices: here everybody for all, and free ones get an executor for all."""
        return [territory(devices, home=SHARED)]

    def place(self, kind: WorkerKind, client: str, function: str) -> tuple[Serves, Partition]:
        """Whose requests wait together: here all kTasks, and the eTasks of each client and function."""
        serves = SHARED if kind is WorkerKind.EXECUTOR else Serves(kind, client, function)
        return serves, self._fleet.territories[0]

    def rank(self, worker: WorkerState) -> tuple[float, float, float]:
        """Which of the free workers that suit equally is used: the least is. Here the least busy, the fastest, then the
        lowest device."""
        return len(worker.running), -worker.device.spec.speed, worker.device.index

    def suited(self, crew: WorkerGroup, request: QueuedRequest) -> WorkerState | None:
        """Return the free worker for a request: of the least busy ones the one on the device that suits it."""
        best = self._fleet.best(crew)
        return None if best is None else self._locality.choose(request, crew, best, self.rank)

    def choose(self, crew: WorkerGroup) -> tuple[QueuedRequest, WorkerState] | None:
        """The next request to run and the worker for it: here the oldest of the highest priority."""
        if self._fleet.best(crew) is None:
            return None
        best: QueuedRequest | None = None
        for queue in crew.queues.values():
            account = queue.account
            if account.limited and self._accounts.held(account, self._now_s):
                continue
            head = queue.head
            if best is None or (-account.priority, head.id) < (-best.account.priority, best.id):
                best = head
        if best is None:
            return None
        worker = self.suited(crew, best)
        return None if worker is None else (best, worker)

    def urgency(self, crew: WorkerGroup, provided: int = 0) -> tuple[float, ...]:
        """Which of several crews is served first: the least. Here the one with the oldest request of the highest
        priority, provided: those left out for which workers are on their way."""
        return min((-request.account.priority, request.id) for request in crew.next(provided))

    # --- events

    def handle(self, event: Event) -> list[Decision]:
        self._now_s = self._fleet.now_s = event.time_s
        self._accounts.wake_s = None
        if self._wake_s is not None and event.time_s >= self._wake_s - SHORTEST_WAIT_S:
            self._wake_s = None
            self._stir_all()
        match event:
            case RequestArrived():
                self._arrive(event)
            case RequestDone():
                self._done(event)
            case InputsReady():
                self._enqueue(self._queued(event.request))
            case Residency():
                self._locality.moved(event, self._known(event.worker).device.index)
            case RequestCancelled():
                self._cancel(event.request)
            case WorkerReady():
                self._stir(self._up(event).crew)
            case WorkerGone():
                self._lose(event)
            case WorkerAdopted():
                self._adopt(event)
            case ClientKnown():
                self._accounts.know(event)
                self._stir_all()
            case ClientGone():
                self._client_gone(event.client)
            case Tick():
                self._open = True
                self._wake_s = None
                self._stir_all()
            case Utilisation():
                pass
        return self._decide()

    def holds(self, request: int) -> bool:
        """Whether limits of its client keep a ready request from running now."""
        return self._accounts.held(self._requests[request].account, self._now_s)

    def _arrive(self, event: RequestArrived) -> None:
        if event.request in self._requests:
            raise PolicyError(f"request {event.request} arrived twice")
        account = self._accounts[event.client]
        self._accounts.arrived(account, again=event.attempt > 1)
        crew = self._crew(event.kind, event.client, event.function)
        request = QueuedRequest(
            event.request, account, crew, event.inputs, event.deadline_s, event.alone, arrived_s=event.time_s
        )
        self._requests[request.id] = request
        if (reason := self._fleet.why_dead(crew)) is not None:
            self._reject([request], reason)
        elif event.ready:
            self._enqueue(request)

    def _crew(self, kind: WorkerKind, client: str, function: str) -> WorkerGroup:
        serves, place = self.place(kind, client, function)
        crew = self._fleet.crews.get(serves)
        if crew is None:
            if len(self._fleet.crews) >= self._most_crews:
                self._fleet.forget({request.crew for request in self._requests.values()})
                self._most_crews = max(CREWS, 2 * len(self._fleet.crews))
            crew = self._fleet.crew(serves, place)
        return crew

    def _enqueue(self, request: QueuedRequest) -> None:
        crew, account = request.crew, request.account
        request.ready = True
        crew.ready += 1
        crew.territory.hungry[crew.serves] = crew
        if request.alone:
            crew.alone[request.id] = request
        else:
            queue = crew.queues.get(account.client)
            if queue is None:
                queue = crew.queues[account.client] = Queue(account)
            queue.push(request)
        self._stir(crew)

    def _dequeue(self, request: QueuedRequest) -> None:
        crew, client = request.crew, request.account.client
        request.ready = False
        crew.ready -= 1
        if not crew.ready:
            del crew.territory.hungry[crew.serves]
        if request.alone:
            del crew.alone[request.id]
            self._keep_none(request)
        else:
            queue = crew.queues[client]
            del queue.requests[request.id]
            if not queue.requests:
                del crew.queues[client]

    def _cancel(self, number: int) -> None:
        request = self._known_request(number)
        if request.worker is None:  # else its slot is free when the worker says so
            self._leave(request)

    def _leave(self, request: QueuedRequest) -> None:
        """A queued request goes."""
        if request.ready:
            self._dequeue(request)
            self._stir(request.crew)
        del self._requests[request.id]
        self._accounts.ended(request.account)

    def _done(self, event: RequestDone) -> None:
        request = self._known_request(event.request)
        worker, account = request.worker, request.account
        if worker is None or worker.id != event.worker:
            raise PolicyError(f"request {event.request} does not run on worker {event.worker}")
        self._fleet.free_slot(worker, event.slot, request)
        if request.brings:
            self._locality.ended(request, worker.device.index)
        del self._requests[request.id]
        if account is not NOBODY:
            # what failed without having had the device says nothing of what it takes, nor what was begun elsewhere
            failed = event.outcome is Outcome.FAILED and not event.device_s
            counts = request.estimate_s is not None and not failed
            latency_s = None if request.arrived_s is None else event.time_s - request.arrived_s
            self._accounts.measured(account, request.estimate_s, event.device_s, latency_s if counts else None)
            self._accounts.ended(account)
        self._freed(worker, account)

    def _freed(self, worker: WorkerState, account: ClientShare) -> None:
        """Something ended on a worker: whoever waited for that may go on."""
        self._stir(worker.crew)
        for other in worker.device.workers.values():
            if other is not worker:
                self._stir(other.crew)
        if account.limited:
            self._stir_all()

    def _adopt(self, event: WorkerAdopted) -> None:
        serves = Serves(event.kind, event.client, event.function)
        where = self._fleet.devices[event.device].territory
        fits = (serves, where) == self.place(*serves) and (serves.client or serves == where.home)
        crew = (
            self._fleet.crew(serves, where, born=event.device)
            if fits
            else WorkerGroup(serves, where, (0, event.device))
        )
        worker = self._fleet.adopt(event, crew)
        if event.kind is WorkerKind.EXECUTOR:
            self._locality.ready(event.device, event.memory_bytes)
        for running in event.running:
            account = self._accounts[running.client] if running.client else NOBODY
            request = QueuedRequest(running.request, account, worker.crew, worker=worker)
            request.ends_s = event.time_s if running.ends_s is None else running.ends_s
            self._requests[request.id] = worker.running[request.id] = request
            worker.crew.running += 1
            if account is not NOBODY:
                self._accounts.arrived(account)
                account.running += 1
        self._fleet.offer(worker)
        if not fits:  # another policy started it, for whom this one has no use
            self._fleet.stop(worker)
        self._stir(worker.crew)

    def _lose(self, event: WorkerGone) -> None:
        worker, charged_s = self._fleet.gone(event), dict(event.device_s)
        for request in worker.running.values():
            worker.crew.running -= 1
            del self._requests[request.id]
            self._locality.ended(request, worker.device.index)
            if request.account is not NOBODY:
                self._accounts.lost(request.account, request.estimate_s, charged_s.get(request.id, 0.0))
                self._accounts.ended(request.account)
                self._freed(worker, request.account)
        if not worker.device.workers:
            self._locality.emptied(worker.device.index)
        self._freed(worker, NOBODY)
        self._fleet.inherit(worker.device)
        if worker.starting:
            self._give_up(worker.crew.territory)

    def _up(self, event: WorkerReady) -> WorkerState:
        worker = self._fleet.ready(event)
        if event.kind is WorkerKind.EXECUTOR:
            self._locality.ready(event.device, event.memory_bytes)
        return worker

    def _give_up(self, where: Partition) -> None:
        """Nobody should wait for a worker that can never start."""
        reasons: dict[WorkerGroup, str | None] = {}
        lost: list[tuple[QueuedRequest, str]] = []
        for request in self._requests.values():
            crew = request.crew
            if request.worker is None and crew.territory is where:
                if crew not in reasons:
                    reasons[crew] = self._fleet.why_dead(crew)
                if (reason := reasons[crew]) is not None:
                    lost.append((request, reason))
        for request, reason in sorted(lost, key=lambda each: each[0].id):
            self._reject([request], reason)

    def _reject(self, requests: Iterable[QueuedRequest], reason: str) -> None:
        for request in requests:
            self._leave(request)
            self._fleet.decisions.append(Reject(request.id, reason))

    def _client_gone(self, client: str) -> None:
        """Nobody needs its own workers any more."""
        self._accounts.gone(client)
        for crew in [crew for crew in self._fleet.crews.values() if crew.serves.client == client]:
            if not crew.ready:
                for worker in list(crew.workers.values()):
                    if not worker.stopping:
                        self._fleet.stop(worker)
        self._stir_all()

    # --- decisions

    def _decide(self) -> list[Decision]:
        fleet = self._fleet
        if self._stirred:
            stirred, self._stirred = self._stirred, {}
            alone = len(stirred) == 1
            for crew in stirred if alone else sorted((crew for crew in stirred if crew.ready), key=self.urgency):
                self._dispatch_crew(crew)
        if fleet.promised:
            fleet.keep_promises()
        if self._open:
            for where in self._touched:
                if where.hungry or where.free:
                    fleet.serve(where, self.urgency)
            if fleet.promised:
                fleet.keep_promises()
        self._touched.clear()
        decisions, fleet.decisions = fleet.decisions, []
        wake_s = self._accounts.wake_s
        if wake_s is not None and (self._wake_s is None or wake_s < self._wake_s):
            self._wake_s = wake_s
            decisions.append(WakeAt(wake_s))
        return decisions

    def _dispatch_crew(self, crew: WorkerGroup) -> None:
        if crew.alone:
            for request in sorted(crew.alone.values(), key=lambda request: request.id):
                self._dispatch_alone(request)
        while crew.queues and crew.offers and (chosen := self.choose(crew)) is not None:
            request, worker = chosen
            if request.late(self._now_s):
                self._dequeue(request)  # its caller has an answer, or is about to
            else:
                self._dispatch(request, worker)

    def _dispatch_alone(self, request: QueuedRequest) -> None:
        """Keep the least busy worker free of others for a request that must run alone, and start it once that is."""
        account = request.account
        if request.late(self._now_s):
            self._dequeue(request)
            return
        if account.limited and self._accounts.held(account, self._now_s):
            self._keep_none(request)
            return
        up = [worker for worker in request.crew.workers.values() if not worker.starting and not worker.stopping]
        own = [worker for worker in up if worker.alone is None or worker.alone is request]
        if not own:
            return
        worker = min(own, key=lambda w: (len(w.running) + w.gated, w.alone is not request, w.device.index, w.id))
        self._keep_none(request)
        if worker.running or worker.gated:
            worker.alone = request
            self._fleet.offer(worker)
        else:
            self._dispatch(request, worker)

    def _keep_none(self, request: QueuedRequest) -> None:
        """The worker that is kept free for a request takes others again."""
        for worker in request.crew.workers.values():
            if worker.alone is request:
                worker.alone = None
                self._fleet.offer(worker)

    def _dispatch(self, request: QueuedRequest, worker: WorkerState) -> None:
        self._dequeue(request)
        request.worker = worker
        account = request.account
        slot = self._fleet.take_slot(worker, request)
        request.estimate_s = self._accounts.dispatched(account)
        request.ends_s = self._now_s + request.estimate_s
        account.last_device = worker.device.index
        if request.inputs:
            self._locality.dispatched(request, worker.device.index)
        self._fleet.decisions.append(Dispatch(request.id, worker.id, slot))

    # --- books

    def _stir(self, crew: WorkerGroup) -> None:
        """Something changed for the requests of a crew."""
        if crew.ready:
            self._stirred[crew] = None
        self._touched[crew.territory] = None

    def _stir_all(self) -> None:
        for where in self._fleet.territories:
            self._touched[where] = None
            for crew in where.hungry.values():
                self._stirred[crew] = None

    def _known_request(self, number: int) -> QueuedRequest:
        if number not in self._requests:
            raise PolicyError(f"no such request: {number}")
        return self._requests[number]

    def _queued(self, number: int) -> QueuedRequest:
        request = self._known_request(number)
        if request.ready or request.worker is not None:
            raise PolicyError(f"request {number} awaits no inputs")
        return request

    def _known(self, worker: int) -> WorkerState:
        if worker not in self._fleet.workers:
            raise PolicyError(f"no such worker: {worker}")
        return self._fleet.workers[worker]


def territory(devices: Iterable[PhysicalDevice], *, home: Serves | None = None, nobodys: str = "") -> Partition:
    """Devices that crews compete for, free as yet."""
    made = Partition(home=home, nobodys=nobodys)
    made.devices = [DeviceState(device, made) for device in devices]
    return made
