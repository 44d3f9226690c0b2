"""The state of a simulation: its requests, and its workers on their devices. Times are whole picoseconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from kaas.scheduling.decisions import Decision
from kaas.scheduling.events import DeviceAdded, Event, ObjectUse, RequestArrived, WorkerKind, WorkerReady
from kaas.scheduling.sharing.devices import DeviceScaler
from kaas.scheduling.simulation.clock import Clock, Turn, no_earlier_ps, picoseconds
from kaas.scheduling.simulation.links import SimulatedLink
from kaas.scheduling.simulation.scenario import ScenarioScale
from kaas.scheduling.simulation.simulated_memory import FunctionPlace, SimulatedMemory

FRUITLESS_LOOKS = 1000
"""A scale looks so often after the last event, if nothing follows: then the requests that wait will not run."""


@dataclass(frozen=True, slots=True)
class SimulatedFunction:
    """A function as its requests need it.

    Fields:
        reads: what they read, its memory. fetch_ps: from the store to the host. load_ps: from there to the device.
        run_ps: the mean of its runs, by kind of device, at speed 1. fills: the part of the SMs that a run fills.
    """

    key: bytes
    nbytes: int
    client: str
    kind: WorkerKind
    reads: tuple[ObjectUse, ...]
    fetch_ps: int
    load_ps: int
    run_ps: Mapping[str, int]
    fills: float = 1.0


class SimulatedRequest(msgspec.Struct, eq=False):
    """A request of a simulation, from its arrival to its end, or to that of its worker.

    Fields:
        index: its place in the scenario. arrival: the event for the policy; its id is its place by arrival. run_ps: its
            run by kind of device, at speed 1. worker, slot, victims, promised, share, sms: the policy's decision, once
            made.
            place: its function's memory, once it began. began_ps: the time at which it began. started_ps: the start of
            its worker, if that was for the request. loaded_ps: its load, if it began with one and the load has ended.
            ready_ps: the time at which its run begins, once that is known. ran_ps: its run on its device, once it
            began. replied: its caller waits no more. gone: its worker ended.
    """

    index: int
    arrival: RequestArrived
    function: SimulatedFunction
    arrived_ps: int
    run_ps: Mapping[str, int]
    deadline_ps: int | None = None
    worker: SimulatedWorker | None = None
    slot: int = 0
    victims: tuple[bytes, ...] = ()
    promised: bool = False
    share: str = ""
    sms: int = 0
    place: FunctionPlace | None = None
    began_ps: int = 0
    started_ps: int = 0
    loaded_ps: int = 0
    ready_ps: int | None = None
    ran_ps: int = 0
    replied: bool = False
    gone: bool = False

    @property
    def charged_ps(self) -> int:
        """The time that the request had its device: start, load and run."""
        return self.started_ps + self.loaded_ps + self.ran_ps

    @property
    def at(self) -> SimulatedWorker:
        """The worker that the policy chose."""
        assert self.worker is not None, "only what was dispatched has a worker"
        return self.worker

    @property
    def part(self) -> float:
        """The part of its device's SMs that the request has."""
        return self.sms / self.at.device.sms if self.sms else 1.0

    def again(self, now_s: float) -> SimulatedRequest:
        """Return the request as it arrives again, after its worker has ended: it must run alone, as in a pool."""
        arrival = msgspec.structs.replace(self.arrival, time_s=now_s, attempt=self.arrival.attempt + 1, alone=True)
        return SimulatedRequest(self.index, arrival, self.function, self.arrived_ps, self.run_ps, self.deadline_ps)


@dataclass(slots=True, eq=False)
class SimulatedWorker:
    """A worker of a simulation.

    Fields:
        start_ps: the time that it takes to start. cold_ps: the part of it that its first request is charged; None if it
            was charged, or no request is. ready_ps: it is up from then on. running: the number of its requests.
    """

    id: int
    kind: WorkerKind
    device: SimulatedDevice
    slots: int
    start_ps: int = 0
    cold_ps: int | None = None
    ready_ps: int = 0
    up: bool = False
    stopping: bool = False
    running: int = 0


