"""A record of a pool as a scenario: the same requests at the same times, on any number of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kaas.config import LARGEST
from kaas.scheduling.decisions import Decision, Dispatch
from kaas.scheduling.events import (
    ClientKnown,
    Event,
    InputsReady,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
    ShareKnown,
    WorkerAdopted,
    WorkerKind,
    WorkerReady,
)
from kaas.scheduling.simulation.scenario import (
    PolicyChoice,
    Scenario,
    ScenarioClient,
    ScenarioDevice,
    ScenarioFunction,
    ScenarioRequest,
    ScenarioShare,
)
from kaas.scheduling.simulation.start import MEGABYTE, OF_CLIENT, OF_FUNCTION

LEAST_FILL = 0.001
"""The least part of the SMs that a scenario's function fills."""


@dataclass(slots=True)
class RecordedRequest:
    """A request of a record.

    Fields:
        place: its place among the arrivals. arrived_s, ready_s: when the request came, and when its inputs existed.
            run_s, load_s: parts of device_s; both 0 in a record of version 1, which has the sum only. loaded: objects
            were loaded for the request. part: of the SMs on which it ran. share: the one that it named.
    """

    place: int
    arrived: RequestArrived
    arrived_s: float
    ready_s: float
    device_s: float = 0.0
    run_s: float = 0.0
    load_s: float = 0.0
    loaded: bool = False
    part: float = 1.0
    share: ScenarioShare | None = None

    @property
    def cached_bytes(self) -> int:
        """The bytes that the request reads from caches."""
        return sum(use.nbytes for use in self.arrived.inputs if use.key is not None)

    def as_request(self, function: ScenarioFunction, began_s: float) -> ScenarioRequest:
        """Return the request of a scenario. Without its run's time, one with loads runs as others of its function."""
        arrived, deadline_s = self.arrived, None
        if arrived.deadline_s is not None:
            left_s = arrived.deadline_s - arrived.time_s - (self.ready_s - self.arrived_s)
            deadline_s = min(max(0.0, left_s), LARGEST)
        run_s = function.run_s
        assert not isinstance(run_s, Mapping), "functions of records have one time for all kinds of devices"
        if self.run_s or not self.loaded:
            run_s = (self.run_s or self.device_s) / slowdown(function.fills, self.part)
        client = None if arrived.client == function.client else arrived.client
        return ScenarioRequest(arrived.function, self.ready_s - began_s, client, run_s, deadline_s)


def slowdown(fills: float, part: float) -> float:
    """Return how much longer a run takes on a part of the SMs than on all, if it fills so much of them."""
    return max(1.0, fills / part)


