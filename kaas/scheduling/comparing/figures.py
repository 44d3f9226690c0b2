"""Figures of a simulated run that its events tell: how latencies differ, copies of the hottest function, fairness."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import pvariance

from kaas.scheduling.decisions import Decision, Dispatch, PolicyFactory, Reject, StartWorker
from kaas.scheduling.events import (
    Event,
    Outcome,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Residency,
    WorkerAdopted,
    WorkerGone,
)
from kaas.scheduling.simulation.scenario import Scenario, ScenarioRequest
from kaas.scheduling.simulation.simulated import ClientSummary, Summary, jain
from kaas.scheduling.simulation.simulator import simulate


@dataclass(frozen=True, slots=True)
class PolicyFigures:
    """The figures by which policies are compared. Latencies last from arrival to end; ratios are parts of 1.

    Fields:
        latency_sd: standard deviation of the completed requests' latencies, in seconds. rejected_ratio: requests that
            were rejected, or missed their deadlines, of all requests. miss_ratio: dispatches whose function was not on
            the device. false_miss_ratio: those of the misses for which another device had it. cold_ratio: dispatches
            for which a worker started, or whose memory came from the store.
        duplicates: devices that hold the memory of the function with most requests: the mean over time.
        worst_client_s: the largest mean latency of a client. function_variance, client_variance: of the mean latencies
            of functions, and of clients, in square seconds.
        waiting_jain: Jain's index of what clients got while their requests waited, over what their weights entitle them
            to; `Summary.jain` is another figure, of all that clients were charged.
        utilisation: of all slots' time, up to the last event. per_client: as in `Summary`.
    """

    mean_latency_s: float
    p50_latency_s: float
    p99_latency_s: float
    worst_client_s: float
    latency_sd: float
    rejected_ratio: float
    miss_ratio: float
    false_miss_ratio: float
    cold_ratio: float
    duplicates: float
    function_variance: float
    client_variance: float
    waiting_jain: float
    utilisation: float
    per_client: Mapping[str, ClientSummary]


def measure(
    scenario: Scenario, policy: PolicyFactory | None = None, requests: Iterable[ScenarioRequest] | None = None
) -> PolicyFigures:
    """Run a scenario, perhaps under another policy or with other requests; raise as `simulate` does."""
    observer = RunObserver(scenario.weights())
    result = simulate(scenario, policy, requests=requests, dispatches=False, observe=observer)
    return observer.figures(result.summary, sum(device.slots for device in scenario.devices))


@dataclass(slots=True)
class Moments:
    """Count, mean and sum of squared differences of values that are added one by one (Welford 1962)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Take in a value."""
        self.count += 1
        off = value - self.mean
        self.mean += off / self.count
        self.squares += off * (value - self.mean)

    @property
    def sd(self) -> float:
        """The standard deviation of the values; 0 without values."""
        return (self.squares / self.count) ** 0.5 if self.count else 0.0


@dataclass(slots=True)
class _OpenRequest:
    """A request that has not ended. waited: it was dispatched later than it arrived."""

    arrived_s: float
    client: str
    function: str
    waiting: bool = True
    waited: bool = False


@dataclass(slots=True)
class _WaitingTime:
    """The waiting requests of a client.

    Fields:
        since: the virtual time at which they began to wait. entitled: virtual time of earlier backlogs. got_s: device
            seconds of requests that had waited.
    """

    waiting: int = 0
    since: float = 0.0
    entitled: float = 0.0
    got_s: float = 0.0


@dataclass(slots=True)
class _Copies:
    """The devices that hold a function now, and the integral of their number over time, up to a time."""

    count: int = 0
    area: float = 0.0
    until_s: float = 0.0

    def change(self, now_s: float, by: int) -> None:
        self.area += self.count * (now_s - self.until_s)
        self.count, self.until_s = self.count + by, now_s


@dataclass(slots=True)
class RunObserver:
    """Adds up what `simulate(observe=...)` tells; its memory does not grow with the requests that have ended.

    Virtual time passes at 1 / (weights of the clients with waiting requests): each of them is entitled to its weight x
    virtual time, whatever the number of devices (generalised processor sharing).
    """

    weights: Mapping[str, float]
    latency: Moments = field(default_factory=Moments)
    _now_s: float = 0.0
    _open: dict[int, _OpenRequest] = field(default_factory=dict)
    _functions: dict[str, Moments] = field(default_factory=dict)
    _clients: dict[str, Moments] = field(default_factory=dict)
    _calls: Counter[str] = field(default_factory=Counter)
    _devices: dict[int, int] = field(default_factory=dict)
    """Of workers."""
    _held: dict[int, set[bytes]] = field(default_factory=dict)
    """By device."""
    _copies: dict[bytes, _Copies] = field(default_factory=dict)
    _backlogs: dict[str, _WaitingTime] = field(default_factory=dict)
    _virtual: float = 0.0
    _waiting_clients: int = 0
    _waiting_weight: float = 0.0

    def __call__(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take in an event and the policy's decisions about it."""
        self._advance(event.time_s)
        match event:
            case RequestArrived():
                self._arrived(event)
            case RequestCancelled(request=request) if request in self._open:
                self._leave_queue(self._open[request])
            case RequestDone(request=request) if request in self._open:
                self._done(event, self._open.pop(request))
            case WorkerAdopted():
                self._devices[event.worker] = event.device
            case Residency():
                self._moved(self._devices[event.worker], event.loaded, event.evicted)
            case WorkerGone(worker=worker):
                device = self._devices.pop(worker)
                if device not in self._devices.values():  # the last worker of a device takes the memory with it
                    self._moved(device, (), tuple(self._held.get(device, ())))
            case _:
                pass
        for decision in decisions:
            match decision:
                case Dispatch(request=request):
                    dispatched = self._open[request]
                    dispatched.waited = self._now_s > dispatched.arrived_s
                    self._leave_queue(dispatched)
                case Reject(request=request):
                    self._leave_queue(self._open.pop(request))
                case StartWorker():
                    self._devices[decision.worker] = decision.device
                case _:
                    pass

    def figures(self, summary: Summary, slots: int) -> PolicyFigures:
        """Return the figures of the whole run. slots: of all devices."""
        cold = summary.fetches + summary.colds
        misses = summary.loads + cold
        dispatches = summary.hits + misses
        requests = sum(client.requests for client in summary.per_client.values())
        return PolicyFigures(
            mean_latency_s=summary.mean_latency_s,
            p50_latency_s=summary.p50_latency_s,
            p99_latency_s=summary.p99_latency_s,
            worst_client_s=max((each.mean_latency_s for each in summary.per_client.values()), default=0.0),
            latency_sd=self.latency.sd,
            rejected_ratio=_ratio(summary.rejected, requests),
            miss_ratio=_ratio(misses, dispatches),
            false_miss_ratio=_ratio(summary.false_misses, misses),
            cold_ratio=_ratio(cold, dispatches),
            duplicates=self._duplicates(),
            function_variance=_variance(self._functions),
            client_variance=_variance(self._clients),
            waiting_jain=jain([share for client in self._backlogs if (share := self._share(client)) is not None]),
            utilisation=_ratio(sum(summary.device_busy_s), slots * self._now_s),
            per_client=summary.per_client,
        )

    def _advance(self, now_s: float) -> None:
        if self._waiting_clients:
            self._virtual += (now_s - self._now_s) / self._waiting_weight
        self._now_s = now_s

    def _arrived(self, event: RequestArrived) -> None:
        request = _OpenRequest(event.time_s, event.client, event.function)
        if event.attempt == 1:
            self._calls[event.function] += 1
        else:
            request.arrived_s = self._open[event.request].arrived_s
        self._open[event.request] = request
        backlog = self._backlogs.setdefault(event.client, _WaitingTime())
        if not backlog.waiting:
            backlog.since = self._virtual
            self._count_waiting(event.client, 1)
        backlog.waiting += 1

    def _leave_queue(self, request: _OpenRequest) -> None:
        if not request.waiting:
            return
        request.waiting = False
        backlog = self._backlogs[request.client]
        backlog.waiting -= 1
        if not backlog.waiting:
            backlog.entitled += self._virtual - backlog.since
            self._count_waiting(request.client, -1)

    def _count_waiting(self, client: str, by: int) -> None:
        self._waiting_clients += by
        weight = self._waiting_weight + by * self.weights.get(client, 1.0)
        self._waiting_weight = weight if self._waiting_clients else 0.0  # without what roundings left

    def _done(self, event: RequestDone, request: _OpenRequest) -> None:
        if request.waited:
            self._backlogs[request.client].got_s += event.device_s
        if event.outcome is Outcome.SUCCEEDED:
            latency_s = event.time_s - request.arrived_s
            self.latency.add(latency_s)
            self._functions.setdefault(request.function, Moments()).add(latency_s)
            self._clients.setdefault(request.client, Moments()).add(latency_s)

    def _moved(self, device: int, loaded: Sequence[bytes], evicted: Sequence[bytes]) -> None:
        held = self._held.setdefault(device, set())
        for key in evicted:
            if key in held:
                held.remove(key)
                self._copies[key].change(self._now_s, -1)
        for key in loaded:
            if key not in held:
                held.add(key)
                self._copies.setdefault(key, _Copies()).change(self._now_s, 1)

    def _duplicates(self) -> float:
        if not self._calls or not self._now_s:
            return 0.0
        hottest = max(self._calls, key=lambda function: self._calls[function])
        copies = self._copies.get(hottest.encode(), _Copies())
        copies.change(self._now_s, 0)
        return copies.area / self._now_s

    def _share(self, client: str) -> float | None:
        """Return what a client got, over what it was entitled to; None if its requests never waited."""
        backlog = self._backlogs[client]
        entitled = backlog.entitled + (self._virtual - backlog.since if backlog.waiting else 0.0)
        return backlog.got_s / (entitled * self.weights.get(client, 1.0)) if entitled > 0 else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _variance(means: Mapping[str, Moments]) -> float:
    return pvariance([each.mean for each in means.values()]) if means else 0.0
