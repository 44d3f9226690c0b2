"""The decisions that a policy makes on events, as immutable values, and the interface of a policy.

Times, numbers of requests, workers and slots are those of `events`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from kaas.scheduling.events import Event, PhysicalDevice, WorkerKind


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start a worker on a device, under an id never used before.

    An eTask worker serves one client and function, of which a request is queued. For an executor both are only a
    remark for people.
    """

    worker: int
    kind: WorkerKind
    device: int
    client: str = ""
    function: str = ""


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End a worker; a busy one first finishes its requests. WorkerGone follows."""

    worker: int


class Dispatch(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Run a request, whose inputs are ready, in a free slot.

    victims: objects that its worker's cache gives up first, in this order, as far as the request needs room; then
    follow those that the cache's own rule chooses. Objects in use or pinned stay. promised: the request has waited for
    this worker while others were free. share: the name of its share of the device, "" if it has none. sms: the
    streaming multiprocessors on which it runs; 0: all of them. Requests of one share may run on the same ones.
    """

    request: int
    worker: int
    slot: int
    victims: tuple[bytes, ...] = ()
    promised: bool = False
    share: str = ""
    sms: int = 0


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Load objects into a worker's cache ahead of their use: all of them, or none. Ordered follows.

    Fields:
        keys: inputs of queued or running requests, since these carry the references. Others are refused.
        order: a number by which Ordered answers. victims: as in Dispatch.
    """

    worker: int
    keys: tuple[bytes, ...]
    order: int = 0
    victims: tuple[bytes, ...] = ()


class EvictTo(Enum):
    """The place that an evicted object goes to."""

    HOST = "host"
    """Page-locked memory: an object that is not there stays on the device."""
    NOTHING = "nothing"
    """Out of the worker's memory: its next use fetches it anew."""


@dataclass(frozen=True, slots=True)
class Evict:
    """Take objects from a worker's device, but for those in use or pinned. Ordered follows.

    order: a number by which Ordered answers.
    """

    worker: int
    keys: tuple[bytes, ...]
    order: int = 0
    to: EvictTo = EvictTo.NOTHING


@dataclass(frozen=True, slots=True)
class Reject:
    """End a queued request with an error: it will not run.

    late_s: the seconds after which it would have ended, for its promise too many; None: there is another reason.
    """

    request: int
    reason: str
    late_s: float | None = None


class GrantedShare(NamedTuple):
    """A device and a part of it: of its SMs, and of its time."""

    device: int
    sms: float
    quota: float


@dataclass(frozen=True, slots=True)
class Granted:
    """Tell what requests with a promise of latency have from now on. Nothing has to be done.

    Fields:
        share: its name. instances: what is granted. missing_per_s: requests a second for which there is no room.
            trial_sms: the part of the SMs on which runs are measured now; None: they are measured. unmet_s: the least
            p99 that any share has, where this is more than was promised.
    """

    share: str
    instances: tuple[GrantedShare, ...] = ()
    missing_per_s: float = 0.0
    trial_sms: float | None = None
    unmet_s: float | None = None


class WakeAt(msgspec.Struct, frozen=True, gc=False):
    """Send a Tick at this time."""

    time_s: float


Decision = StartWorker | StopWorker | Dispatch | Prefetch | Evict | Reject | Granted | WakeAt


class Policy(Protocol):
    """Decides when each request runs, and where. A policy does no I/O and reads no clock."""

    def handle(self, event: Event) -> list[Decision]:
        """Take in an event, and return the decisions that follow.

        Raises:
            PolicyError: the event names an unknown id.
        """
        ...


PolicyFactory = Callable[[Sequence[PhysicalDevice]], Policy]
