"""Drives a policy in virtual time: events of the scenario go in, and decisions take the time of the scenario.

At one time completions come first (by device and slot), then workers, arrivals in the order of the scenario, deadlines
and wake-ups; the policy decides after each.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial

from kaas.errors import PolicyError
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    EvictTo,
    PolicyFactory,
    Prefetch,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import (
    Event,
    Ordered,
    Outcome,
    RequestCancelled,
    RequestDone,
    Residency,
    Running,
    Tick,
    Utilisation,
    WorkerAdopted,
    WorkerGone,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.simulation import start
from kaas.scheduling.simulation.clock import Clock, Turn, no_earlier_ps, picoseconds, seconds
from kaas.scheduling.simulation.scenario import Scenario
from kaas.scheduling.simulation.simulated import Completed, Dispatched, Rejected, Simulated, Start, summarise
from kaas.scheduling.simulation.simulated_memory import FunctionPlace
from kaas.scheduling.simulation.start import SimulatedDevice, SimulatedRequest, SimulatedWorker

WAKES_IN_A_ROW = 10_000
"""Times that a policy may ask to be woken while nothing else happens and requests wait."""


def simulate(scenario: Scenario, policy: PolicyFactory | None = None) -> Simulated:
    """Run a scenario to its end, under its own policy or another.

    Another policy starts its workers by itself, as in a new pool.

    Raises:
        InvalidScenario: the policy refuses its options.
        PolicyError: the policy raised, broke an invariant, or left requests without an end.
    """
    return _Simulation(scenario, policy).run()


class _Simulation:
    def __init__(self, scenario: Scenario, policy: PolicyFactory | None) -> None:
        self._scenario = scenario
        self._adopts = policy is None
        self._clock = Clock()
        self._copies: Counter[bytes] = Counter()
        self._devices = start.devices(scenario, self._copies)
        physical = start.physical(scenario)
        name = scenario.policy.name if policy is None else ""
        self._policy = CheckedPolicy((policy or scenario.make_policy)(physical), physical, name=name)
        self._workers: dict[int, SimulatedWorker] = {}
        self._requests = start.requests(scenario)  # a request's id is its place here
        self._open = len(self._requests)
        self._wakes = 0
        self._dispatches: list[Dispatched] = []
        self._rejected: list[Rejected] = []
        self._completed: list[Completed] = []
        self._charged_ps: Counter[str] = Counter()

    def run(self) -> Simulated:
        for client in start.clients(self._scenario):
            self._send(client)
        for function in start.functions(self._scenario):
            self._send(function)
        for worker in start.adopted(self._scenario) if self._adopts else ():
            self._adopt(worker)
        self._send(Tick(0.0))
        for request in self._requests:
            self._clock.at(request.arrived_ps, Turn.ARRIVAL, (request.index, 0), partial(self._arrive, request))
        if self._policy.utilisation_every_s:
            self._measure_later(0)
        while (turn := self._clock.step()) is not None:
            self._wakes = self._wakes + 1 if turn is Turn.WAKE else 0
        if self._open:
            waiting = sorted(request.index for request in self._requests if not request.replied)
            raise self._error(f"left requests {waiting[:10]} waiting with nothing more to come")
        return self._result()

    # --- events

    def _send(self, *events: Event) -> None:
        """Send events to the policy, and then those that follow at once from its decisions."""
        queue = deque(events)
        while queue:
            for decision in self._policy.handle(queue.popleft()):
                queue.extend(self._apply(decision))

    def _arrive(self, request: SimulatedRequest) -> None:
        if request.nbytes > max(device.memory.size_bytes for device in self._devices):
            self._reject(request, "memory")
            self._open -= 1
            return
        if request.deadline_ps is not None:
            self._clock.at(request.deadline_ps, Turn.DEADLINE, (request.index, 0), partial(self._expire, request))
        self._send(request.arrival)

    def _expire(self, request: SimulatedRequest) -> None:
        """End a request that is queued or waits for memory. A running one goes on, and keeps its slot."""
        if request.replied:
            return
        self._reject(request, "deadline")
        self._send(RequestCancelled(self._clock.now_s, request.arrival.request))
        if request.dispatch is None:
            self._open -= 1
        elif request.memory is None:
            self._device_of(request).entering.remove(request)
            self._leave(request, Outcome.ABANDONED)

    def _wake(self) -> None:
        if not self._open:
            return
        if self._wakes > WAKES_IN_A_ROW:
            raise self._error("does nothing but ask to be woken")
        self._send(Tick(self._clock.now_s))

    def _measure_later(self, since_ps: int) -> None:
        """Tell the policy the devices' utilisation after its period, as long as something else is to come."""
        assert self._policy.utilisation_every_s, "the policy asks for it"
        at_ps = since_ps + picoseconds(self._policy.utilisation_every_s)

        def measure() -> None:
            for device in self._devices:
                busy = device.busy_share(since_ps, at_ps)
                self._send(Utilisation(self._clock.now_s, device.index, busy))
            if not self._clock.is_idle:
                self._measure_later(at_ps)

        self._clock.at(at_ps, Turn.DEADLINE, (0, 0), measure)

    def _complete(self, request: SimulatedRequest) -> None:
        if not request.replied:
            latency_s = seconds(self._clock.now_ps - request.arrived_ps)
            self._completed.append(Completed(request.arrival.client, latency_s))
        outcome = Outcome.ABANDONED if request.replied else Outcome.SUCCEEDED
        request.replied = True
        device, memory = self._device_of(request), request.memory
        device.running -= 1
        device.memory.end(request.key)
        if memory is not None and memory.loaded:
            self._send(self._moved(request.dispatched.worker, (request.key,), memory.evicted))
        self._leave(request, outcome)

    def _device_of(self, request: SimulatedRequest) -> SimulatedDevice:
        return self._devices[self._workers[request.dispatched.worker].device]

    def _moved(self, worker: int, loaded: tuple[bytes, ...], evicted: tuple[bytes, ...]) -> Residency:
        """Return the event of objects that moved. Host memory has all that left the device."""
        return Residency(self._clock.now_s, worker, loaded, evicted, evicted)

    def _leave(self, request: SimulatedRequest, outcome: Outcome) -> None:
        """Take a request off its device: others may enter."""
        device = self._device_of(request)
        self._send(self._left(request, outcome))
        self._enter(device)

    def _left(self, request: SimulatedRequest, outcome: Outcome) -> RequestDone:
        """Free the slot of a request; a stopping worker ends with its last request."""
        worker = self._workers[request.dispatched.worker]
        self._open -= 1
        self._charged_ps[request.arrival.client] += request.charged_ps
        worker.running -= 1
        self._end_if_stopping(worker)
        return RequestDone(
            self._clock.now_s,
            request.arrival.request,
            worker.id,
            request.dispatched.slot,
            outcome,
            seconds(request.charged_ps),
            seconds(request.ran_ps),
            seconds(request.loaded_ps),
            request.nbytes if request.loaded_ps else 0,
        )

    def _reject(self, request: SimulatedRequest, reason: str) -> None:
        request.replied = True
        self._rejected.append(Rejected(request.index, self._clock.now_s, reason))

    # --- decisions

    def _apply(self, decision: Decision) -> list[Event]:
        """Carry out a decision, and return the events that follow at once."""
        match decision:
            case Dispatch():
                return self._dispatch(decision)
            case Reject(request=id_):
                self._reject(self._requests[id_], decision.reason)
                self._open -= 1
            case StartWorker():
                self._start(decision)
            case StopWorker(worker=id_):
                self._workers[id_].stopping = True
                self._end_if_stopping(self._workers[id_])
            case Prefetch():
                self._prefetch(decision)
            case Evict():
                return self._evict(decision)
            case WakeAt():
                self._clock.at(no_earlier_ps(decision.time_s), Turn.WAKE, (0, 0), self._wake)
        return []

    def _dispatch(self, decision: Dispatch) -> list[Event]:
        request, worker = self._requests[decision.request], self._workers[decision.worker]
        request.dispatch = decision
        worker.running += 1
        device = self._devices[worker.device]
        if request.nbytes > device.memory.size_bytes:
            self._reject(request, "memory")
            return [self._left(request, Outcome.FAILED)]
        device.entering.append(request)
        self._enter(device)
        return []

    def _enter(self, device: SimulatedDevice) -> None:
        """Begin the requests dispatched to a device, in their order, while the memory of running ones leaves room."""
        while device.entering:
            request = device.entering[0]
            victims = request.dispatched.victims
            place = device.memory.place(request.key, request.nbytes, self._clock.now_ps, request.load_ps, victims)
            if place is None:
                break
            device.entering.popleft()
            self._begin(request, device, place)

    def _begin(self, request: SimulatedRequest, device: SimulatedDevice, place: FunctionPlace) -> None:
        worker, slot = self._workers[request.dispatched.worker], request.dispatched.slot
        request.memory = place
        device.memory.begin(request.key)
        request.ran_ps = device.run_ps(request)
        device.running += 1
        device.busy_ps += request.ran_ps + request.loaded_ps
        how: Start = "load" if place.loaded else "hit"
        if worker.cold_ps is not None:
            how = "cold"
            request.started_ps = worker.cold_ps
            worker.cold_ps = None
        evicted = tuple(key.decode() for key in place.evicted)
        elsewhere = how == "load" and self._copies[request.key] > 1
        promised = request.dispatched.promised
        self._dispatches.append(
            Dispatched(request.index, device.index, self._clock.now_s, how, evicted, elsewhere, promised)
        )
        ends_ps = place.ready_ps + request.ran_ps
        if self._policy.utilisation_every_s:
            device.runs.append((place.ready_ps, ends_ps))
        self._clock.at(ends_ps, Turn.COMPLETION, (device.index, slot), partial(self._complete, request))

    def _prefetch(self, decision: Prefetch) -> None:
        """Load the memory of all functions, or of none, one after the other and while others run."""
        device, now_ps = self._devices[self._workers[decision.worker].device], self._clock.now_ps
        named = {key: self._scenario.functions.get(key.decode(errors="replace")) for key in decision.keys}
        functions = {key: function for key, function in named.items() if function is not None}
        unknown = tuple(key for key in named if key not in functions)
        sizes = {key: start.to_bytes(function.memory_mb) for key, function in functions.items()}
        evicted = device.memory.make_room(sizes, decision.victims)
        if evicted is None:
            self._answer(decision, now_ps, (), (), tuple(named), 0)
            return
        loaded = tuple(key for key in functions if key not in device.memory.held)
        took_ps = 0
        for key in loaded:
            took_ps += picoseconds(functions[key].load_s)
            device.memory.place(key, sizes[key], now_ps, took_ps)
            device.memory.begin(key)
        device.busy_ps += took_ps
        self._answer(decision, now_ps + took_ps, loaded, evicted, unknown, took_ps)

    def _answer(
        self,
        decision: Prefetch,
        at_ps: int,
        loaded: tuple[bytes, ...],
        evicted: tuple[bytes, ...],
        refused: tuple[bytes, ...],
        took_ps: int,
    ) -> None:
        """Tell the policy at a later time what came of a prefetch. Until then its functions stay."""
        worker = self._workers[decision.worker]
        device = self._devices[worker.device]

        def tell() -> None:
            for key in loaded:
                device.memory.end(key)
            if worker.id not in self._workers:
                return
            if loaded or evicted:
                self._send(self._moved(worker.id, loaded, evicted))
            self._send(Ordered(self._clock.now_s, worker.id, decision.order, loaded, refused, seconds(took_ps)))
            self._enter(device)

        self._clock.at(at_ps, Turn.COMPLETION, (device.index, device.slots), tell)

    def _evict(self, decision: Evict) -> list[Event]:
        memory, now_s = self._devices[self._workers[decision.worker].device].memory, self._clock.now_s
        evicted = memory.idle(decision.keys)
        memory.drop(evicted)
        refused = tuple(key for key in decision.keys if key not in evicted)
        hosted = evicted if decision.to is EvictTo.HOST else ()
        answer = Ordered(now_s, decision.worker, decision.order, evicted, refused)
        return [Residency(now_s, decision.worker, (), evicted, hosted), answer] if evicted else [answer]

    # --- workers

    def _adopt(self, event: WorkerAdopted) -> None:
        device = self._devices[event.device]
        worker = self._workers[event.worker] = device.worker(event.worker, event.kind)
        worker.running = len(event.running)
        for running in event.running:
            order = (event.device, running.slot)
            self._clock.at(device.free_ps, Turn.COMPLETION, order, partial(self._release, worker, running))
        self._send(event, *self._held(worker))

    def _release(self, worker: SimulatedWorker, earlier: Running) -> None:
        """End a request that kept a device busy from the start."""
        worker.running -= 1
        self._end_if_stopping(worker)
        self._send(RequestDone(self._clock.now_s, earlier.request, worker.id, earlier.slot, Outcome.SUCCEEDED, 0.0))

    def _start(self, decision: StartWorker) -> None:
        device = self._devices[decision.device]
        worker = self._workers[decision.worker] = device.worker(decision.worker, decision.kind)
        if (function := self._scenario.functions.get(decision.function)) is not None:
            worker.cold_ps = picoseconds(function.cold_s)
        start_s = self._scenario.worker_start_s if decision.kind is WorkerKind.EXECUTOR else 0.0
        ready_ps = max(self._clock.now_ps, device.free_ps) + (worker.cold_ps or 0) + picoseconds(start_s)
        self._clock.at(ready_ps, Turn.WORKER, (device.index, 0), partial(self._ready, worker))

    def _ready(self, worker: SimulatedWorker) -> None:
        if worker.stopping:
            return
        device = self._devices[worker.device]
        device.busy_ps += worker.cold_ps or 0
        memory_bytes = device.memory.size_bytes
        ready = WorkerReady(self._clock.now_s, worker.id, worker.kind, worker.device, worker.slots, memory_bytes)
        self._send(ready, *self._held(worker))

    def _held(self, worker: SimulatedWorker) -> list[Event]:
        """Return the event of the objects that a worker's device has when the worker comes up, if it has any."""
        held = self._devices[worker.device].memory.held
        return [Residency(self._clock.now_s, worker.id, held, ())] if held else []

    def _end_if_stopping(self, worker: SimulatedWorker) -> None:
        if worker.stopping and not worker.running:
            self._clock.at(self._clock.now_ps, Turn.WORKER, (worker.device, 0), partial(self._gone, worker))

    def _gone(self, worker: SimulatedWorker) -> None:
        device = self._devices[worker.device]
        del self._workers[worker.id]
        device.workers.remove(worker.id)
        if not device.workers:
            device.memory.drop(device.memory.held)
        self._send(WorkerGone(self._clock.now_s, worker.id, "stopped"))

    # --- the end

    def _error(self, how: str) -> PolicyError:
        return PolicyError(f"policy {self._policy.name!r} {how}", policy=self._policy.name)

    def _result(self) -> Simulated:
        clients = dict.fromkeys(self._scenario.clients, 0)
        for request in self._scenario.requests:
            client = self._scenario.client_of(request)
            clients[client] = clients.get(client, 0) + 1
        summary = summarise(
            self._dispatches,
            self._completed,
            device_busy_s=[seconds(device.busy_ps) for device in self._devices],
            requests=clients,
            charged_s={client: seconds(self._charged_ps[client]) for client in clients},
            weights=self._scenario.weights(),
        )
        return Simulated(tuple(self._dispatches), tuple(self._rejected), summary)
