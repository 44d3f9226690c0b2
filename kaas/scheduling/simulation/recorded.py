"""A record of a pool as a scenario: the same requests at the same times, on any number of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

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
class _RecordedRequest:
    """A request of a record.

    Fields:
        arrived_s, ready_s: when the request came, and when its inputs existed. loaded: objects were loaded for the
            request. done: the request ran to its end.
    """

    arrived: RequestArrived
    arrived_s: float
    ready_s: float
    device_s: float = 0.0
    loaded: bool = False
    done: bool = False


@dataclass(slots=True)
class Recorded:
    """The requests and devices of a record, added event by event.

    A function's memory is the bytes that its requests read. Its load is the time that requests with loads took longer
    than others. Requests that never ran to an end are left out.

    Fields:
        left_out: the number of these.
    """

    policy: PolicyChoice = field(default_factory=PolicyChoice)
    devices: tuple[PhysicalDevice, ...] = ()
    _slots: int = 1
    _memory_bytes: dict[int, int] = field(default_factory=dict)
    _open: dict[int, _RecordedRequest] = field(default_factory=dict)
    _ran: list[_RecordedRequest] = field(default_factory=list)
    _weights: dict[str, float] = field(default_factory=dict)
    _loaded: dict[int, set[bytes]] = field(default_factory=dict)
    _shift_s: float = 0.0
    _last_s: float = 0.0
    _first: bool = True

    def begin(self, policy: str | None, options: Mapping[str, Any], devices: tuple[PhysicalDevice, ...]) -> None:
        """Begin an epoch of the pool, which may have another clock and numbers requests anew."""
        if policy is not None:
            self.policy = PolicyChoice(policy, dict(options))
        self.devices = devices
        self._open.clear()
        self._loaded.clear()
        self._first = True

    def add(self, event: Event) -> None:
        """Take in the next event of the record."""
        if self._first:
            self._first, self._shift_s = False, self._last_s - event.time_s
        self._last_s = event.time_s + self._shift_s
        match event:
            case RequestArrived(request=request) if event.attempt == 1:
                self._open[request] = _RecordedRequest(event, self._last_s, self._last_s)
                self._ran.append(self._open[request])
            case InputsReady(request=request) if request in self._open:
                self._open[request].ready_s = self._last_s
            case Residency(worker=worker):
                self._loaded.setdefault(worker, set()).update(event.loaded)
            case RequestDone(request=request) if request in self._open:
                ran = self._open.pop(request)
                loaded = self._loaded.pop(event.worker, set())
                ran.device_s, ran.done = event.device_s, True
                ran.loaded = any(use.key in loaded for use in ran.arrived.inputs)
            case WorkerReady(kind=WorkerKind.EXECUTOR):
                self._slots = event.slots
                self._memory_bytes[event.device] = event.memory_bytes
            case ClientKnown(client=client):
                self._weights[client] = event.weight

    @property
    def left_out(self) -> int:
        """Requests that did not run to their end."""
        return sum(not ran.done for ran in self._ran)

    def scenario(self, devices: int) -> Scenario:
        """Return the requests as a scenario on this number of devices, which repeat the recorded ones."""
        ran = [each for each in self._ran if each.done]
        by_function: dict[str, list[_RecordedRequest]] = {}
        for each in ran:
            by_function.setdefault(each.arrived.function, []).append(each)
        functions = {name: _function(own) for name, own in by_function.items()}
        began_s = min((each.ready_s for each in ran), default=0.0)
        return Scenario(
            policy=self.policy,
            devices=tuple(self._device(number % len(self.devices)) for number in range(devices)),
            functions=functions,
            clients={name: ScenarioClient(weight) for name, weight in self._weights.items() if weight != 1.0},
            requests=tuple(_request(each, functions[each.arrived.function], began_s) for each in ran),
        )

    def _device(self, index: int) -> ScenarioDevice:
        device = self.devices[index]
        made = ScenarioDevice(kind=device.kind, slots=self._slots, speed=device.speed)
        nbytes = self._memory_bytes.get(device.index, device.memory_bytes)
        return made if nbytes is None else replace(made, memory_mb=nbytes / MEGABYTE)


def _function(own: Sequence[_RecordedRequest]) -> ScenarioFunction:
    """Return a function by its runs."""
    first = own[0].arrived
    nbytes = max(sum(use.nbytes for use in each.arrived.inputs if use.key is not None) for each in own)
    found = [each.device_s for each in own if not each.loaded]
    loaded = [each.device_s for each in own if each.loaded]
    run_s = fmean(found or loaded)
    load_s = max(0.0, fmean(loaded) - run_s) if loaded else 0.0
    kind = "etask" if first.kind is WorkerKind.ETASK else "ktask"
    return ScenarioFunction(nbytes / MEGABYTE, load_s, run_s, kind=kind, client=first.client)


def _request(ran: _RecordedRequest, function: ScenarioFunction, began_s: float) -> ScenarioRequest:
    """Return a request for a run. A run with loads takes as long as others of its function, in addition to the load."""
    arrived, deadline_s = ran.arrived, None
    if arrived.deadline_s is not None:
        deadline_s = max(0.0, arrived.deadline_s - arrived.time_s - (ran.ready_s - ran.arrived_s))
    run_s = function.run_s if ran.loaded else ran.device_s
    assert not isinstance(run_s, Mapping), "functions of records have one time for all kinds of devices"
    client = None if arrived.client == function.client else arrived.client
    return ScenarioRequest(arrived.function, ran.ready_s - began_s, client, run_s, deadline_s)
