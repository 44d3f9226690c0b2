"""What a policy hears and what it decides: immutable values, all times and sizes inside.

Times are seconds on the pool's own monotonic clock. A request, a worker and a slot are small integers: requests count
up as they arrive, workers are numbered by the policy that starts them, slots by the worker from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class WorkerKind(Enum):
    """What a worker runs: kTasks, or Python functions with the device to themselves."""

    EXECUTOR = "executor"
    ETASK = "etask"


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


@dataclass(frozen=True, slots=True)
class ObjectUse:
    """An object that a request reads. key names it in caches; None is a plain value, which no cache keeps."""

    key: bytes | None
    nbytes: int


# --- events


@dataclass(frozen=True, slots=True)
class RequestArrived:
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


@dataclass(frozen=True, slots=True)
class InputsReady:
    """The inputs of a request that arrived without them exist now."""

    time_s: float
    request: int


@dataclass(frozen=True, slots=True)
class RequestCancelled:
    """Nobody waits for the request any more. If it runs, its slot stays taken until RequestDone."""

    time_s: float
    request: int


@dataclass(frozen=True, slots=True)
class RequestDone:
    """A request left its slot, which is free again. device_s: seconds that its kernels had the device."""

    time_s: float
    request: int
    worker: int
    slot: int
    outcome: Outcome
    device_s: float


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker that the policy started can be given requests."""

    time_s: float
    worker: int
    kind: WorkerKind
    device: int
    slots: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker ended, or never became ready. Requests that ran there are over; those to be retried arrive again."""

    time_s: float
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Residency:
    """Objects that a worker's device now holds, and that it holds no longer."""

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
    RequestArrived
    | InputsReady
    | RequestCancelled
    | RequestDone
    | WorkerReady
    | WorkerGone
    | Residency
    | Utilisation
    | Tick
)


# --- decisions


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker on a device, under an id never used before."""

    worker: int
    kind: WorkerKind
    device: int


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker; a busy one first finishes what it runs. WorkerGone follows."""

    worker: int


@dataclass(frozen=True, slots=True)
class Dispatch:
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
