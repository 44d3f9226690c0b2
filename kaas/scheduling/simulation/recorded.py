"""A record of a pool as a scenario: the same requests at the same times, on any number of devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kaas.config import LARGEST
from kaas.scheduling.events import (
    ClientKnown,
    Event,
    InputsReady,
    PhysicalDevice,
    RequestArrived,
    RequestDone,
    Residency,
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
)
from kaas.scheduling.simulation.start import MEGABYTE


@dataclass(slots=True)
class RecordedRequest:
    """A request of a record.

    Fields:
        place: its place among the arrivals. arrived_s, ready_s: when the request came, and when its inputs existed.
            run_s, load_s: parts of device_s; both 0 in a record of version 1, which has the sum only. loaded: objects
            were loaded for the request.
    """

    place: int
    arrived: RequestArrived
    arrived_s: float
    ready_s: float
    device_s: float = 0.0
    run_s: float = 0.0
    load_s: float = 0.0
    loaded: bool = False

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
        run_s = self.run_s or (function.run_s if self.loaded else self.device_s)
        assert not isinstance(run_s, Mapping), "functions of records have one time for all kinds of devices"
        client = None if arrived.client == function.client else arrived.client
        return ScenarioRequest(arrived.function, self.ready_s - began_s, client, run_s, deadline_s)


@dataclass(slots=True)
class RecordedRequests:
    """The requests of a record that have not ended, followed event by event.

    Fields:
        arrived, ended: how many requests came, and ran to their end. open: by id, in the order of their arrival.
    """

    devices: tuple[PhysicalDevice, ...] = ()
    slots: int = 1
    memory_bytes: dict[int, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    arrived: int = 0
    ended: int = 0
    open: dict[int, RecordedRequest] = field(default_factory=dict)
    _loaded: dict[int, set[bytes]] = field(default_factory=dict)
    _shift_s: float = 0.0
    _last_s: float = 0.0
    _first: bool = True

    def begin(self, devices: tuple[PhysicalDevice, ...]) -> None:
        """Begin an epoch of the pool, which may have another clock and numbers requests anew."""
        self.devices = devices
        self.open.clear()
        self._loaded.clear()
        self._first = True

    def add(self, event: Event) -> RecordedRequest | None:
        """Take in the next event of the record, and return the request that it ends, if any."""
        if self._first:
            self._first, self._shift_s = False, self._last_s - event.time_s
        self._last_s = event.time_s + self._shift_s
        match event:
            case RequestArrived(request=request) if event.attempt == 1:
                self.open[request] = RecordedRequest(self.arrived, event, self._last_s, self._last_s)
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
            case ClientKnown(client=client):
                self.weights[client] = event.weight
        return None


@dataclass(slots=True)
class RecordedFunction:
    """Sums over the runs of a function.

    In a record of version 1 its load is the time that requests with loads, the `loaded` ones, took longer than others.
    """

    kind: WorkerKind
    client: str
    nbytes: int = 0
    found: int = 0
    found_s: float = 0.0
    loaded: int = 0
    loaded_s: float = 0.0
    loads: int = 0
    loads_s: float = 0.0

    def add(self, ran: RecordedRequest) -> None:
        """Take in a run."""
        self.nbytes = max(self.nbytes, ran.cached_bytes)
        if not ran.loaded or ran.run_s:
            self.found, self.found_s = self.found + 1, self.found_s + (ran.run_s or ran.device_s)
        if ran.loaded and ran.run_s:
            self.loads, self.loads_s = self.loads + 1, self.loads_s + ran.load_s
        elif ran.loaded:
            self.loaded, self.loaded_s = self.loaded + 1, self.loaded_s + ran.device_s

    def as_function(self) -> ScenarioFunction:
        """Return the function of a scenario."""
        with_load_s = self.loaded_s / self.loaded if self.loaded else 0.0
        run_s = self.found_s / self.found if self.found else with_load_s
        load_s = self.loads_s / self.loads if self.loads else max(0.0, with_load_s - run_s)
        kind = "etask" if self.kind is WorkerKind.ETASK else "ktask"
        return ScenarioFunction(self.nbytes / MEGABYTE, load_s, run_s, kind=kind, client=self.client)


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

    def add(self, event: Event) -> None:
        """Take in the next event of the record."""
        if (ran := self._requests.add(event)) is not None:
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
        return Scenario(
            policy=policy or self.policy or PolicyChoice(),
            devices=tuple(self._device(number % len(self.devices)) for number in range(devices)),
            functions=functions,
            clients={name: ScenarioClient(weight) for name, weight in weights.items() if weight != 1.0},
            requests=tuple(each.as_request(functions[each.arrived.function], began_s) for each in ran),
        )

    def _device(self, index: int) -> ScenarioDevice:
        device = self.devices[index]
        made = ScenarioDevice(kind=device.kind, slots=self._requests.slots, speed=device.speed)
        nbytes = self._requests.memory_bytes.get(device.index, device.memory_bytes)
        return made if nbytes is None else replace(made, memory_mb=nbytes / MEGABYTE)
