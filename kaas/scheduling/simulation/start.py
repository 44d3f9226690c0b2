"""How a scenario begins: the clients, workers and requests that it tells of, as the policy will hear of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from kaas.scheduling.events import (
    ClientKnown,
    ObjectUse,
    PhysicalDevice,
    RequestArrived,
    Running,
    WorkerAdopted,
    WorkerKind,
)
from kaas.scheduling.simulation.clock import picoseconds, seconds
from kaas.scheduling.simulation.memory import SimulatedMemory
from kaas.scheduling.simulation.scenario import NO_SHARED_EXECUTORS, Scenario

MEGABYTE = 1 << 20


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """index: its place in the scenario. arrival: what the policy hears, with its id, its place by arrival."""

    index: int
    arrival: RequestArrived
    key: bytes
    nbytes: int
    arrived_ps: int
    load_ps: int
    run_ps: int
    deadline_ps: int | None
    place: tuple[int, int] | None = None
    """Worker and slot, once the policy dispatched it."""
    began: bool = False
    answered: bool = False

    @property
    def worker(self) -> int:
        """The worker that runs the request."""
        assert self.place is not None, "only what was dispatched has a worker"
        return self.place[0]


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker of a simulation."""

    id: int
    kind: WorkerKind
    device: int
    slots: int
    cold_ps: int | None = None
    """What its start took that its first request is charged; None: that has been, or nobody is."""
    stopping: bool = False
    running: int = 0


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """free_ps: before this no worker starts. entering: dispatched requests that wait for room in memory."""

    index: int
    slots: int
    speed: float
    free_ps: int
    memory: SimulatedMemory
    busy_ps: int = 0
    workers: set[int] = field(default_factory=set)
    entering: deque[SimulatedRequest] = field(default_factory=deque)

    def worker(self, id_: int, kind: WorkerKind) -> SimulatedWorker:
        """A worker on it. An eTask worker has one slot: what runs there has the device to itself."""
        self.workers.add(id_)
        return SimulatedWorker(id_, kind, self.index, self.slots if kind is WorkerKind.EXECUTOR else 1)

    def run_ps(self, request: SimulatedRequest) -> int:
        """Return the picoseconds that a request takes here."""
        return request.run_ps if self.speed == 1.0 else round(request.run_ps / self.speed)


def physical(scenario: Scenario) -> tuple[PhysicalDevice, ...]:
    """Return the devices as a policy sees them."""
    return tuple(
        PhysicalDevice(index, device.kind, to_bytes(device.memory_mb), device.speed)
        for index, device in enumerate(scenario.devices)
    )


def devices(scenario: Scenario) -> list[SimulatedDevice]:
    """The devices with what they hold."""
    made = []
    for index, told in enumerate(scenario.devices):
        memory = SimulatedMemory(to_bytes(told.memory_mb))
        for name in told.cached:
            memory.holds_from_start(name.encode(), to_bytes(scenario.functions[name].memory_mb))
        made.append(SimulatedDevice(index, told.slots, told.speed, picoseconds(told.busy_until_s), memory))
    return made


def requests(scenario: Scenario) -> list[SimulatedRequest]:
    """In the order of their arrival."""
    made: list[SimulatedRequest] = []
    for index in sorted(range(len(scenario.requests)), key=lambda index: scenario.requests[index].at_s):
        told = scenario.requests[index]
        function = scenario.functions[told.function]
        nbytes, arrived_ps = to_bytes(function.memory_mb), picoseconds(told.at_s)
        deadline_ps = None if told.deadline_s is None else arrived_ps + picoseconds(told.deadline_s)
        key = told.function.encode()
        arrival = RequestArrived(
            time_s=seconds(arrived_ps),
            request=len(made),
            client=scenario.client_of(told),
            function=told.function,
            inputs=(ObjectUse(key, nbytes),),
            deadline_s=None if deadline_ps is None else seconds(deadline_ps),
            kind=scenario.kind_of(told.function),
        )
        run_ps = picoseconds(function.run_s if told.run_s is None else told.run_s)
        made.append(
            SimulatedRequest(index, arrival, key, nbytes, arrived_ps, picoseconds(function.load_s), run_ps, deadline_ps)
        )
    return made


def clients(scenario: Scenario) -> Iterator[ClientKnown]:
    """Those listed, which are present from the start, and what functions say of others."""
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


def adopted(scenario: Scenario) -> Iterator[WorkerAdopted]:
    """Yield the workers that are there when time begins.

    These are the owners' eTask workers, and executors on all other devices under policies that share them. What keeps a
    worker busy belongs to no client, and no client is charged for it.
    """
    workers, busy = count(), count(1)
    for index, told in enumerate(scenario.devices):
        owner = scenario.owner_of(index)
        if owner is None and scenario.policy.name in NO_SHARED_EXECUTORS:
            continue
        client, function = owner or ("", "")
        slots = 1 if owner else told.slots
        yield WorkerAdopted(
            time_s=0.0,
            worker=next(workers),
            kind=WorkerKind.ETASK if owner else WorkerKind.EXECUTOR,
            device=index,
            slots=slots,
            memory_bytes=to_bytes(told.memory_mb),
            client=client,
            function=function,
            running=tuple(
                Running(-next(busy), slot, client, function, told.busy_until_s)
                for slot in range(slots)
                if told.busy_until_s
            ),
        )


def to_bytes(megabytes: float) -> int:
    """Return megabytes as bytes, rounded."""
    return round(megabytes * MEGABYTE)
