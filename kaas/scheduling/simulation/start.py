"""The start of a scenario: its clients, workers and requests, as events for the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from kaas.errors import InvalidScenario
from kaas.scheduling.events import (
    ClientKnown,
    FunctionKnown,
    ObjectUse,
    PhysicalDevice,
    PromiseKnown,
    RequestArrived,
    Running,
    ShareKnown,
    WorkerAdopted,
    WorkerKind,
)
from kaas.scheduling.simulation.clock import SECOND_PS, Clock, picoseconds
from kaas.scheduling.simulation.devices import SimulatedDevice, SimulatedFunction, SimulatedRequest
from kaas.scheduling.simulation.draws import Draws
from kaas.scheduling.simulation.links import SimulatedLink
from kaas.scheduling.simulation.scenario import (
    NO_SHARED_EXECUTORS,
    Scenario,
    ScenarioFunction,
    ScenarioRequest,
    ScenarioShare,
)
from kaas.scheduling.simulation.simulated_memory import SimulatedHostMemory, SimulatedMemory

MEGABYTE = 1 << 20
OF_FUNCTION, OF_CLIENT = "function ", "client "
"""Begin the names of shares, as in a pool; the name of the function or the client follows."""


def physical(scenario: Scenario) -> tuple[PhysicalDevice, ...]:
    """Return the devices as a policy sees them."""
    return tuple(
        PhysicalDevice(
            index,
            device.kind,
            to_bytes(device.memory_mb),
            device.speed,
            slots=device.slots,
            window_s=scenario.window_s,
        )
        for index, device in enumerate(scenario.devices)
    )


def devices(scenario: Scenario, clock: Clock, copies: Counter[bytes]) -> list[SimulatedDevice]:
    """Return the devices with the memory that they hold from the start; `copies` counts the copies of each function."""
    made = []
    links = {name: SimulatedLink(clock, link.mb_s * MEGABYTE) for name, link in scenario.links.items()}
    for index, device in enumerate(scenario.devices):
        host = SimulatedHostMemory(None if device.host_mb is None else to_bytes(device.host_mb))
        memory = SimulatedMemory(to_bytes(device.memory_mb), copies, host)
        for name in device.cached:
            memory.holds_from_start(name.encode(), to_bytes(scenario.functions[name].memory_mb))
        made.append(
            SimulatedDevice(
                index,
                device.slots,
                device.kind,
                device.speed,
                device.interference,
                picoseconds(device.busy_until_s),
                memory,
                None if device.link is None else links[device.link],
                device.sms,
                device.sm_step,
            )
        )
    return made


def functions(scenario: Scenario) -> dict[str, SimulatedFunction]:
    """Return the functions by name."""
    kinds = dict.fromkeys(device.kind for device in scenario.devices)
    made = {}
    for name, function in scenario.functions.items():
        key, nbytes = name.encode(), to_bytes(function.memory_mb)
        made[name] = SimulatedFunction(
            key,
            nbytes,
            function.client,
            scenario.kind_of(name),
            (ObjectUse(key, nbytes, constant=True),),
            picoseconds(function.fetch_s),
            picoseconds(function.load_s),
            {kind: picoseconds(_run_s(function, kind)) for kind in kinds},
            function.fills,
        )
    return made


def requests(scenario: Scenario, stream: Iterable[ScenarioRequest] | None = None) -> Iterator[SimulatedRequest]:
    """Yield the requests in the order of their arrival. Those without a run time of their own draw it by the seed.

    Args:
        scenario: its own requests are sorted.
        stream: requests in the place of the scenario's, in the order of their arrival.

    Raises:
        InvalidScenario: a request of the stream comes before the last one, or calls no function of the scenario.
    """
    known = functions(scenario)
    kinds = dict.fromkeys(device.kind for device in scenario.devices)
    draws, shares = Draws(scenario.seed), _shares(scenario)
    arriving: Iterable[tuple[int, ScenarioRequest]] = enumerate(scenario.requests if stream is None else stream)
    if stream is None:
        arriving = sorted(arriving, key=lambda each: each[1].at_s)
    last_ps = 0
    for number, (index, request) in enumerate(arriving):
        function = known.get(request.function)
        if function is None:
            raise InvalidScenario(f"no function {request.function!r}", path=f"requests[{index}].function")
        arrived_ps = picoseconds(request.at_s)
        if arrived_ps < last_ps:
            raise InvalidScenario("earlier than the request before", path=f"requests[{index}].at_s")
        last_ps = arrived_ps
        deadline_ps = None if request.deadline_s is None else arrived_ps + picoseconds(request.deadline_s)
        run_ps = function.run_ps
        if request.run_s is not None:
            run_ps = dict.fromkeys(kinds, picoseconds(request.run_s))
        elif (run_cv := scenario.functions[request.function].run_cv) != 0:
            factor = draws.lognormal(run_cv)
            run_ps = {kind: round(factor * mean_ps) for kind, mean_ps in run_ps.items()}
        client = function.client if request.client is None else request.client
        arrival = RequestArrived(
            arrived_ps / SECOND_PS,
            number,
            client,
            request.function,
            function.reads,
            True,
            None if deadline_ps is None else deadline_ps / SECOND_PS,
            1,
            function.kind,
            share=next((each for each in (OF_FUNCTION + request.function, OF_CLIENT + client) if each in shares), ""),
        )
        yield SimulatedRequest(index, arrival, function, arrived_ps, run_ps, deadline_ps)


def _run_s(function: ScenarioFunction, kind: str) -> float:
    """Return the mean run time of a function on a kind of device."""
    return function.run_s[kind] if isinstance(function.run_s, Mapping) else function.run_s


def _shares(scenario: Scenario) -> dict[str, ScenarioShare | ScenarioFunction]:
    """Return the shares of functions and clients, and functions with promises, by their names for the policy."""
    found: dict[str, ScenarioShare | ScenarioFunction] = {}
    for name, function in scenario.functions.items():
        if function.slo_s is not None:
            found[OF_FUNCTION + name] = function
        elif function.share is not None:
            found[OF_FUNCTION + name] = function.share
    return found | {OF_CLIENT + name: each.share for name, each in scenario.clients.items() if each.share is not None}


def shares(scenario: Scenario) -> Iterator[ShareKnown | PromiseKnown]:
    """Yield the shares and promises of functions and clients."""
    for name, share in _shares(scenario).items():
        if isinstance(share, ScenarioShare):
            memory_bytes = None if share.memory_mb is None else to_bytes(share.memory_mb)
            yield ShareKnown(0.0, name, share.sms, *share.quota, memory_bytes)
        elif share.slo_s is not None:
            yield PromiseKnown(0.0, name, share.slo_s, share.best_effort)


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


def profiles(scenario: Scenario) -> Iterator[FunctionKnown]:
    """Yield what the policy is told of each function on each kind of device: its times, perhaps wrong by a factor.

    The load is that of memory which the host has, as most loads are.
    """
    if scenario.profiles is False:
        return
    factor = float(scenario.profiles)
    for kind in dict.fromkeys(device.kind for device in scenario.devices):
        for name, function in scenario.functions.items():
            run_s, load_s = factor * _run_s(function, kind), factor * function.load_s
            nbytes = to_bytes(function.memory_mb)
            yield FunctionKnown(0.0, name, kind, run_s, load_s, nbytes, 1, function.family, function.batch)


def adopted(scenario: Scenario) -> Iterator[WorkerAdopted]:
    """Yield the workers that are there when time begins.

    These are the owners' eTask workers, and executors on all other devices under policies that share them. The request
    that keeps a worker busy belongs to no client, and no client is charged for it.
    """
    workers, busy = count(), count(1)
    there = len(scenario.devices) if scenario.scale is None else scenario.scale.min
    for index, device in enumerate(scenario.devices[:there]):
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
            sms=device.sms,
            sm_step=device.sm_step,
        )


def to_bytes(megabytes: float) -> int:
    """Return megabytes as bytes, rounded."""
    return round(megabytes * MEGABYTE)