@dataclass(slots=True, eq=False)
class SimulatedDevice:
    """A device of a simulation.

    Fields:
        link: its loads share it with those of other devices. free_ps: no worker starts before. running: requests that
            run, or load, in the order in which they began. entering: dispatched requests that wait for room in memory.
            waiting: requests that wait until their function is loaded, where the time of that is not known. runs: the
            times from which, and to which, requests run, as far as `busy_share` needs them.
    """

    index: int
    slots: int
    kind: str
    speed: float
    interference: float
    free_ps: int
    memory: SimulatedMemory
    link: SimulatedLink | None = None
    sms: int = 1
    sm_step: int = 1
    busy_ps: int = 0
    workers: dict[int, SimulatedWorker] = field(default_factory=dict)
    running: dict[int, SimulatedRequest] = field(default_factory=dict)
    entering: deque[SimulatedRequest] = field(default_factory=deque)
    waiting: dict[bytes, list[SimulatedRequest]] = field(default_factory=dict)
    runs: list[tuple[int, int]] = field(default_factory=list)

    def worker(self, id_: int, kind: WorkerKind) -> SimulatedWorker:
        """Return a new worker on the device. An eTask worker has one slot: its request has the device to itself."""
        made = SimulatedWorker(id_, kind, self, self.slots if kind is WorkerKind.EXECUTOR else 1)
        self.workers[id_] = made
        return made

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
        """Return the picoseconds that a request takes here that begins beside those that run.

        Requests without a share run on the same SMs: one that begins gets its part of them, if they want more than all.
        """
        alone_ps = request.run_ps[self.kind]
        factor = (1.0 + self.interference * len(self.running)) / self.speed
        if self.sms > 1:
            beside = () if request.share else [each for each in self.running.values() if not each.share]
            factor *= max(1.0, sum(each.function.fills for each in (request, *beside)) / request.part)
        return alone_ps if factor == 1.0 else round(alone_ps * factor)

    def emptied(self, now_ps: int) -> None:
        """Take in that no process is left: the memory of the device and that of its host are empty."""
        self.memory = self.memory.emptied()
        self.waiting.clear()
        self.runs = [(began_ps, min(ends_ps, now_ps)) for began_ps, ends_ps in self.runs if began_ps < now_ps]
        if self.link is not None:
            self.link.drop(self.index)


class ScaledDevices:
    """The devices of a scenario with a scale, which come and go as in a pool.

    Args:
        holds: whether limits hold a waiting request back. tell: gives the policy an event. ended: whether no request is
            there, nor comes.
    """

    def __init__(
        self,
        scale: ScenarioScale,
        devices: Sequence[SimulatedDevice],
        clock: Clock,
        holds: Callable[[int], bool],
        tell: Callable[[Event], None],
        ended: Callable[[], bool],
    ) -> None:
        self._start_ps = picoseconds(scale.start_s)
        self._devices = devices
        self._clock = clock
        self._tell = tell
        self._ended = ended
        self._scaler = DeviceScaler(scale.min, scale.max, idle_s=scale.idle_s, holds=holds)
        self._due_s = math.inf
        self._fruitless = 0
        self._coming: set[int] = set()  # devices without a process that could be used again

    def begin(self) -> None:
        """Take away the devices that no load needs yet."""
        for event in self._scaler.begin((), 0.0):
            self._tell(event)

    def heard(self, event: Event, decisions: Sequence[Decision]) -> None:
        """Take in an event of the policy, and its decisions."""
        self._scaler.observe(event, decisions)
        match event:
            case DeviceAdded() if not self._devices[event.device].workers:
                self._coming.add(event.device)
            case WorkerReady():
                self._coming.discard(event.device)
        if self._scaler.wake_s < self._due_s:
            self._look_at(self._scaler.wake_s)

    def start_ps(self, device: int) -> int:
        """Return the time that a device takes to come, before a worker can start there."""
        return self._start_ps if device in self._coming else 0

    def _look_at(self, time_s: float) -> None:
        self._due_s = time_s
        if time_s < math.inf:
            self._clock.at(no_earlier_ps(time_s), Turn.DEADLINE, (0, 0), self._look, time_s)

    def _look(self, due_s: float) -> None:
        if due_s != self._due_s or self._ended():
            return
        self._due_s = math.inf
        changes = self._scaler.decide(self._clock.now_s)
        self._fruitless = 0 if changes or not self._clock.is_idle else self._fruitless + 1
        if self._fruitless < FRUITLESS_LOOKS:
            self._look_at(self._scaler.wake_s)
        for event in changes:
            self._tell(event)
