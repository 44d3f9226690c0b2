"""Runs kTasks on one device: fetch, reserve, copy, launch, store. Every request goes its way in `Executor._run`."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any

import numpy as np

from kaas.errors import DeviceLost, OutOfDeviceMemory, WrongScalar
from kaas.executor.cache import ObjectCache, Shortage
from kaas.executor.device import Device, Stream
from kaas.executor.inputs import CachedObject, HostObject, Inputs, Source, check_scalars, gather, gather_whole
from kaas.executor.kernels import Kernels
from kaas.executor.memory import Lease, Memory
from kaas.executor.plan import Plan, make_plan, too_large
from kaas.executor.ranges import WHOLE_OBJECT_BYTES
from kaas.executor.replay import Replay, Values
from kaas.executor.slot import Slot
from kaas.executor.tiers import TierUse, granules
from kaas.graph import KTask
from kaas.request import check_names, iterations_of

__all__ = ["Executor", "Request", "Result", "RunStats", "Source"]

MAX_PLANS = 256
"""Plans kept; beyond it the one not used for the longest time is given up, with its graph."""
HOST_CACHE_BYTES = 4 << 30
"""Page-locked host memory that an executor takes at most for its cache, unless it is told."""


@dataclass(frozen=True, slots=True)
class Request:
    """One invocation. scalars: as `kaas.request.encode_scalars` makes them; client: whose memory it leaves behind."""

    task: KTask
    inputs: Mapping[str, Source]
    scalars: Mapping[str, bytes]
    client: str = ""


@dataclass(frozen=True, slots=True)
class RunStats:
    """What one request did.

    Fields:
        stages: seconds by stage: plan, fetch, copy_in, kernels (of the device), copy_out, total.
        tiers: of "device", "host" and "store", those where something happened.
        loaded, evicted: keys of objects of which something came to the device, and of which nothing is left there.
        device_s: seconds that the kernels took.
    """

    stages: dict[str, float]
    tiers: dict[str, TierUse]
    loaded: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    device_s: float

    @property
    def hits(self) -> int:
        """Objects that were on the device."""
        return self.tiers["device"].objects if "device" in self.tiers else 0

    @property
    def misses(self) -> int:
        """Objects that were not."""
        return self.tiers["device"].misses if "device" in self.tiers else 0

    @property
    def hit_bytes(self) -> int:
        return self.tiers["device"].nbytes if "device" in self.tiers else 0

    @property
    def miss_bytes(self) -> int:
        return sum(use.nbytes for tier, use in self.tiers.items() if tier != "device")


@dataclass(frozen=True, slots=True)
class Result:
    """outputs: fresh arrays, in the order in which the kTask lists them."""

    outputs: dict[str, np.ndarray[Any, Any]]
    stats: RunStats


class _Turn:
    """One caller at a time, in the device's context, for as long as the device works."""

    __slots__ = ("_device", "_lock", "lost")

    def __init__(self, device: Device) -> None:
        self.lost: DeviceLost | None = None
        self._device = device
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            if self.lost is not None:
                raise DeviceLost(self.lost.message, **self.lost.fields)
            self._device.enter()
        except BaseException:
            self._lock.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, DeviceLost):
                self.lost = error
            else:
                self._device.leave()
        finally:
            self._lock.release()