@dataclass(slots=True)
class RecordedRequests:
    """The requests of a record that have not ended, followed event by event.

    Fields:
        arrived, ended: how many requests came, and ran to their end. open: by id, in the order of their arrival.
        sms: the SMs of each device, and of its least partition.
    """

    devices: tuple[PhysicalDevice, ...] = ()
    slots: int = 1
    memory_bytes: dict[int, int] = field(default_factory=dict)
    sms: dict[int, tuple[int, int]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    arrived: int = 0
    ended: int = 0
    open: dict[int, RecordedRequest] = field(default_factory=dict)
    _loaded: dict[int, set[bytes]] = field(default_factory=dict)
    _shares: dict[str, ScenarioShare] = field(default_factory=dict)
    _worker_sms: dict[int, int] = field(default_factory=dict)
    _shift_s: float = 0.0
    _last_s: float = 0.0
    _first: bool = True

    def begin(self, devices: tuple[PhysicalDevice, ...]) -> None:
        """Begin an epoch of the pool, which may have another clock and numbers requests anew."""
        self.devices = devices
        self.open.clear()
        self._loaded.clear()
        self._worker_sms.clear()
        self._first = True

    def add(self, event: Event, decisions: Iterable[Decision] = ()) -> RecordedRequest | None:
        """Take in the next event of the record with its decisions, and return the request that it ends, if any."""
        ran = self._heard(event)
        for each in decisions:
            if isinstance(each, Dispatch) and each.request in self.open:
                sms = self._worker_sms.get(each.worker, 0)
                self.open[each.request].part = each.sms / sms if 0 < each.sms < sms else 1.0
        return ran

    def _heard(self, event: Event) -> RecordedRequest | None:
        if self._first:
            self._first, self._shift_s = False, self._last_s - event.time_s
        self._last_s = event.time_s + self._shift_s
        match event:
            case RequestArrived(request=request) if event.attempt == 1:
                made = RecordedRequest(self.arrived, event, self._last_s, self._last_s)
                made.share = self._shares.get(event.share)
                self.open[request] = made
                self.arrived += 1
            case InputsReady(request=request) if request in self.open:
                self.open[request].ready_s = self._last_s
            case Residency(worker=worker):
                self._loaded.setdefault(worker, set()).update(event.loaded)
            case RequestDone(request=request) if request in self.open:
                ran = self.open.pop(request)
                loaded = self._loaded.pop(event.worker, set())
                ran.device_s, ran.run_s, ran.load_s = event.device_s, event.run_s, event.load_s
                ran.loaded = any(use.key in loaded for use in ran.arrived.inputs)
                self.ended += 1
                return ran
            case WorkerReady(kind=WorkerKind.EXECUTOR):
                self.slots = event.slots
                self.memory_bytes[event.device] = event.memory_bytes
                self._has(event)
            case WorkerAdopted(kind=WorkerKind.EXECUTOR):
                self._has(event)
            case ClientKnown(client=client):
                self.weights[client] = event.weight
            case ShareKnown(share=share):
                memory_mb = None if event.memory_bytes is None else event.memory_bytes / MEGABYTE
                self._shares[share] = ScenarioShare(event.sms, (event.least, event.most), memory_mb)
        return None

    def _has(self, event: WorkerReady | WorkerAdopted) -> None:
        self.sms[event.device] = event.sms, event.sm_step
        self._worker_sms[event.worker] = event.sms


@dataclass(slots=True)
class RecordedFunction:
    """Sums over the runs of a function. found: numbers and seconds of runs by the part of the SMs on which they were.

    In a record of version 1 its load is the time that requests with loads, the `loaded` ones, took longer than others.
    """

    kind: WorkerKind
    client: str
    nbytes: int = 0
    share: ScenarioShare | None = None
    found: dict[float, tuple[int, float]] = field(default_factory=dict)
    loaded: int = 0
    loaded_s: float = 0.0
    loads: int = 0
    loads_s: float = 0.0

    def add(self, ran: RecordedRequest) -> None:
        """Take in a run."""
        self.nbytes = max(self.nbytes, ran.cached_bytes)
        if not ran.loaded or ran.run_s:
            count, seconds = self.found.get(ran.part, (0, 0.0))
            self.found[ran.part] = count + 1, seconds + (ran.run_s or ran.device_s)
        if ran.share is not None and ran.arrived.share.startswith(OF_FUNCTION):
            self.share = ran.share
        if ran.loaded and ran.run_s:
            self.loads, self.loads_s = self.loads + 1, self.loads_s + ran.load_s
        elif ran.loaded:
            self.loaded, self.loaded_s = self.loaded + 1, self.loaded_s + ran.device_s

    def as_function(self) -> ScenarioFunction:
        """Return the function of a scenario."""
        with_load_s = self.loaded_s / self.loaded if self.loaded else 0.0
        fills, found = self._fills(), sum(count for count, _ in self.found.values())
        found_s = sum(seconds / slowdown(fills, part) for part, (_, seconds) in self.found.items())
        run_s = found_s / found if found else with_load_s
        load_s = self.loads_s / self.loads if self.loads else max(0.0, with_load_s - run_s)
        kind = "etask" if self.kind is WorkerKind.ETASK else "ktask"
        made = ScenarioFunction(self.nbytes / MEGABYTE, load_s, run_s, kind=kind, client=self.client)
        return replace(made, fills=fills, share=self.share)

    def _fills(self) -> float:
        """Return the part of the SMs that a run fills: the most on which it was, or less if it is as fast there."""
        if not self.found:
            return 1.0
        largest, least = max(self.found), min(self.found)
        (most, most_s), (few, few_s) = self.found[largest], self.found[least]
        slower = (few_s / few) / (most_s / most) if most_s > 0 else 1.0
        return max(LEAST_FILL, min(largest, least * max(1.0, slower)))


def functions_of(requests: Iterable[RecordedRequest]) -> dict[str, ScenarioFunction]:
    """Return the functions of requests that ran. A function's memory is the most bytes that a request of it reads."""
    sums: dict[str, RecordedFunction] = {}
    for ran in requests:
        arrived = ran.arrived
        if arrived.function not in sums:
            sums[arrived.function] = RecordedFunction(arrived.kind, arrived.client)
        sums[arrived.function].add(ran)
    return {name: each.as_function() for name, each in sums.items()}


@dataclass(slots=True)
class Recorded:
    """The requests and devices of a record, added event by event.

    Requests that never ran to an end are left out.

    Fields:
        policy: that of the last epoch; None for one of the user's own, which `own` names, if it has a module. options:
            of either.
    """

    policy: PolicyChoice | None = None
    own: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    _requests: RecordedRequests = field(default_factory=RecordedRequests)
    _ran: list[RecordedRequest] = field(default_factory=list)

    @property
    def devices(self) -> tuple[PhysicalDevice, ...]:
        """The devices of the last epoch."""
        return self._requests.devices

    def begin(
        self, policy: str | None, options: Mapping[str, Any], devices: tuple[PhysicalDevice, ...], own: str = ""
    ) -> None:
        """Begin an epoch of the pool."""
        self.policy = None if policy is None else PolicyChoice(policy, dict(options))
        self.own, self.options = own, options
        self._requests.begin(devices)

    def add(self, event: Event, decisions: Iterable[Decision] = ()) -> None:
        """Take in the next event of the record, with the decisions about it."""
        if (ran := self._requests.add(event, decisions)) is not None:
            self._ran.append(ran)

    @property
    def left_out(self) -> int:
        """Requests that did not run to their end."""
        return self._requests.arrived - self._requests.ended

    def scenario(self, devices: int, policy: PolicyChoice | None = None) -> Scenario:
        """Return the requests as a scenario on this number of devices, which repeat the recorded ones.

        policy: instead of the record's, which may be the user's own; then fcfs stands in its place.
        """
        ran = sorted(self._ran, key=lambda each: each.place)
        functions = functions_of(ran)
        weights = self._requests.weights
        began_s = min((each.ready_s for each in ran), default=0.0)
        shares = {each.arrived.client: each.share for each in ran if each.arrived.share.startswith(OF_CLIENT)}
        clients = {
            name: ScenarioClient(weights.get(name, 1.0), share=shares.get(name))
            for name in dict.fromkeys((*weights, *shares))
        }
        return Scenario(
            policy=policy or self.policy or PolicyChoice(),
            devices=tuple(self._device(number % len(self.devices)) for number in range(devices)),
            functions=functions,
            clients={name: client for name, client in clients.items() if client != ScenarioClient()},
            requests=tuple(each.as_request(functions[each.arrived.function], began_s) for each in ran),
            window_s=self.devices[0].window_s,
        )

    def _device(self, index: int) -> ScenarioDevice:
        device = self.devices[index]
        sms, step = self._requests.sms.get(device.index, (1, 1))
        made = ScenarioDevice(kind=device.kind, slots=self._requests.slots, speed=device.speed, sms=sms, sm_step=step)
        nbytes = self._requests.memory_bytes.get(device.index, device.memory_bytes)
        return made if nbytes is None else replace(made, memory_mb=nbytes / MEGABYTE)
