"""What `kaas.status()` shows, and what an executor says of itself when it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kaas.config import Config
from kaas.wire.status.tables import Shown, as_html, as_text


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
class QuarantineStatus:
    """A function or client in quarantine. function: its label; of a client, words that say so. key: what names it
    exactly: the function's key, or `client:` and the client's name. reason: of its last fault. client: whose request
    that was."""

    function: str
    key: str
    faults: int
    reason: str
    client: str = ""


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
        return as_text(status_tables(self))

    def _repr_html_(self) -> str:
        return as_html(status_tables(self))


NODE_SHOWN = 8
"""Digits of a node's name on Ray, which tell nodes of a cluster apart."""


def status_tables(status: Status) -> list[Shown]:
    """The pool's devices, and below them what else is known."""
    columns = ("device", "kind", "state", "worker", "busy slots", "pins", "node", "pid", "name", "memory")
    rows = []
    for device in status.devices:
        info = device.info
        worker = "" if device.worker is None else str(device.worker)
        slots = f"{len(device.running)} of {info.slots}" if info else ""
        pins = ", ".join(f"{count} {state}" for state, count in Counter(pin.state for pin in device.pins).items())
        memory = f"{info.memory_bytes >> 20} MiB" if info else ""
        process = (info.node[:NODE_SHOWN], str(info.pid), info.device_name) if info else ("", "", "")
        rows.append((str(device.index), device.kind, device.state, worker, slots, pins, *process, memory))
    return [Shown(f"pool {status.pool}", columns, rows, (_counts(status),), tuple(_troubles(status)))]


def _counts(status: Status) -> str:
    return (
        f"policy {status.config.policy}, running {status.running}, queued {status.queued}, "
        f"waiting for inputs {status.waiting}, functions: {', '.join(status.functions) or 'none'}"
    )


def _troubles(status: Status) -> Iterator[str]:
    if status.abandoned:
        limit = status.config.run_limit_s
        until = "until their kernels end" + ("" if limit is None else f", at most for {limit} s (run_limit_s)")
        yield f"{status.abandoned} of those that run were cancelled or late; they have their slots {until}"
    for device in status.devices:
        if device.reason:
            yield f"device {device.index} is {device.state}: {_first_line(device.reason)}"
        for pin in device.pins:
            if pin.state == "lost":
                yield f"lost on device {device.index}: {pin.target}: {_first_line(pin.reason)}"
    for held in status.quarantined:
        whose = f" of {held.client}" if held.client else ""
        yield f"in quarantine after {held.faults} faults: {held.function}{whose}: {_first_line(held.reason)}"
        yield f"  it runs again after: kaas pardon {held.key}"
    if status.broken:
        yield f"broken: {status.broken}"


def _first_line(reason: str) -> str:
    return reason.partition("\n")[0]
