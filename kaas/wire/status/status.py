"""What `kaas.status()` shows, and what an executor says of itself when it starts."""

from __future__ import annotations

from dataclasses import dataclass

from kaas.config import Config
from kaas.pool.core.quarantine import QuarantineStatus


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's process and the device it opened, or, of an eTask, may open: that has no name here."""

    pid: int
    node: str
    device_name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    slots: int = 1


@dataclass(frozen=True, slots=True)
class PinStatus:
    """What `kaas.pin` keeps on a device.

    Fields:
        target: the function's label, or the ObjectRef in hex.
        state: "held"; "loading" while an executor that replaces another has not got it yet; "lost" if that could not
            load it. A lost one is not tried again before the next `kaas.pin`.
        reason: why it is lost.
    """

    target: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device and the worker on it, of several the one that runs, or else the one that came last.

    Fields:
        state: "starting", "idle", "busy" or "stopping"; without a worker "lost" if the last one ended by itself, else
            "unused": the policy has started none, or has stopped it.
        worker_kind: "executor" or "etask"; "" without a worker. client, serves: whom it serves, and with which eTask.
        others: further workers that live here, of eTasks. reason: why the last worker ended or could not start, of a
            device that is "lost" or on which another one is "starting".
    """

    index: int
    kind: str
    state: str
    worker: int | None = None
    info: WorkerInfo | None = None
    running: tuple[int, ...] = ()
    pins: tuple[PinStatus, ...] = ()
    worker_kind: str = ""
    client: str = ""
    serves: str = ""
    others: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """A pool at one moment. queued counts the requests that wait for a slot, waiting those that wait for inputs, and
    abandoned those of the running ones whose callers wait no longer: each has its slot until its kernels end."""

    pool: str
    config: Config
    devices: tuple[DeviceStatus, ...]
    queued: int
    waiting: int
    running: int
    functions: tuple[str, ...]
    broken: str | None = None
    """What the policy did wrong; such a pool answers every request with PolicyError."""
    pid: int = 0
    """Of the pool's process; another one when it had to start again."""
    quarantined: tuple[QuarantineStatus, ...] = ()
    """Functions that are run no more, since they ended devices."""
    abandoned: int = 0

    def __str__(self) -> str:
        """As `kaas status` shows it."""
        from kaas.wire.status.tables import as_text, status_tables  # which only people need

        return as_text(status_tables(self))

    def _repr_html_(self) -> str:
        from kaas.wire.status.tables import as_html, status_tables

        return as_html(status_tables(self))
