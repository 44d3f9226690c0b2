"""What a policy hears and what it decides: immutable values, all times and sizes inside.

Times are seconds on the pool's own monotonic clock. A request, a worker and a slot are small integers: requests count
up as they arrive, workers are numbered by the policy that starts them, slots by the worker from 0.

What is made for every request is a Struct, which takes a tenth of the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import msgspec


class WorkerKind(Enum):
    """What a worker runs: kTasks, or Python functions with the device to themselves."""

    EXECUTOR = "executor"
    ETASK = "etask"

    __hash__ = object.__hash__  # Enum's own is a Python function, and books look up by kind for every request


class Outcome(Enum):
    """How a request left its slot."""

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
    """How much faster than others it runs kernels."""
    etask_workers: int = 1
    """eTask workers that may live on it at a time; one of them runs."""


class ObjectUse(msgspec.Struct, frozen=True):
    """An object that a request reads. key names it in caches; None is a plain value, which no cache keeps."""

    key: bytes | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Running:
    """A request that a worker was running when it was adopted. ends_s: when it will have ended, if that is known."""

    request: int
    slot: int
    client: str
    function: str
    ends_s: float | None = None


# --- events


@dataclass(frozen=True, slots=True)
class ClientKnown:
    """What the configuration, or an earlier epoch of the pool, says of a client; it replaces what was said before.

    Others are known by their requests, with the defaults that stand here.

    Fields:
        weight: its part of the device time that clients compete for. priority: who has more goes first.
        max_running: how many of its requests may run at a time. max_share: of all devices' time, 0 to 1.
        charged_s: device seconds that it has had; None: as before. mean_s: of one
            request, as if one such had been measured.
        devices: those that its data is on. present: it competes from now on, as if a request of it had been there.
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
class ClientGone:
    """A client's program ended: it has nothing queued any more, and what it runs ends without a waiting caller."""

    time_s: float
    client: str


class RequestArrived(msgspec.Struct, frozen=True):
    """A request to place; one whose worker died arrives again under its old id, with attempt counted up from 1."""

    time_s: float
    request: int
    client: str
    function: str
    inputs: tuple[ObjectUse, ...] = ()
    ready: bool = True
    deadline_s: float | None = None
    """When it must have ended, on the same clock as time_s."""
    attempt: int = 1
    kind: WorkerKind = WorkerKind.EXECUTOR
    """What it needs. An eTask worker serves one client and function only."""
    alone: bool = False
    """It may have ended a device: nothing may run beside it on a worker."""


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


class RequestDone(msgspec.Struct, frozen=True):
    """A request left its slot, which is free again.

    Fields:
        device_s: seconds that the request had the device. Of a kTask these are its plan, its own loads, kernels and
        copies, of
            an eTask the whole call; and the start of the worker, if the worker was started for the request.
    """

    time_s: float
    request: int
    worker: int
    slot: int
    outcome: Outcome
    device_s: float


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that the policy started can be given requests. memory_bytes: that its cache may take."""

    time_s: float
    worker: int
    kind: WorkerKind
    device: int
    slots: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerAdopted:
    """A worker that no StartWorker began is there: the worker outlived the pool that had started it.

    Fields:
        worker: an id that this epoch of the pool has not used. client, function: the requests that the worker serves,
        as
            StartWorker names them.
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


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker ended, or never became ready. Requests that ran there are over; those to be retried arrive again.

    device_s: device seconds that requests there are charged, behind their ids: of a request that ended the worker, or
    whose caller had left. Others are not charged for the time that they lost with the worker.
    """

    time_s: float
    worker: int
    reason: str
    device_s: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Residency:
    """Objects that a worker's device now holds, and that it holds no longer.

    The event comes before the RequestDone of the request that moved the objects.
    """

    time_s: float
    worker: int
    loaded: tuple[bytes, ...]
    evicted: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The share of a device's time that kernels had since the last such event, 0 to 1."""

    time_s: float
    device: int
    busy: float


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed: the first event of a pool, and the answer to WakeAt."""

    time_s: float


Event = (
    ClientKnown
    | ClientGone
    | RequestArrived
    | InputsReady
    | RequestCancelled
    | RequestDone
    | WorkerReady
    | WorkerAdopted
    | WorkerGone
    | Residency
    | Utilisation
    | Tick
)


# --- decisions


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker on a device, under an id never used before.

    An eTask worker serves one client and function, of which a request is queued. An executor may name them too, for
    people.
    """

    worker: int
    kind: WorkerKind
    device: int
    client: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker; a busy one first finishes what it runs. WorkerGone follows."""

    worker: int


class Dispatch(msgspec.Struct, frozen=True):
    """Run a request, whose inputs are ready, in a free slot."""

    request: int
    worker: int
    slot: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Load objects into a worker's cache ahead of their use: all of them, or none. Residency tells when they are there.

    keys: of inputs of requests that are queued or running, since these carry the references; one that none of them
    reads, or none whose inputs are ready, is skipped.
    """

    worker: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """Drop objects from a worker's cache, but for what is in use or pinned. Residency tells which have gone."""

    worker: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer a queued request with an error: it will not be run."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Send a Tick at this time."""

    time_s: float


Decision = StartWorker | StopWorker | Dispatch | Prefetch | Evict | Reject | WakeAt


class Policy(Protocol):
    """What decides which request runs where and when. It does no I/O and reads no clock."""

    def handle(self, event: Event) -> list[Decision]:
        """What to do about an event.

        Raises:
            PolicyError: an id that it does not know.
        """
        ...


PolicyFactory = Callable[[Sequence[PhysicalDevice]], Policy]
