"""Drives a policy in virtual time: events of the scenario go in, and decisions take the time of the scenario.

At one time completions come first (by device and slot), then workers, arrivals in the order of the scenario, deadlines
and wake-ups; the policy decides after each. Only what is open is held: requests are read as they arrive, and forgotten
when they end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from kaas.errors import InvalidScenario, KaasError, PolicyError
from kaas.scheduling.checks import CheckedPolicy
from kaas.scheduling.decisions import (
    Decision,
    Dispatch,
    Evict,
    PolicyFactory,
    Prefetch,
    Reject,
    StartWorker,
    StopWorker,
    WakeAt,
)
from kaas.scheduling.events import (
    Event,
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
from kaas.scheduling.raised_at import raised_at
from kaas.scheduling.simulation import start
from kaas.scheduling.simulation.clock import SECOND_PS, Clock, Turn, no_earlier_ps, picoseconds, seconds
from kaas.scheduling.simulation.devices import ScaledDevices, SimulatedRequest, SimulatedWorker
from kaas.scheduling.simulation.execution import Execution
from kaas.scheduling.simulation.figures import RunFigures
from kaas.scheduling.simulation.scenario import Scenario, ScenarioFailure, ScenarioRequest
from kaas.scheduling.simulation.simulated import EventObserver, Simulated

WAKES_IN_A_ROW = 10_000
"""Times that a policy may ask to be woken while nothing else happens and requests wait."""
PROGRESS_REQUESTS = 10_000
"""Requests that arrive between two calls of `progress`."""
FAILED = "the device failed"
"""The reason for the end of a worker on a device that a scenario lets fail."""


def simulate(
    scenario: Scenario,
    policy: PolicyFactory | None = None,
    *,
    requests: Iterable[ScenarioRequest] | None = None,
    dispatches: bool = True,
    progress: Callable[[int, float], None] | None = None,
    observe: EventObserver | None = None,
) -> Simulated:
    """Run a scenario to its end, under its own policy or another.

    Another policy starts its workers by itself, as in a new pool.

    Args:
        scenario: its functions, clients and devices; and its requests, unless others are given.
        policy: in the place of the scenario's.
        requests: in the order of their arrival. Each is read when the one before has arrived, so there may be any
            number of them.
        dispatches: keep all dispatches, rejections and latencies. Without them the run needs no more memory for more
            requests; quantiles of latency are then those of buckets, wrong by 0.05 % at most.
        progress: called after every `PROGRESS_REQUESTS` arrivals with their number and the time in seconds.
        observe: called with each event and the policy's decisions about it.

    Raises:
        InvalidScenario: the policy refuses its options, or the requests are not ordered by time, or call a function
            that the scenario has not; or the scenario has a workload, which `open_workload` opens.
        PolicyError: the policy cannot be made, raised, broke an invariant, or left requests without an end.
    """
    if scenario.workload is not None:
        raise InvalidScenario("workload: open_workload makes functions and requests of it", path="workload")
    return _Simulation(scenario, policy, observe, keep=dispatches).run(requests, progress)


class _Simulation:
    def __init__(
        self, scenario: Scenario, policy: PolicyFactory | None, observe: EventObserver | None, *, keep: bool
    ) -> None:
        self._scenario = scenario
        self._observe = observe
        self._adopts = policy is None
        self._clock = Clock()
        copies: Counter[bytes] = Counter()
        self._devices = start.devices(scenario, self._clock, copies)
        self._largest_bytes = max(device.memory.size_bytes for device in self._devices)
        physical = start.physical(scenario)
        name = scenario.policy.name if policy is None else ""
        try:
            made = (policy or scenario.make_policy)(physical)
        except KaasError:
            raise
        except Exception as error:
            message = f"the policy cannot be made: {type(error).__name__}: {error} ({raised_at(error)})"
            raise PolicyError(message) from error
        self._policy = CheckedPolicy(made, physical, name=name)
        self._all_arrived = False
        self._scaled: ScaledDevices | None = None
        if (scale := scenario.scale) is not None:
            ended = lambda: self._all_arrived and not self._open  # noqa: E731
            self._scaled = ScaledDevices(scale, self._devices, self._clock, self._policy.holds, self._tell, ended)
        self._workers: dict[int, SimulatedWorker] = {}
        self._open: dict[int, SimulatedRequest] = {}  # requests that are queued or run, by the ids of their arrivals
        self._figures = RunFigures(scenario.clients, keep=keep)
        self._execution = Execution(
            self._clock,
            start.functions(scenario),
            copies,
            self._figures,
            watched=self._policy.utilisation_every_s is not None,
            tell=self._tell,
            ended=self._ended,
        )

    def run(
        self, requests: Iterable[ScenarioRequest] | None, progress: Callable[[int, float], None] | None
    ) -> Simulated:
        clock = self._clock
        self._begin()
        for number, request in enumerate(start.requests(self._scenario, requests)):
            clock.advance(request.arrived_ps)
            if progress is not None and number and number % PROGRESS_REQUESTS == 0:
                progress(number, clock.now_s)
            self._arrive(request)
        self._all_arrived = True
        clock.finish()
        if self._open:
            waiting = sorted(request.index for request in self._open.values() if not request.replied)
            shown = f"the first 10 of {len(waiting)}, " if len(waiting) > 10 else ""
            raise self._error(f"left requests {waiting[:10]} waiting, {shown}with nothing more to come")
        missed: dict[str, int] = getattr(self._policy.policy, "missed_windows", dict)()
        return self._figures.result([device.busy_ps for device in self._devices], self._scenario.weights(), missed)

    def _begin(self) -> None:
        for client in start.clients(self._scenario):
            self._tell(client)
        for function in start.profiles(self._scenario):
            self._tell(function)
        for share in start.shares(self._scenario):
            self._tell(share)
        for worker in start.adopted(self._scenario) if self._adopts else ():
            self._adopt(worker)
        if self._scaled is not None:
            self._scaled.begin()
        self._tell(Tick(0.0))
        for failure in self._scenario.failures:
            self._clock.at(picoseconds(failure.at_s), Turn.WORKER, (failure.device, 0), self._fail, failure)
        if self._policy.utilisation_every_s:
            self._measure_later(0)

    # --- events

    def _tell(self, *events: Event) -> None:
        """Send events to the policy, and then those that follow at once from its decisions."""
        following: list[Event] = []
        for told in (events, following):
            for event in told:
                decisions = self._policy.handle(event)
                if self._scaled is not None:
                    self._scaled.heard(event, decisions)
                if self._observe is not None:
                    self._observe(event, decisions)
                for decision in decisions:
                    if type(decision) is Dispatch:  # most are
                        self._dispatch(decision, following)
                    else:
                        following += self._apply(decision)

    def _arrive(self, request: SimulatedRequest) -> None:
        self._figures.arrived(request.arrival.client)
        if request.function.nbytes > self._largest_bytes:
            self._reject(request, "memory")
            return
        number = request.arrival.request
        self._open[number] = request
        if request.deadline_ps is not None:
            self._clock.at(request.deadline_ps, Turn.DEADLINE, (request.index, 0), self._expire, number)
        self._tell(request.arrival)

    def _expire(self, number: int) -> None:
        """End a request that is queued or waits for memory. A running one goes on, and keeps its slot."""
        request = self._open.get(number)
        if request is None or request.replied:
            return
        self._reject(request, "deadline")
        self._tell(RequestCancelled(self._clock.now_s, number))
        if request.worker is None:
            del self._open[number]
        elif request.place is None:
            device = request.worker.device
            device.entering.remove(request)
            self._ended(request, Outcome.ABANDONED)
            self._execution.enter(device)

    def _wake(self, _: WakeAt) -> None:
        if self._all_arrived and not self._open:
            return
        if self._clock.wakes > WAKES_IN_A_ROW:
            raise self._error("does nothing but ask to be woken")
        self._tell(Tick(self._clock.now_s))

    def _measure_later(self, since_ps: int) -> None:
        assert self._policy.utilisation_every_s, "the policy asks for it"
        at_ps = since_ps + picoseconds(self._policy.utilisation_every_s)
        self._clock.at(at_ps, Turn.DEADLINE, (0, 0), self._measure, since_ps)

    def _measure(self, since_ps: int) -> None:
        """Tell the policy the devices' utilisation since a time, and again later if something is to come."""
        now_ps = self._clock.now_ps
        for device in self._devices:
            self._tell(Utilisation(self._clock.now_s, device.index, device.busy_share(since_ps, now_ps)))
        if not (self._all_arrived and self._clock.is_idle):
            self._measure_later(now_ps)

    def _ended(self, request: SimulatedRequest, outcome: Outcome) -> None:
        self._tell(self._left(request, outcome))

    def _left(self, request: SimulatedRequest, outcome: Outcome) -> RequestDone:
        """Free the slot of a request; a stopping worker ends with its last request."""
        number, worker, charged_ps = request.arrival.request, request.at, request.charged_ps
        del self._open[number]
        self._figures.charged(request.arrival, charged_ps, request.part)
        worker.running -= 1
        if worker.stopping:
            self._end_if_stopping(worker)
        return RequestDone(
            self._clock.now_s,
            number,
            worker.id,
            request.slot,
            outcome,
            charged_ps / SECOND_PS,
            request.ran_ps / SECOND_PS,
            request.loaded_ps / SECOND_PS,
            request.function.nbytes if request.loaded_ps else 0,
        )

    def _reject(self, request: SimulatedRequest, reason: str) -> None:
        request.replied = True
        self._figures.rejected(request.index, self._clock.now_s, reason)

    # --- decisions

    def _apply(self, decision: Decision) -> Iterable[Event]:
        """Carry out a decision, and return the events that follow at once."""
        match decision:
            case Reject(request=id_):
                self._reject(self._open.pop(id_), decision.reason)
            case StartWorker():
                self._start(decision)
            case StopWorker(worker=id_):
                self._workers[id_].stopping = True
                self._end_if_stopping(self._workers[id_])
            case Prefetch(worker=id_):
                self._execution.prefetch(self._workers[id_], decision)
            case Evict(worker=id_):
                return self._execution.evict(self._workers[id_], decision)
            case WakeAt():
                self._clock.at(no_earlier_ps(decision.time_s), Turn.WAKE, (0, 0), self._wake, decision)
        return ()

    def _dispatch(self, decision: Dispatch, following: list[Event]) -> None:
        request, worker = self._open[decision.request], self._workers[decision.worker]
        request.worker, request.slot = worker, decision.slot
        request.victims, request.promised = decision.victims, decision.promised
        request.share, request.sms = decision.share, decision.sms
        worker.running += 1
        device = worker.device
        if request.function.nbytes > device.memory.size_bytes:
            self._reject(request, "memory")
            following.append(self._left(request, Outcome.FAILED))
            return
        device.entering.append(request)
        self._execution.enter(device)

    # --- workers

    def _adopt(self, event: WorkerAdopted) -> None:
        device = self._devices[event.device]
        worker = self._workers[event.worker] = device.worker(event.worker, event.kind)
        worker.up, worker.running = True, len(event.running)
        for running in event.running:
            order = (event.device, running.slot)
            self._clock.at(device.free_ps, Turn.COMPLETION, order, partial(self._release, worker), running)
        self._tell(event, *self._held(worker))

    def _release(self, worker: SimulatedWorker, earlier: Running) -> None:
        """End a request that kept a device busy from the start."""
        if self._workers.get(worker.id) is worker:
            worker.running -= 1
            self._end_if_stopping(worker)
            self._tell(RequestDone(self._clock.now_s, earlier.request, worker.id, earlier.slot, Outcome.SUCCEEDED, 0.0))

    def _start(self, decision: StartWorker) -> None:
        device = self._devices[decision.device]
        worker = self._workers[decision.worker] = device.worker(decision.worker, decision.kind)
        if (function := self._scenario.functions.get(decision.function)) is not None:
            worker.cold_ps = picoseconds(function.cold_s)
        start_s = self._scenario.worker_start_s if decision.kind is WorkerKind.EXECUTOR else 0.0
        worker.start_ps = (worker.cold_ps or 0) + picoseconds(start_s)
        if self._scaled is not None:
            worker.start_ps += self._scaled.start_ps(device.index)
        self._ready_later(worker)

    def _ready_later(self, worker: SimulatedWorker) -> None:
        device = worker.device
        worker.ready_ps = max(self._clock.now_ps, device.free_ps) + worker.start_ps
        self._clock.at(worker.ready_ps, Turn.WORKER, (device.index, 0), self._ready, worker)

    def _ready(self, worker: SimulatedWorker) -> None:
        device = worker.device
        if worker.stopping or worker.up or worker.ready_ps > self._clock.now_ps:
            return  # it ends; or the device failed, and it has two entries
        worker.up = True
        device.busy_ps += worker.cold_ps or 0
        sizes = worker.slots, device.memory.size_bytes, device.sms, device.sm_step
        ready = WorkerReady(self._clock.now_s, worker.id, worker.kind, device.index, *sizes)
        self._tell(ready, *self._held(worker))

    def _held(self, worker: SimulatedWorker) -> list[Event]:
        """Return the event of the objects that a worker's device has when the worker comes up, if it has any."""
        held = worker.device.memory.held
        return [Residency(self._clock.now_s, worker.id, held, ())] if held else []

    def _end_if_stopping(self, worker: SimulatedWorker) -> None:
        if worker.stopping and not worker.running:
            self._clock.at(self._clock.now_ps, Turn.WORKER, (worker.device.index, 0), self._stopped, worker)

    def _stopped(self, worker: SimulatedWorker) -> None:
        if self._workers.get(worker.id) is worker:
            self._gone(worker, "stopped")

    def _gone(self, worker: SimulatedWorker, reason: str, charged: tuple[tuple[int, float], ...] = ()) -> None:
        """Remove a worker. The last one of a device takes the memory with it."""
        device = worker.device
        del self._workers[worker.id], device.workers[worker.id]
        if not device.workers:
            device.emptied(self._clock.now_ps)
        self._tell(WorkerGone(self._clock.now_s, worker.id, reason, charged))

    # --- failures

    def _fail(self, failure: ScenarioFailure) -> None:
        """End the workers of a device that are up, and let those that start do so when the device is back."""
        device, now_ps = self._devices[failure.device], self._clock.now_ps
        device.free_ps = max(device.free_ps, now_ps + picoseconds(failure.down_s))
        lost = [*device.running.values(), *device.entering]
        device.running.clear()
        device.entering.clear()
        device.emptied(now_ps)
        for worker in list(device.workers.values()):
            if worker.up:
                self._lose(worker, [request for request in lost if request.worker is worker])
            elif not worker.stopping:
                self._ready_later(worker)

    def _lose(self, worker: SimulatedWorker, requests: Sequence[SimulatedRequest]) -> None:
        """End a worker whose device failed. Its kTasks arrive again, as in a pool; an eTask may not run twice.

        Only a request whose caller waits no more is charged.
        """
        charged = []
        for request in requests:
            request.gone = True
            had_ps = self._clock.now_ps - request.began_ps if request.place is not None else 0
            worker.device.busy_ps += had_ps
            if request.replied and had_ps:
                charged.append((request.arrival.request, seconds(had_ps)))
                self._figures.charged(request.arrival, had_ps, request.part)
        self._gone(worker, FAILED, tuple(charged))
        for request in requests:
            number = request.arrival.request
            if request.replied:
                del self._open[number]
            elif worker.kind is WorkerKind.ETASK:
                self._reject(self._open.pop(number), "failure")
            else:
                again = self._open[number] = request.again(self._clock.now_s)
                self._tell(again.arrival)

    # --- the end

    def _error(self, how: str) -> PolicyError:
        return PolicyError(f"policy {self._policy.name!r} {how}", policy=self._policy.name)
