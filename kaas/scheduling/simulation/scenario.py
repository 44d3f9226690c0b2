"""The input of the simulator: devices, functions, clients, requests and a policy, as values.

Seconds and megabytes (2**20 bytes). `scenario_file.py` reads them; `docs/simulator.md` explains each.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from kaas.errors import InvalidScenario, KaasError
from kaas.scheduling.decisions import Policy
from kaas.scheduling.events import PhysicalDevice, WorkerKind
from kaas.scheduling.policies import factory

ETASK_POLICY = "exclusive"
"""Under this policy every function is an eTask, whatever its kind."""
NO_SHARED_EXECUTORS = frozenset({ETASK_POLICY, "static"})
"""Policies that start executors for one client each, if any."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The client and function whose eTask worker holds a device. function None: the only one of the client."""

    client: str
    function: str | None = None


@dataclass(frozen=True, slots=True)
class ScenarioShare:
    """The part of each device that the requests of a function or a client may have, as `kaas.Share`."""

    sms: float = 1.0
    quota: tuple[float, float] = (0.0, 1.0)
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True)
class ScenarioDevice:
    """A device of a scenario.

    Fields:
        sms, sm_step: streaming multiprocessors, and how many the least partition has; 1: it cannot be divided.
        cached: the functions whose memory is there from the start. host_mb: page-locked memory beside it; None: for
            all functions. link: the one that its loads share with those of other devices.
    """

    memory_mb: float = 16384.0
    cached: tuple[str, ...] = ()
    busy_until_s: float = 0.0
    owner: Owner | None = None
    kind: str = "gpu"
    slots: int = 1
    speed: float = 1.0
    interference: float = 0.0
    host_mb: float | None = None
    link: str | None = None
    sms: int = 1
    sm_step: int = 1


@dataclass(frozen=True, slots=True)
class ScenarioScale:
    """The number of devices follows the load, as with `kaas.Scale`. start_s: the time that a device takes to come."""

    min: int
    max: int
    start_s: float = 0.0
    idle_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ScenarioFunction:
    """A function of a scenario: its memory, its times in seconds, its client.

    Fields:
        load_s: from the host to the device. fetch_s: from the store to the host. run_s: by kind of device, or for all.
        run_cv: the coefficient of variation of run times, which are lognormal. family, batch: functions of one family
            differ in the batch size only. fills: the part of the SMs that a run fills; on fewer it takes longer.
        slo_s: the latency that is promised, in the place of a share; best_effort: as of `kaas.register`.
    """

    memory_mb: float = 0.0
    load_s: float = 0.0
    run_s: float | Mapping[str, float] = 0.0
    cold_s: float = 0.0
    kind: str = "ktask"
    client: str = "default"
    weight: float = 1.0
    run_cv: float = 0.0
    family: str = ""
    batch: float = 0.0
    fetch_s: float = 0.0
    fills: float = 1.0
    share: ScenarioShare | None = None
    slo_s: float | None = None
    best_effort: bool = True


@dataclass(frozen=True, slots=True)
class ScenarioClient:
    """A client of a scenario: its weight, its earlier device time and the devices with its data."""

    weight: float = 1.0
    runtime_s: float = 0.0
    affinity: tuple[int, ...] = ()
    mean_run_s: float | None = None
    share: ScenarioShare | None = None


@dataclass(frozen=True, slots=True)
class ScenarioRequest:
    """A request of a scenario; fields that are None are the function's."""

    function: str
    at_s: float = 0.0
    client: str | None = None
    run_s: float | None = None
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class ScenarioLink:
    """A link over which devices load, and its megabytes in a second."""

    mb_s: float


@dataclass(frozen=True, slots=True)
class ScenarioFailure:
    """The workers of a device end at a time, and start again after down_s at the earliest."""

    at_s: float
    device: int
    down_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AzureTrace:
    """A workload of the published Azure Functions trace of 2019: its files in a folder, and a part of its time.

    Fields:
        minutes: the first one, counted from 0, and the one after the last. load_mb_s: megabytes in a second by which
            functions load; the trace says nothing of it.
    """

    azure2019: str
    minutes: tuple[int, int] = (0, 1440)
    load_mb_s: float = 12000.0