class Executor:
    """Owns a device: its memory, its one slot and its plans. One request runs at a time; others wait their turn."""

    def __init__(
        self,
        device: Device,
        *,
        cache_bytes: int | None = None,
        host_cache_bytes: int | None = None,
        whole_object_bytes: int = WHOLE_OBJECT_BYTES,
    ) -> None:
        """
        Args:
            cache_bytes: device memory for objects and arena together; None: all that the device can spare.
            host_cache_bytes: page-locked host memory for objects; None: as much, up to HOST_CACHE_BYTES. 0: no host
                tier.
            whole_object_bytes: objects up to this size are cached whole, larger ones by the ranges that views read.
        """
        self.device = device
        self._closed = False
        self._turn = _Turn(device)
        self._replays: dict[str, Replay] = {}
        self._kernels = Kernels(device)
        with device.current():
            usable = device.usable_bytes()
            self._slot = Slot(device.stream())
        capacity = min(cache_bytes or usable, usable)
        host_capacity = min(capacity, HOST_CACHE_BYTES) if host_cache_bytes is None else host_cache_bytes
        self._memory = Memory(device, capacity, host_capacity, whole_object_bytes)

    @property
    def lost(self) -> DeviceLost | None:
        """The error after which this process can do nothing more with its device, once there is one."""
        return self._turn.lost

    @property
    def cache(self) -> ObjectCache[CachedObject, HostObject]:
        """What is on the device and in host memory, to look at."""
        return self._memory.cache

    @property
    def libraries(self) -> int:
        """How many code images are loaded."""
        return len(self._kernels)

    def prepare(self, task: KTask) -> Plan:
        """Checks a kTask against its code and this device, and readies it for its first request.

        Raises:
            What `make_plan` raises; DeviceLost.
        """
        with self._turn:
            return self._replay(task).plan

    def load(self, sources: Sequence[Source], *, pin: bool = False) -> RunStats:
        """Brings objects to the device ahead of their use: all of them, or none.

        Args:
            pin: they stay there until `unpin` or `close`.

        Raises:
            InputFailed, NotContiguous, RequestTooLarge, OutOfDeviceMemory, DeviceLost
        """
        with self._turn:
            return self._load(sources, pin)

    def unpin(self, keys: Iterable[bytes] | None = None) -> None:
        """These objects, or all that are pinned, may leave the device again, as all others."""
        with self._turn:
            self._memory.let_go(keys)

    def flush(self, keys: Iterable[bytes] | None = None) -> tuple[bytes, ...]:
        """Forgets these objects, or all, but for pinned ones; gives the keys of those that were on the device."""
        with self._turn:
            return self._memory.flush(keys)

    def run(self, request: Request) -> Result:
        """Runs a request to its end. Either all its outputs come back, or one error; then what it pinned is free, what
        it loaded is gone, and the next request finds the arena in order.

        Raises:
            What `prepare` raises; MissingInput, UnexpectedInput, WrongSize, WrongDtype, NotContiguous, InputFailed,
            MissingScalar, WrongScalar; RequestTooLarge, OutOfDeviceMemory; DeviceLost, after which `lost` is set.
        """
        with self._turn:
            return self._run(request)

    def close(self) -> None:
        """Gives everything back. Of a lost device there is nothing to give back: its process has to end."""
        if self._turn.lost is not None or self._closed:
            return
        self._closed = True
        with self._turn:
            while self._replays:
                self._replays.popitem()[1].close()
            self._memory.close()
            self._slot.close()
            self._kernels.close()
        self.device.close()

    def _run(self, request: Request) -> Result:
        started = perf_counter()
        replay = self._replay(request.task)
        plan = replay.plan
        scalars, iterations = _check(plan, request)
        planned = perf_counter()

        inputs = gather(plan, request.inputs, self._memory.find, self._memory.ranges)
        lease = self._take(f"kTask {plan.task.label!r}", inputs, replay.layout(inputs.resident).nbytes)
        fetched = perf_counter()
        try:
            self._slot.enter(request.client, self._memory)
            placement = replay.place(inputs.resident, self._memory.arena)
            addresses = self._slot.copy_in(plan, placement, inputs, lease)
            instance = replay.bind(Values(placement, addresses, scalars))
            copied = perf_counter()

            self._slot.launch(instance, iterations)
            outputs = self._slot.copy_out(plan, addresses)
        except DeviceLost:
            raise
        except BaseException:
            self._slot.stream.synchronize()
            self._memory.give_back(lease)
            raise
        loaded, evicted = self._memory.commit(lease, inputs)
        ended = perf_counter()

        kernels_s = self._slot.stream.kernels.seconds()
        stages = {
            "plan": planned - started,
            "fetch": fetched - planned,
            "copy_in": copied - fetched,
            "kernels": kernels_s,
            "copy_out": max(0.0, ended - copied - kernels_s),
            "total": ended - started,
        }
        stats = RunStats(stages, _tiers(lease, self._slot.stream), loaded, evicted, kernels_s)
        return Result(outputs, stats)

    def _load(self, sources: Sequence[Source], pin: bool) -> RunStats:
        stream = self._slot.stream
        inputs = gather_whole(sources, self._memory.find, self._memory.ranges)
        lease = self._take("prefetch", inputs, 0)
        try:
            self._slot.copy_objects(lease)
            stream.synchronize()
        except DeviceLost:
            raise
        except BaseException:
            stream.synchronize()
            self._memory.give_back(lease)
            raise
        if pin:
            self._memory.hold(inputs.objects)
        loaded, evicted = self._memory.commit(lease, inputs)
        return RunStats({}, _tiers(lease, stream), loaded, evicted, 0.0)

    def _replay(self, task: KTask) -> Replay:
        """The plan of a kTask in our slot, made at its first request."""
        replay = self._replays.pop(task.key, None)
        if replay is None:
            info = self.device.info()
            plan = make_plan(
                task, self._kernels, self.device.limits, self._memory.cache.device.capacity_bytes, info.name
            )
            replay = Replay(plan, self.device)
            if len(self._replays) >= MAX_PLANS:
                self._replays.pop(next(iter(self._replays))).close()
                in_use = (replay, *self._replays.values())
                self._kernels.keep({library.hash for one in in_use for library in one.plan.task.libraries})
        self._replays[task.key] = replay  # the last one is the one used last
        return replay

    def _take(self, what: str, inputs: Inputs, arena_bytes: int) -> Lease:
        lease = self._memory.take(inputs, arena_bytes)
        if not isinstance(lease, Shortage):
            return lease
        needed_bytes = arena_bytes + sum(map(granules, inputs.objects.values()))
        capacity_bytes, device = self._memory.cache.device.capacity_bytes, self.device.info().name
        if needed_bytes > capacity_bytes:
            raise too_large(what, needed_bytes, capacity_bytes, device)
        raise OutOfDeviceMemory(
            f"{what}: {device} lacks {lease.missing_bytes} bytes beside what is pinned",
            device=device,
            needed_bytes=needed_bytes,
            free_bytes=needed_bytes - lease.missing_bytes,
        )


def _tiers(lease: Lease, stream: Stream) -> dict[str, TierUse]:
    """What was done in each tier, once the stream has been synchronized."""
    if lease.loaded:
        lease.tiers["device"] = lease.tiers["device"]._replace(seconds=stream.copies.seconds())
    return lease.tiers


def _check(plan: Plan, request: Request) -> tuple[list[bytes], int]:
    """The scalars and the number of iterations of a request that names exactly what its kTask takes."""
    if request.inputs.keys() != plan.input_names:
        check_names(plan.task, request.inputs)
    scalars = check_scalars(plan, request.scalars)
    iterations = iterations_of(plan.task, request.scalars)
    if iterations < 1:
        label = plan.task.label
        raise WrongScalar(f"kTask {label!r}: the number of iterations is at least 1, not {iterations}", task=label)
    return scalars, iterations
