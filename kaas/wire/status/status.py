"""The status that `kaas.status()` returns, and the facts that an executor reports when it starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kaas.config import Config
from kaas.wire.status.tables import Shown, as_html, as_text


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker's process and its device. The device of an eTask's worker has no name here.

    sandboxed: Linux keeps the process from files, programs and the network (docs/serve.md). lacks: what it cannot keep
    it from here: "connections", "signals", "system calls", "namespaces". code: the name of what
    its compiler makes on its processor (`softgpu.ahead.namespace`), "" on a GPU. sms: streaming multiprocessors that it
    gives to requests in multiples of sm_step; 1: it cannot part them. cached: keys of the objects that the executor
    before has left on the device; empty once the policy knows them.
    """

    pid: int
    node: str
    device_name: str
    memory_bytes: int
    compute_capability: tuple[int, int]
    slots: int = 1
    sandboxed: bool = False
    lacks: tuple[str, ...] = ()
    code: str = ""
    sms: int = 1
    sm_step: int = 1
    cached: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class PinStatus:
    """A function's constants or an object that `kaas.pin` keeps on a device.

    Fields:
        target: the function's label, or the ObjectRef in hex.
        state: "held"; "loading" while a new executor has not loaded it yet; "lost" if the new executor could not load
            it. A lost pin is not tried again before the next `kaas.pin`.
        reason: why the pin is lost.
    """

    target: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExecutorStatus:
    """An executor of one client.

    Fields:
        client: "" of one that has started ahead. state: as of `DeviceStatus`. sandboxed, lacks: as of `WorkerInfo`.
    """

    worker: int
    state: str
    pid: int
    client: str
    sandboxed: bool = False
    lacks: tuple[str, ...] = ()

    @property
    def sandbox(self) -> str:
        """The sandbox in words: "yes", "no", or "yes, without ..." what Linux lacks here."""
        without = f", without {', '.join(self.lacks)}" if self.lacks else ""
        return f"yes{without}" if self.sandboxed else "no"


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device and the worker on it: of several workers the running one, or else the newest.

    Fields:
        state: "starting", "idle", "busy" or "stopping"; without a worker "lost" if the last one ended by itself, else
            "unused": the policy has started no worker, or has stopped it. Of a `kaas.Scale` also "draining": the device
            goes once its requests have ended; and "absent": it comes when the load needs it.
        worker_kind: "executor" or "etask"; "" without a worker. client, serves: the client and the eTask
            that the worker serves. others: further workers on this device. reason: why the last worker ended or could
            not start, of a device that is "lost" or on which another worker is "starting". executors: with
            isolation="process", all on the device.
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
    executors: tuple[ExecutorStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class QuarantineStatus:
    """A function or client in quarantine.

    function: its label; of a client a text that says so. key: names it exactly: the function's key, or `client:` and
    the client's name. reason: of its last fault. client: the client of the request that caused this fault.
    """

    function: str
    key: str
    faults: int
    reason: str
    client: str = ""


@dataclass(frozen=True, slots=True)
class PromiseStatus:
    """A promise of latency, and what the pool has made of it.

    Fields:
        slo_s: seconds from a request's arrival to its end. instances: devices, and the parts of their SMs and time that
            are granted. missing_per_s: requests a second for which there is no room. trial_sms: the part of the SMs on
            which the function is measured now; None: it is measured. best_s: the least p99 of its profile, if that is
            more than is promised.
        kept, late: answered requests that took no longer, and longer. best_effort: of all answered, those that ran on
            what shares left, since they would have been late. refused: requests that did not run.
    """

    slo_s: float
    instances: tuple[tuple[int, float, float], ...] = ()
    missing_per_s: float = 0.0
    trial_sms: float | None = None
    best_s: float | None = None
    kept: int = 0
    late: int = 0
    best_effort: int = 0
    refused: int = 0

    def __str__(self) -> str:
        """Return the promise in a line of `kaas status`."""
        if self.trial_sms is not None:
            state = f"is measured on {self.trial_sms:g} of the SMs"
        elif self.best_s is not None:
            state = f"cannot be kept: the least is {self.best_s:.3g} s"
        else:
            granted = [f"{sms:.3g} x {quota:g} of device {device}" for device, sms, quota in self.instances]
            state = " + ".join(granted) or "no instance"
        if self.missing_per_s:
            state += f", no room for {self.missing_per_s:.3g} requests/s"
        return f"{state}; {self.kept} kept, {self.late} late, {self.refused} refused"


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A share of a function or a client, as it was given, and what it has and has had of the devices.

    of: "function 'f'" or "client 'alice'". sms, quota, memory_bytes: as of `kaas.Share`. granted: pairs of the index of
    a device that is up and the number of SMs, rounded up to the partitions that the device can make. device_s: device
    seconds of its requests since it was first given. sm_s: the same, each request's times the part of the SMs that it
    had. missed: windows in which it always had requests, and whose least it does not get any more (`TokenScheduler`).
    promise: the pool chooses the share by it.
    """

    of: str
    sms: float
    quota: tuple[float, float]
    granted: tuple[tuple[int, int], ...] = ()
    device_s: float = 0.0
    sm_s: float = 0.0
    missed: int = 0
    promise: PromiseStatus | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """A pool at one moment.

    queued counts the requests that wait for a slot, waiting those that wait for inputs or for the compilation of their
    code, and abandoned the running requests whose callers no longer wait: each has its slot until its kernels end.
    functions: labels, at a server with their clients.
    """

    pool: str
    config: Config
    devices: tuple[DeviceStatus, ...]
    queued: int
    waiting: int
    running: int
    functions: tuple[str, ...]
    broken: str | None = None
    """The error of the policy; the pool then replies to every request with PolicyError."""
    pid: int = 0
    """The id of the pool's process, which changes when the pool starts again."""
    quarantined: tuple[QuarantineStatus, ...] = ()
    """Functions and clients that may not run, since they ended devices."""
    abandoned: int = 0
    policy: str = ""
    """The policy as a configuration names it, with its options. `config` has it as it was given."""
    shares: tuple[ShareStatus, ...] = ()

    def __str__(self) -> str:
        """Return the tables of `kaas status`."""
        return as_text(status_tables(self))

    def _repr_html_(self) -> str:
        return as_html(status_tables(self))


SHARE_COLUMNS = ("of", "sms", "quota", "SMs", "device s", "SM s", "windows missed", "memory")
NODE_SHOWN = 8
"""Digits of a node's name on Ray that distinguish the nodes of a cluster."""


def status_tables(status: Status) -> list[Shown]:
    """Return the pool's devices, with counts and troubles below them, the executors of each client, and shares."""
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
    devices = Shown(f"pool {status.pool}", columns, rows, (_counts(status),), tuple(_troubles(status)))
    executors = [
        (
            str(device.index),
            str(each.worker),
            each.client,
            each.state,
            *((str(each.pid), each.sandbox) if each.pid else ("", "")),
        )
        for device in status.devices
        for each in device.executors
    ]
    shares = [
        (
            each.of,
            f"{each.sms:g}",
            f"{each.quota[0]:g} to {each.quota[1]:g}",
            ", ".join(f"{sms} on device {device}" for device, sms in each.granted),
            f"{each.device_s:.3f}",
            f"{each.sm_s:.3f}",
            str(each.missed),
            "" if each.memory_bytes is None else f"{each.memory_bytes >> 20} MiB",
        )
        for each in status.shares
        if each.promise is None
    ]
    promises = [(each.of, f"{each.promise.slo_s:g} s", str(each.promise)) for each in status.shares if each.promise]
    tables = [devices]
    if executors:
        tables.append(Shown("executors", ("device", "worker", "client", "state", "pid", "sandbox"), executors))
    if shares:
        tables.append(Shown("shares", SHARE_COLUMNS, shares))
    if promises:
        tables.append(Shown("promises", ("of", "within", "state"), promises))
    return tables


def _counts(status: Status) -> str:
    return (
        f"policy {status.policy}, isolation {status.config.isolation}, "
        f"running {status.running}, queued {status.queued}, "
        f"waiting for inputs or code {status.waiting}, functions: {', '.join(status.functions) or 'none'}"
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