@dataclass(frozen=True, slots=True)
class SyntheticWorkload:
    """A drawn workload of functions with run times and memory as Azure's trace has them.

    Fields:
        zipf: exponent of their popularity. rate: calls of all functions in a second. burst: coefficient of variation of
            the times between a function's calls. diurnal: the part of the rate by which it rises and falls over a day.
    """

    functions: int = 100
    zipf: float = 1.218
    rate: float = 1.0
    burst: float = 1.0
    diurnal: float = 0.0
    minutes: float = 60.0
    load_mb_s: float = 12000.0


@dataclass(frozen=True, slots=True)
class RecordedWorkload:
    """The requests of a pool's record, as a workload."""

    record: str


ScenarioWorkload = AzureTrace | SyntheticWorkload | RecordedWorkload


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy's name, and its options as keyword arguments."""

    name: str = "fcfs"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Devices, functions, clients and requests, and the policy that schedules them.

    Fields:
        profiles: the policy is told all functions' times at the start; a number: times wrong by this factor.
        worker_start_s: seconds that an executor takes to start. window_s: the time of which shares have parts.
        scale: devices come and go; `devices` are all that may be there, and equal.
        workload: brings functions and a stream of requests, in the place of `requests` (`kaas.scheduling.workloads`).
    """

    policy: PolicyChoice = PolicyChoice()
    seed: int = 0
    devices: tuple[ScenarioDevice, ...] = (ScenarioDevice(),)
    functions: Mapping[str, ScenarioFunction] = field(default_factory=dict)
    clients: Mapping[str, ScenarioClient] = field(default_factory=dict)
    requests: tuple[ScenarioRequest, ...] = ()
    profiles: bool | float = True
    worker_start_s: float = 0.0
    links: Mapping[str, ScenarioLink] = field(default_factory=dict)
    failures: tuple[ScenarioFailure, ...] = ()
    workload: ScenarioWorkload | None = None
    window_s: float = 0.1
    scale: ScenarioScale | None = None

    def make_policy(self, devices: Sequence[PhysicalDevice]) -> Policy:
        """Return a new policy of the scenario. A policy with a `seed` parameter gets the seed.

        Raises:
            InvalidScenario: the policy refuses its options.
        """
        options = dict(self.policy.options)
        try:
            made = factory(self.policy.name)
            if "seed" in inspect.signature(made).parameters:
                options.setdefault("seed", self.seed)
            return partial(made, **options)(devices)
        except (KaasError, TypeError, ValueError, LookupError) as error:
            raise InvalidScenario(f"policy: {error}", path="policy") from error

    def as_json(self) -> bytes:
        """Return the JSON text that `scenario_file.parse` reads."""
        data = msgspec.to_builtins(self)
        if (scale := data.pop("scale")) is not None:
            data["devices"] = scale | {"device": data["devices"][0]}
        data["policy"] = {"name": self.policy.name, **data["policy"]["options"]}
        if isinstance(self.workload, SyntheticWorkload):
            data["workload"] = {"synthetic": data["workload"]}
        return msgspec.json.format(msgspec.json.encode(data))

    def client_of(self, request: ScenarioRequest) -> str:
        """Return the client of a request."""
        return request.client if request.client is not None else self.functions[request.function].client

    def kind_of(self, function: str) -> WorkerKind:
        """Return the kind of worker that the function needs under the scenario's policy."""
        etask = self.policy.name == ETASK_POLICY or self.functions[function].kind == "etask"
        return WorkerKind.ETASK if etask else WorkerKind.EXECUTOR

    def owner_of(self, device: int) -> tuple[str, str] | None:
        """Return the client and the function whose eTask worker holds a device, or None.

        The result is None too if the function is no eTask under the scenario's policy.
        """
        owner = self.devices[device].owner
        if owner is None:
            return None
        function = owner.function or self.functions_of(owner.client)[0]
        return (owner.client, function) if self.kind_of(function) is WorkerKind.ETASK else None

    def functions_of(self, client: str) -> tuple[str, ...]:
        """Return the functions that name the client; if there are none, those that its requests call."""
        own = [name for name, function in self.functions.items() if function.client == client]
        called = (request.function for request in self.requests if request.client == client)
        return tuple(own or dict.fromkeys(called))

    def weights(self) -> dict[str, float]:
        """Return the weights of clients that are listed, and of those that functions name; that of others is 1."""
        weights = {name: client.weight for name, client in self.clients.items()}
        for function in self.functions.values():
            weights.setdefault(function.client, function.weight)
        return weights
