"""The configuration of a pool: its devices, its policy and its limits, as values that can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from kaas.errors import ConfigMismatch, InvalidConfig
from kaas.share import ProfilePoint, Scale, Share, as_points
from kaas.store import Store

if TYPE_CHECKING:
    from softgpu import Fault, Model

SOFTWARE_GPUS = 2
"""Software GPUs of a pool that was given no devices and finds no GPU."""
SOFTWARE_GPU_BYTES = 1 << 30
"""Memory of a software GPU whose size was not given."""
DEVICE_KINDS = ("software", "gpu")
POLICY_FORMS = "a policy is a name, or a callable, with options functools.partial(Class, option=value)"
POLICY_NAMES = (
    "fcfs", "cfs_affinity", "exclusive", "static", "lb", "lalb", "lalbo3", "mqfq_sticky", "batch", "sjf", "edf",
    "adaptive",
)  # fmt: skip
"""The names of `kaas.scheduling.policies.POLICIES`, which is in a layer above this file."""
ISOLATION = ("none", "fence", "process", "auto")
"""The levels of isolation between the kernels of different clients on one device."""
QUEUE_LIMIT = 50_000
"""Requests that a pool queues by default."""
SMALLEST, LARGEST = 1e-12, 1e12
"""Limits of clients' weights, of speeds, and of seconds, which may be 0: what is made of them stays finite."""
MOST = 1 << 60
"""The limit of whole numbers, such as bytes."""
SEEDS = 1 << 64
"""Seeds lie below this."""
SHOWN_LENGTH = 80
"""Letters of a value that an error shows."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a pool.

    Args:
        kind: "gpu", an NVIDIA GPU that Ray hands out, or "software", KaaS's own on the CPU.
        memory_bytes: how much of its memory KaaS may use; None: all of a GPU, `SOFTWARE_GPU_BYTES` of a software one.
        model: time that copies and kernels take on a software device (`softgpu.Model`).
        faults: faults of a software device (`softgpu.Fault`), counted from each start of its executor.
        strict: seed of strict mode on a software device (`softgpu.set_strict`).
        memcheck: if True a software device checks every access of kernels to memory, at many times the cost.
        speed: speed of kernels relative to the pool's other devices, for policies that compare them.
        sms: multiprocessors of a software device, over which kernels are modelled; None: those of the model.
        blocks_per_sm: blocks of a kernel that run on one of them at a time; None: as in the model.

    For model, strict and memcheck None means the setting in the executor's environment (softgpu/docs/softgpu.md).
    """

    kind: str = "software"
    memory_bytes: int | None = None
    model: Model | None = None
    faults: tuple[Fault, ...] = ()
    strict: int | None = None
    memcheck: bool | None = None
    speed: float = 1.0
    sms: int | None = None
    blocks_per_sm: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in DEVICE_KINDS:
            raise InvalidConfig(f"a device is one of {', '.join(DEVICE_KINDS)}, not {self.kind!r}", field="kind")
        for name in ("memory_bytes", "sms", "blocks_per_sm"):
            _require_whole(name, getattr(self, name), optional=True)
        _require_between("speed", self.speed, SMALLEST, LARGEST)
        if not isinstance(self.faults, Iterable):
            raise InvalidConfig(f"faults is a sequence, not {self.faults!r}", field="faults")
        object.__setattr__(self, "faults", tuple(self.faults))
        if self.strict is not None and (type(self.strict) is not int or not 0 <= self.strict < SEEDS):
            raise InvalidConfig(f"strict is a seed, a number from 0 on, not {self.strict!r}", field="strict")
        if not isinstance(self.memcheck, bool | None):
            raise InvalidConfig(f"memcheck is True, False or None, not {self.memcheck!r}", field="memcheck")
        for name in ("model", "faults", "strict", "memcheck", "sms", "blocks_per_sm") if self.kind == "gpu" else ():
            if getattr(self, name) not in (None, ()):
                raise InvalidConfig(f"only a software device has {name}, no GPU", field=name)

    def sized(self) -> Device:
        """Return this device; a software one without a size gets `SOFTWARE_GPU_BYTES`."""
        if self.kind == "software" and self.memory_bytes is None:
            return replace(self, memory_bytes=SOFTWARE_GPU_BYTES)
        return self


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The rights of one client in a pool.

    Args:
        weight: its part of the device time that clients compete for: a client with 2 gets twice as much as one with 1.
        priority: clients of a higher priority always go first; those of an equal one compete.
        max_running: requests of it that may run at a time; None: as many as there are slots.
        max_share: its part, above 0 to 1, of the time of all devices together; None: all.
        max_queued: requests of it that may be queued at a time; further ones are refused with `QueueFull`.
        share: its part of each device; a function's own share comes first. None: what shares leave.
    """

    weight: float = 1.0
    priority: int = 0
    max_running: int | None = None
    max_share: float | None = None
    max_queued: int | None = None
    share: Share | None = None

    def __post_init__(self) -> None:
        _require_between("weight", self.weight, SMALLEST, LARGEST)
        _require_whole("priority", self.priority, -MOST)
        _require_whole("max_running", self.max_running, optional=True)
        if self.max_share is not None:
            _require_between("max_share", self.max_share, SMALLEST, 1)
        _require_whole("max_queued", self.max_queued, optional=True)
        if not isinstance(self.share, Share | None):
            raise InvalidConfig(f"share is a kaas.Share, not {self.share!r}", field="share")


@dataclass(frozen=True, slots=True)
class FunctionProfile:
    """The measured times and memory of a function on one kind of device, for policies that have not run it yet.

    Seconds and batch sizes are at most 1e12, whole numbers 2**60.

    Args:
        function: the label of its kTask or eTask, a server's client's name for it, or its key.
        kind: of the device: "gpu" or "software".
        run_s: device seconds of a request without loads, on a device of speed 1.
        load_s: device seconds to load the function's memory.
        nbytes: of that memory.
        observations: requests that the profile counts as: the more, the slower a policy changes its estimate.
        family: functions of one family differ in the batch size only; "" for none.
        batch: that size.
        points: what it does with shares of such a device: `kaas profile` measures them.
    """

    function: str
    kind: str
    run_s: float
    load_s: float = 0.0
    nbytes: int = 0
    observations: int = 1
    family: str = ""
    batch: float = 0.0
    points: tuple[ProfilePoint, ...] = ()

    def __post_init__(self) -> None:
        for name in ("function", "family"):
            if not isinstance(getattr(self, name), str):
                raise InvalidConfig(f"{name} is a name, not {getattr(self, name)!r}", field=name)
        if not self.function:
            raise InvalidConfig("function is a name, not empty", field="function")
        if self.kind not in DEVICE_KINDS:
            raise InvalidConfig(f"kind is one of {', '.join(DEVICE_KINDS)}, not {self.kind!r}", field="kind")
        for name in ("run_s", "load_s", "batch"):
            _require_between(name, getattr(self, name), 0, LARGEST)
        _require_whole("nbytes", self.nbytes, 0)
        if self.load_s and not self.nbytes:
            raise InvalidConfig("load_s is the time to load nbytes, which are none", field="nbytes")
        _require_whole("observations", self.observations)
        object.__setattr__(self, "points", as_points(self.points))


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of a pool, the same for every program that attaches to it.

    Args:
        devices: a sequence of them, or a `Scale`: a number that follows the load. None means the GPUs that Ray's
            cluster has, or else two software GPUs.
        policy: a name of `kaas.scheduling.policies.POLICIES`, or a callable that makes a policy from the devices: a
            class, or one with options by `functools.partial`. A server's `pool` has adaptive with T=0.005 by default.
        run_limit_s: longest time in seconds that one attempt of a request may run; beyond it the request fails and its
            executor is replaced.
        start_limit_s: longest time in seconds that an executor may take to start.
        compile_limit_s: processor seconds that compiling the PTX of a kTask for software devices may take, with
            isolation: a process of its own does it before a request has a device.
        slots: requests that may run at a time on each device; with more than one, the copies of one overlap the kernels
            of another, and kernels that leave room on the device run in parallel.
        cache_bytes: device memory that cached objects may take on each device; None leaves it to the executor.
        host_cache_bytes: page-locked host memory for cached objects, so that objects evicted from a device come back
            fast; 0 for none, None leaves it to the executor (as much as on the device, up to 4 GiB).
        whole_object_bytes: objects up to this size are cached whole, larger ones by the ranges that Views read.
        isolation: "none": kernels of all clients share each device's memory. "fence": kernels of a client reach no
            memory but the client's own; a GPU then runs PTX alone. "process": each client has executors of its own; on
            GPUs without Ray only. "auto": fences if all devices are software, else processes, or none on Ray. A
            server's `pool` has auto by default.
        client_executors: with isolation="process", clients whose executors may be on a device at a time, each with an
            equal part of the device's memory and of the caches; at least `slots`. Without Ray a software device has one
            part more, for constants that they share. None: 4, or `slots` if that is more.
        clients: settings of clients, by name; others have the defaults of `ClientSettings`.
        window_s: the time of which shares have a least and a most part, in seconds.
        queue_limit: requests that may be queued at a time; further ones are refused with `QueueFull`.
        etask_workers: processes of eTasks that may be on a device at a time; only one of them runs.
        faults_allowed: devices that a function may end while it runs alone; with one more it is quarantined.
        client_faults_allowed: devices that requests of one client may end within an hour; with one more its requests
            wait until fewer count. None for any number; a server's `pool` has 8.
        record: file, on the machine of the pool, to which it writes its policy's events and decisions.
        profiles: JSON file, a list of objects with the fields of `FunctionProfile` or one on each line, as of
            `kaas profile`, or these values themselves: the policy hears of a function's times and memory before its
            first request. `kaas.stats().profiles` has those that the pool has measured.
        store: SQLite file, or a `kaas.store.Store`, with the functions and accounts that outlive the pool's process. In
            a given store the functions outlive the pool too. While it cannot be written, as on a full disk, the pool
            goes on, and writes the newest changes later. None: a file in Ray's folder of this session, on the
            machine of the pool.
    """

    devices: tuple[Device, ...] | Scale | None = None
    policy: str | Callable[..., Any] = "adaptive"
    run_limit_s: float = 60.0
    start_limit_s: float = 120.0
    compile_limit_s: float = 120.0
    slots: int = 1
    cache_bytes: int | None = None
    host_cache_bytes: int | None = None
    whole_object_bytes: int = 64 << 20
    isolation: str = "none"
    client_executors: int | None = None
    clients: Mapping[str, ClientSettings] = field(default_factory=dict)
    window_s: float = 0.1
    queue_limit: int = QUEUE_LIMIT
    etask_workers: int = 1
    faults_allowed: int = 1
    client_faults_allowed: int | None = None
    record: str | None = None
    profiles: str | Sequence[FunctionProfile] | None = None
    store: str | Store | None = None

    def __post_init__(self) -> None:
        if self.devices is not None:
            object.__setattr__(self, "devices", _devices(self.devices))
        if not callable(self.policy) and not isinstance(self.policy, str):
            raise InvalidConfig(f"{POLICY_FORMS}, not {self.policy!r}", field="policy")
        # a text that is no plain name is a policy's code as a running pool describes it
        if isinstance(self.policy, str) and self.policy.isidentifier() and self.policy not in POLICY_NAMES:
            there = f"there are {', '.join(POLICY_NAMES)}, of which adaptive, cfs_affinity and mqfq_sticky are fair"
            own = "a file names your own as module:Class"
            raise InvalidConfig(f"no policy {self.policy!r}; {there}; {own}", field="policy")
        for name in ("run_limit_s", "start_limit_s", "compile_limit_s"):
            _require_positive(name, getattr(self, name))
        _require_whole("slots", self.slots)
        _require_whole("cache_bytes", self.cache_bytes, optional=True)
        _require_whole("whole_object_bytes", self.whole_object_bytes)
        if self.isolation not in ISOLATION:
            raise InvalidConfig(f"isolation is {' or '.join(ISOLATION)}, not {self.isolation!r}", field="isolation")
        _require_whole("client_executors", self.client_executors, optional=True)
        if self.client_executors is not None and self.client_executors < self.slots:
            message = f"client_executors is at least slots, which is {self.slots}, not {self.client_executors}"
            raise InvalidConfig(message, field="client_executors")
        _require_between("window_s", self.window_s, 0.001, 60)
        _require_whole("queue_limit", self.queue_limit)
        _require_whole("etask_workers", self.etask_workers)
        _require_whole("faults_allowed", self.faults_allowed, 0)
        _require_whole("client_faults_allowed", self.client_faults_allowed, 0, optional=True)
        if not isinstance(self.record, str | None):
            raise InvalidConfig(f"record is a file's name, not {self.record!r}", field="record")
        if not isinstance(self.profiles, str | None):
            object.__setattr__(self, "profiles", _profiles(self.profiles))
        if not isinstance(self.store, str | Store | None):
            raise InvalidConfig(f"store is a file's name or a kaas.store.Store, not {self.store!r}", field="store")
        if not isinstance(self.clients, Mapping) or not all(
            isinstance(name, str) and name and isinstance(settings, ClientSettings)
            for name, settings in self.clients.items()
        ):
            raise InvalidConfig(f"clients is a ClientSettings for each name, not {self.clients!r}", field="clients")
        _require_whole("host_cache_bytes", self.host_cache_bytes, 0, optional=True)

    def resolved(self, gpus: int, *, ray: bool = False) -> Config:
        """Return this configuration with its devices and its isolation named, for this number of GPUs.

        Raises:
            InvalidConfig: these devices cannot isolate clients as it says.
        """
        found = (Device("gpu"),) * gpus or (Device("software"),) * SOFTWARE_GPUS
        devices = tuple(device.sized() for device in self.devices or found)
        gpu = any(device.kind == "gpu" for device in devices)
        if gpu and ray and self.isolation == "process":
            message = "isolation='process' on GPUs needs a pool without Ray, which gives a GPU to one process"
            raise InvalidConfig(message, field="isolation")
        auto = "fence" if not gpu else "none" if ray else "process"
        isolation = auto if self.isolation == "auto" else self.isolation
        scaled = replace(self.devices, device=devices[0]) if isinstance(self.devices, Scale) else devices
        return replace(self, devices=scaled, isolation=isolation)

    def refuse_other(self, pool: str, running: Config | Mapping[str, str], *, ray: bool = True) -> None:
        """Refuse to attach with this configuration to a pool that runs with another one.

        Args:
            pool: the name of the pool.
            running: the configuration of the pool, or its `described()`.
            ray: False for a pool without Ray.

        Raises:
            ConfigMismatch: they differ.
        """
        if isinstance(running, Config):
            there: Mapping[str, str] = running.described()
            differences = self.differences(running)
        else:
            differences, there = self.differences_from(running), running
        if not differences:
            return
        here = self.described()
        join = ", ".join([*([] if ray else ["ray=False"]), *([] if pool == "kaas" else [f"name={pool!r}"])])
        shown = "; ".join(
            f"{name} is {_short(there[name])} there and {_short(here[name])} here" for name in differences
        )
        raise ConfigMismatch(
            f"pool {pool!r} runs already, with another configuration: {shown}. To join it as it is, call "
            f"kaas.init({join}) without {' and '.join(differences)}; to have a second pool, with another name=...; to "
            "replace it, end it first: kaas.shutdown() where it was started",
            pool=pool,
            differences=differences,
        )

    def differences(self, running: Config) -> tuple[str, ...]:
        """Return the names of fields that differ from those of a running pool; devices that are None do not count."""
        return self._differences(
            _identity, {each.name: _identity(getattr(running, each.name)) for each in fields(self)}
        )

    def described(self) -> dict[str, str]:
        """Return the fields as text, with code by its name only."""
        return {each.name: described(getattr(self, each.name)) for each in fields(self)}

    def differences_from(self, running: Mapping[str, str]) -> tuple[str, ...]:
        """Return the `differences` from a configuration that is known by its `described()`."""
        return self._differences(described, running)

    def _differences(self, identity: Callable[[Any], Any], running: Mapping[str, Any]) -> tuple[str, ...]:
        wanted = [self] if self.devices is None else [self.resolved(0), self.resolved(1)]  # without GPUs, and with
        left = {"devices": self.devices is None, "isolation": self.isolation == "auto"}  # to the pool
        return tuple(
            name
            for name in running
            if all(identity(getattr(each, name)) != running[name] for each in wanted) and not left.get(name)
        )


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def described(value: Any) -> str:
    """Return the text by which a value of a configuration is compared; code is named in it."""
    if isinstance(value, partial):
        entries = [described(value.func), *map(repr, value.args), *(f"{k}={v!r}" for k, v in value.keywords.items())]
        return f"partial({', '.join(entries)})"
    return f"{value.__module__}.{value.__qualname__}" if isinstance(value, FunctionType | type) else repr(value)


