"""The start of a scenario: its clients, workers and requests, as events for the policy."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from kaas.scheduling.decisions import Dispatch
from kaas.scheduling.events import (
    ClientKnown,
    FunctionKnown,
    ObjectUse,
    PhysicalDevice,
    RequestArrived,
    Running,
    WorkerAdopted,
    WorkerKind,
)
from kaas.scheduling.simulation.clock import picoseconds, seconds
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.scenario import NO_SHARED_EXECUTORS, Scenario, ScenarioFunction, ScenarioRequest
from kaas.scheduling.simulation.simulated_memory import FunctionPlace, SimulatedMemory

MEGABYTE = 1 << 20


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """A request of a simulation.

    Fields:
        index: its place in the scenario. arrival: the event for the policy; its id is its place by arrival. run_ps: its
            run by kind of device, at speed 1.
    """

    index: int
    arrival: RequestArrived
    key: bytes
    nbytes: int
    arrived_ps: int
    load_ps: int
    run_ps: Mapping[str, int]
    deadline_ps: int | None
    dispatch: Dispatch | None = None
    """The policy's decision, once it was made."""
    memory: FunctionPlace | None = None
    """Its function's memory, once it began."""
    started_ps: int = 0
    """The start of its worker, if that was for the request."""
    ran_ps: int = 0
    """Its run on its device, once it began."""
    replied: bool = False

    @property
    def loaded_ps(self) -> int:
        """The load of its function's memory, if the request began with one."""
        return self.load_ps if self.memory is not None and self.memory.loaded else 0

    @property
    def charged_ps(self) -> int:
        """The time that the request had its device: start, load and run."""
        return self.started_ps + self.loaded_ps + self.ran_ps

    @property
    def dispatched(self) -> Dispatch:
        """The decision that gave the request a slot."""
        assert self.dispatch is not None, "only what was dispatched has a slot"
        return self.dispatch


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker of a simulation."""

    id: int
    kind: WorkerKind
    device: int
    slots: int
    cold_ps: int | None = None
    """Time of its start, to be charged to its first request; None if it was charged, or no request is."""
    stopping: bool = False
    running: int = 0


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """A device of a simulation.

    Fields:
        running: requests that run. free_ps: no worker starts before. entering: dispatched requests that wait for room
            in memory. runs: the times from which, and to which, requests run, as far as `busy_share` needs them.
    """

    index: int
    slots: int
    kind: str
    speed: float
    interference: float
    free_ps: int
    memory: SimulatedMemory
    running: int = 0
    busy_ps: int = 0
    workers: set[int] = field(default_factory=set)
    entering: deque[SimulatedRequest] = field(default_factory=deque)
    runs: list[tuple[int, int]] = field(default_factory=list)

    def worker(self, id_: int, kind: WorkerKind) -> SimulatedWorker:
        """Return a new worker on the device. An eTask worker has one slot: its request has the device to itself."""
        self.workers.add(id_)
        return SimulatedWorker(id_, kind, self.index, self.slots if kind is WorkerKind.EXECUTOR else 1)

    def busy_share(self, since_ps: int, until_ps: int) -> float:
        """Return the share of a time in which at least one request ran. Later calls are about later times."""
        busy_ps, covered_ps = 0, since_ps
        for began_ps, ends_ps in sorted(self.runs):
            covered_ps, end_ps = max(covered_ps, began_ps), min(ends_ps, until_ps)
            if end_ps > covered_ps:
                busy_ps += end_ps - covered_ps
                covered_ps = end_ps
        self.runs = [run for run in self.runs if run[1] > until_ps]
        return busy_ps / (until_ps - since_ps)

    def run_ps(self, request: SimulatedRequest) -> int:
        """Return the picoseconds that a request takes here that begins beside those that run."""
        alone_ps = request.run_ps[self.kind]
        factor = (1.0 + self.interference * self.running) / self.speed
        return alone_ps if factor == 1.0 else round(alone_ps * factor)


def physical(scenario: Scenario) -> tuple[PhysicalDevice, ...]:
    """Return the devices as a policy sees them."""
    return tuple(
        PhysicalDevice(index, device.kind, to_bytes(device.memory_mb), device.speed, slots=device.slots)
        for index, device in enumerate(scenario.devices)
    )


def devices(scenario: Scenario, copies: Counter[bytes]) -> list[SimulatedDevice]:
    """Return the devices with the memory that they hold from the start; `copies` counts the copies of each function."""
    made = []
    for index, device in enumerate(scenario.devices):
        memory = SimulatedMemory(to_bytes(device.memory_mb), copies)
        for name in device.cached:
            memory.holds_from_start(name.encode(), to_bytes(scenario.functions[name].memory_mb))
        free_ps = picoseconds(device.busy_until_s)
        made.append(
            SimulatedDevice(index, device.slots, device.kind, device.speed, device.interference, free_ps, memory)
        )
    return made


def requests(scenario: Scenario) -> list[SimulatedRequest]:
    """Return the requests in the order of their arrival. Those without a run time of their own draw it by the seed."""
    made: list[SimulatedRequest] = []
    kinds = dict.fromkeys(device.kind for device in scenario.devices)
    draws = Draws(scenario.seed)
    for index in sorted(range(len(scenario.requests)), key=lambda index: scenario.requests[index].at_s):
        request = scenario.requests[index]
        function = scenario.functions[request.function]
        nbytes, arrived_ps = to_bytes(function.memory_mb), picoseconds(request.at_s)
        deadline_ps = None if request.deadline_s is None else arrived_ps + picoseconds(request.deadline_s)
        key = request.function.encode()
        arrival = RequestArrived(
            time_s=seconds(arrived_ps),
            request=len(made),
            client=scenario.client_of(request),
            function=request.function,
            inputs=(ObjectUse(key, nbytes, constant=True),),
            deadline_s=None if deadline_ps is None else seconds(deadline_ps),
            kind=scenario.kind_of(request.function),
        )
        factor = 1.0 if request.run_s is not None else draws.lognormal(function.run_cv)
        run_ps = {kind: picoseconds(factor * _run_s(function, request, kind)) for kind in kinds}
        made.append(
            SimulatedRequest(index, arrival, key, nbytes, arrived_ps, picoseconds(function.load_s), run_ps, deadline_ps)
        )
    return made


def _run_s(function: ScenarioFunction, request: ScenarioRequest, kind: str) -> float:
    """Return the mean run time of a request on a kind of device."""
    if request.run_s is not None:
        return request.run_s
    return function.run_s[kind] if isinstance(function.run_s, Mapping) else function.run_s


def clients(scenario: Scenario) -> Iterator[ClientKnown]:
    """Yield the listed clients, which are present from the start, and others whose functions have a weight."""
    for name, client in scenario.clients.items():
        yield ClientKnown(
            time_s=0.0,
            client=name,
            weight=client.weight,
            charged_s=client.runtime_s,
            mean_s=client.mean_run_s,
            devices=client.affinity,
            present=True,
        )
    for name, weight in scenario.weights().items():
        if name not in scenario.clients and weight != 1.0:
            yield ClientKnown(0.0, name, weight)


def functions(scenario: Scenario) -> Iterator[FunctionKnown]:
    """Yield what the policy is told of each function on each kind of device: its times, perhaps wrong by a factor."""
    if scenario.profiles is False:
        return
    factor = float(scenario.profiles)
    for kind in dict.fromkeys(device.kind for device in scenario.devices):
        for name, function in scenario.functions.items():
            run_s = factor * _run_s(function, ScenarioRequest(name), kind)
            load_s, nbytes = factor * function.load_s, to_bytes(function.memory_mb)
            yield FunctionKnown(0.0, name, kind, run_s, load_s, nbytes, 1, function.family, function.batch)


def adopted(scenario: Scenario) -> Iterator[WorkerAdopted]:
    """Yield the workers that are there when time begins.

    These are the owners' eTask workers, and executors on all other devices under policies that share them. The request
    that keeps a worker busy belongs to no client, and no client is charged for it.
    """
    workers, busy = count(), count(1)
    for index, device in enumerate(scenario.devices):
        owner = scenario.owner_of(index)
        if owner is None and scenario.policy.name in NO_SHARED_EXECUTORS:
            continue
        client, function = owner or ("", "")
        slots = 1 if owner else device.slots
        yield WorkerAdopted(
            time_s=0.0,
            worker=next(workers),
            kind=WorkerKind.ETASK if owner else WorkerKind.EXECUTOR,
            device=index,
            slots=slots,
            memory_bytes=to_bytes(device.memory_mb),
            client=client,
            function=function,
            running=tuple(
                Running(-next(busy), slot, client, function, device.busy_until_s)
                for slot in range(slots)
                if device.busy_until_s
            ),
        )


def to_bytes(megabytes: float) -> int:
    """Return megabytes as bytes, rounded."""
    return round(megabytes * MEGABYTE)
