"""The events that a policy gets: immutable values with all times and sizes. `decisions` has what it makes of them.

Times are seconds on the pool's own monotonic clock. A request, a worker and a slot are small integers: requests count
up as they arrive, workers are numbered by the policy that starts them, slots by the worker from 0.

Values that each request needs are Structs, which take a tenth of the time of a frozen dataclass; no cycle goes through
them, so the garbage collector passes them by.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from kaas.scheduling.sharing.scaling import Configuration


class WorkerKind(Enum):
    """The kind of a worker: it runs kTasks, or Python functions that have the device to themselves."""

    EXECUTOR = "executor"
    ETASK = "etask"

    __hash__ = object.__hash__  # Enum's own is a Python function, and each request needs look-ups by kind


class Outcome(Enum):
    """The way in which a request left its slot."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"
    """Its caller cancelled it, or its deadline passed, while it ran."""


@dataclass(frozen=True, slots=True)
class PhysicalDevice:
    """A device that the policy owns."""

    index: int
    kind: str
    memory_bytes: int | None
    speed: float = 1.0
    """Its speed at kernels, relative to other devices."""
    etask_workers: int = 1
    """eTask workers that may be on it at a time; one of them runs."""
    slots: int | None = None
    """Requests that its executor runs at a time; None: as its WorkerReady says."""
    client_executors: int | None = None
    """Clients that may have executors of their own on it at a time; None: one executor serves all clients."""
    window_s: float = 0.1
    """The time of which shares have parts."""