def _identity(value: Any) -> Any:
    """Return the value to compare with: a function by its name, since a pickled copy is another object."""
    if isinstance(value, partial):
        return _identity(value.func), value.args, value.keywords
    return (value.__module__, value.__qualname__) if isinstance(value, FunctionType | type) else value


def _devices(devices: Sequence[Device]) -> tuple[Device, ...] | Scale:
    given = tuple(devices) if isinstance(devices, Iterable) else ()
    undecided = isinstance(devices, Scale) and devices.device is None
    if not (given or undecided) or not all(isinstance(device, Device) for device in given):
        raise InvalidConfig(f"devices is a kaas.Scale, or one or more kaas.Device, not {devices!r}", field="devices")
    return devices if isinstance(devices, Scale) else given


def _profiles(profiles: Sequence[FunctionProfile]) -> tuple[FunctionProfile, ...]:
    given = tuple(profiles) if isinstance(profiles, Iterable) else ()
    if not given or not all(isinstance(each, FunctionProfile) for each in given):
        message = f"profiles is a file's name, or one or more FunctionProfiles, not {profiles!r}"
        raise InvalidConfig(message, field="profiles")
    for (function, kind), count in Counter((each.function, each.kind) for each in given).items():
        if count > 1:
            message = f"profiles has function {function!r} {count} times for devices of kind {kind!r}"
            raise InvalidConfig(message, field="profiles")
    return given


def _require_positive(name: str, value: Any) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidConfig(f"{name} is a positive number, not {value!r}", field=name)


def _require_whole(name: str, value: Any, least: int = 1, *, optional: bool = False) -> None:
    if value is not None or not optional:
        _require_between(name, value, least, MOST, int)


def _require_between(name: str, value: Any, least: float, most: float, kind: Any = int | float) -> None:
    if not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most:
        number = "a whole number" if kind is int else "a number"
        raise InvalidConfig(f"{name} is {number} from {least:g} to {most:g}, not {_short(repr(value))}", field=name)