class ObjectUse(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An object that a request reads.

    Fields:
        key: its name in caches; None for a plain value, which no cache keeps. constant: the function binds it, so that
            all requests of the function read it: it is part of the function's memory.
    """

    key: bytes | None
    nbytes: int
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """A request that a worker was running when it was adopted. ends_s: the expected time of its end, if known."""

    request: int
    slot: int
    client: str
    function: str
    ends_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClientKnown:
    """A client's settings and past, by the configuration or an earlier epoch of the pool. The last event counts.

    Other clients are known by their requests, with the defaults of this class.

    Fields:
        weight: its part of the device time that clients compete for. priority: the client of the highest goes first.
        max_running: how many of its requests may run at a time. max_share: of all devices' time, 0 to 1.
        charged_s: device seconds that it has had; None: as before. mean_s: device seconds of a request, as if one such
            request had been measured.
        devices: those that hold its data. present: it competes from now on, as if it had a request.
    """

    time_s: float
    client: str
    weight: float = 1.0
    priority: int = 0
    max_running: int | None = None
    max_share: float | None = None
    charged_s: float | None = 0.0
    mean_s: float | None = None
    devices: tuple[int, ...] = ()
    present: bool = False


@dataclass(frozen=True, slots=True)
class FunctionKnown:
    """The measured times and memory of a function on one kind of device, from before this epoch of the pool.

    The event counts as `observations` requests. Functions without such an event are known by their requests.

    Fields:
        kind: of the device, as `PhysicalDevice.kind`. run_s: device seconds of a request without loads. load_s: device
            seconds to load the function's memory, which has nbytes. family, batch: functions of one family differ in
            the batch size only.
    """

    time_s: float
    function: str
    kind: str
    run_s: float
    load_s: float
    nbytes: int
    observations: int
    family: str = ""
    batch: float = 0.0
    points: tuple[Configuration, ...] = ()
    """The work of an instance on each share of such a device, measured: `kaas profile`."""


@dataclass(frozen=True, slots=True)
class ShareKnown:
    """The part of each device that requests have which name a share. The last event counts, from the next dispatch on.

    Fields:
        share: its name. sms: a part of the streaming multiprocessors, more than 0 and at most 1. least, most: parts of
            the time of each window (FaST-GShare's quota_request and quota_limit). memory_bytes: of a device that its
            objects have once no request reads them; None: as many as there is room for.
    """

    time_s: float
    share: str
    sms: float = 1.0
    least: float = 0.0
    most: float = 1.0
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PromiseKnown:
    """Requests that name a share are to end within a latency: the policy chooses the shares and devices for them.

    Fields:
        share: its name. slo_s: seconds from the arrival of a request to its end. best_effort: a request that would end
            too late runs on what shares leave; otherwise it is rejected.
    """

    time_s: float
    share: str
    slo_s: float
    best_effort: bool = True


@dataclass(frozen=True, slots=True)
class ShareGone:
    """A share, or a promise, is taken away: its requests are as others without one."""

    time_s: float
    share: str


@dataclass(frozen=True, slots=True)
class ClientGone:
    """A client's program ended: none of its requests is queued, and no caller waits for its running ones."""

    time_s: float
    client: str


class RequestArrived(msgspec.Struct, frozen=True, gc=False):
    """A request to place. When its worker dies it arrives again under its id, with attempt counted up from 1."""

    time_s: float
    request: int
    client: str
    function: str
    inputs: tuple[ObjectUse, ...] = ()
    ready: bool = True
    deadline_s: float | None = None
    """The time by which it must have ended, on the clock of time_s."""
    attempt: int = 1
    kind: WorkerKind = WorkerKind.EXECUTOR
    """The kind of worker that it needs. An eTask worker serves one client and function only."""
    alone: bool = False
    """It may have ended a device: its worker may run no other request at the same time."""
    share: str = ""
    """The name of its share of each device; requests without one have what shares leave."""


@dataclass(frozen=True, slots=True)
class InputsReady:
    """The inputs of a request that arrived without them exist now."""

    time_s: float
    request: int


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """No caller waits for the request any more. If it runs, its slot stays taken until RequestDone."""

    time_s: float
    request: int


class RequestDone(msgspec.Struct, frozen=True, gc=False):
    """A request left its slot, which is free again.

    Fields:
        device_s: seconds that the request had the device. For a kTask these are its plan, its own loads, kernels
            and copies, for an eTask the whole call; and the start of the worker, if the worker was started for the
            request.
        run_s: the part of device_s without loads and without the start of the worker.
        load_s: the part of device_s in which its own loads brought loaded_bytes to the device.
    """

    time_s: float
    request: int
    worker: int
    slot: int
    outcome: Outcome
    device_s: float
    run_s: float = 0.0
    load_s: float = 0.0
    loaded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that the policy started can take requests.

    Fields:
        memory_bytes: the memory for its cache. sms: streaming multiprocessors that it can give to requests, in
            multiples of sm_step; 1: it cannot part them.
    """

    time_s: float
    worker: int
    kind: WorkerKind
    device: int
    slots: int
    memory_bytes: int
    sms: int = 1
    sm_step: int = 1


@dataclass(frozen=True, slots=True)
class WorkerAdopted:
    """There is a worker without a StartWorker: it outlived the epoch of the pool that had started it.

    Fields:
        worker: an id that this epoch of the pool has not used. client, function: the requests that the worker serves,
            as in StartWorker. sms, sm_step: as in WorkerReady.
    """

    time_s: float
    worker: int
    kind: WorkerKind
    device: int
    slots: int
    memory_bytes: int
    client: str = ""
    function: str = ""
    running: tuple[Running, ...] = ()
    sms: int = 1
    sm_step: int = 1


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker ended, or never became ready. Requests that ran there are over; those to be retried arrive again.

    device_s: pairs of a request and the device seconds that it is charged: only a request that ended the worker, or
    whose caller had left. Other requests are not charged for the time that they lost with the worker.
    """

    time_s: float
    worker: int
    reason: str
    device_s: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceAdded:
    """Workers may be started on a device again, which was removed."""

    time_s: float
    device: int


@dataclass(frozen=True, slots=True)
class DeviceRemoved:
    """A device goes: no request is dispatched and no worker started there; its workers end their requests and stop.

    A device without this event is there from the start, and for ever.
    """

    time_s: float
    device: int


class Residency(msgspec.Struct, frozen=True, gc=False):
    """Objects that were loaded to a worker's device, and those that left it.

    The event comes just before the RequestDone or Ordered of what moved the objects. Objects on their way are the
    policy's own state. Requests that run at a time end in any order, so an evicted object may be there again: for a
    request that was dispatched later and has ended before.

    Fields:
        evicted: all that left the device. host: those of them that page-locked memory still holds.
    """

    time_s: float
    worker: int
    loaded: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    host: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Ordered:
    """The answer to a Prefetch or an Evict, whatever came of it. WorkerGone answers all that are open on its worker.

    Fields:
        order: the number in the decision. loaded: objects that it has loaded, or moved away. refused: objects of the
            decision that are not where it wanted them. seconds: device seconds of its loads.
    """

    time_s: float
    worker: int
    order: int
    loaded: tuple[bytes, ...] = ()
    refused: tuple[bytes, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The share of a device's time that kernels had since the last such event, 0 to 1."""

    time_s: float
    device: int
    busy: float


class Tick(msgspec.Struct, frozen=True, gc=False):
    """Time passed: the first event of a pool, and the event that follows WakeAt."""

    time_s: float


Event = (
    ClientKnown
    | FunctionKnown
    | ShareKnown
    | PromiseKnown
    | ShareGone
    | ClientGone
    | RequestArrived
    | InputsReady
    | RequestCancelled
    | RequestDone
    | WorkerReady
    | WorkerAdopted
    | WorkerGone
    | DeviceAdded
    | DeviceRemoved
    | Residency
    | Ordered
    | Utilisation
    | Tick
)
