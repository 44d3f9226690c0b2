"""Runs kTasks on one device: fetch, reserve, copy, launch, store. `Executor._run` has the steps of every request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter
from types import MappingProxyType

from kaas.errors import DeviceLost, InvalidRequest, KaasError
from kaas.executor.admission import Admission, AdmissionRequest, Admitted
from kaas.executor.cache.cache import ObjectCache
from kaas.executor.cache.lease import MemoryLease
from kaas.executor.cache.ranges import WHOLE_OBJECT_BYTES
from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.cache.write_back import Deliver, WriteBackStream
from kaas.executor.client_slots import Isolation, make_slots
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.host_to_device import HostToDevice
from kaas.executor.device.monitor import DeviceContext, DeviceMonitor, Watchdog, Watched
from kaas.executor.failures import Failures, PrintedText
from kaas.executor.inputs import InputSource, gather, gather_whole, stage
from kaas.executor.measuring import measured, of_load
from kaas.executor.objects import CachedObject, HostObject
from kaas.executor.plan.graph_cache import GraphCache
from kaas.executor.plan.plan import Plan
from kaas.executor.run import RunRequest, RunResult, RunStats
from kaas.executor.slots import Slot, chosen_values, run_in_slot
from kaas.ktask.graph import KTask

__all__ = ["Executor", "InputSource", "RunRequest", "RunResult", "RunStats"]

HOST_CACHE_BYTES = 4 << 30
"""The most page-locked host memory that an executor takes for its cache by default."""

_NOTHING: Mapping[int, bytes] = MappingProxyType({})


class Executor:
    """One device: its memory, slots and plans.

    Each slot runs one request at a time. Any thread may call the methods.
    """

    def __init__(
        self,
        device: OpenDevice,
        *,
        slots: int = 1,
        cache_bytes: int | None = None,
        host_cache_bytes: int | None = None,
        whole_object_bytes: int = WHOLE_OBJECT_BYTES,
        run_limit_s: float | None = None,
        isolation: Isolation = "none",
        on_write_back: Deliver | None = None,
        on_printed: Callable[[str, str], None] | None = None,
    ) -> None:
        """Open slots and streams on a device. Memory for objects and arenas is allocated by requests.

        Args:
            device: the device, which `close` closes too.
            slots: requests that run at a time.
            cache_bytes: device memory for objects and arenas together; None: all that the device can spare.
            host_cache_bytes: page-locked host memory for objects; None: as much as cache_bytes, up to
                HOST_CACHE_BYTES; 0: no host tier.
            whole_object_bytes: objects up to this size are cached whole, larger ones by the ranges that views read.
            run_limit_s: seconds that a request may run, counted from its admission. A request beyond it is ended, and
                the device's context with it. Only kernels of the software GPU can be ended: a GPU has no limit.
            isolation: "fence": kernels of a client reach no memory but its own.
            on_write_back: gets outputs that requests have kept on the device, each at most once, in the thread that
                asks for the output or needs its room. It may wait. Without it no request may keep an output.
            on_printed: gets (client, text) once a request has ended: the text that its kernels printed on a software
                device. The text also goes to the stdout of the process (`softgpu.set_echo`).
        """
        if slots < 1:
            raise ValueError(f"an executor has 1 slot or more, not {slots}")
        self.device = device
        device.divide_local_memory(slots)
        self._run_limit_s = run_limit_s
        self._closed = False
        self._monitor = DeviceMonitor()
        self._context = DeviceContext(device.context, self._monitor)
        with device.context:
            usable = device.usable_bytes()
            capacity = min(cache_bytes or usable, usable)
            host_capacity = min(capacity, HOST_CACHE_BYTES) if host_cache_bytes is None else host_cache_bytes
            self._memory = memory = TieredMemory(device, capacity, host_capacity, whole_object_bytes)
            self._monitor.on_error = memory.spoil
            self._host_to_device = HostToDevice(device.stream(), self._monitor)
            self._write_back = WriteBackStream(device, self._memory, self._monitor, on_write_back)
            self._slots = make_slots(slots, device, memory, self._monitor, isolation)
        name, unload, make_room = device.info().name, self._slots.unload, self._slots.make_room
        self._admission = Admission(self._memory, self._monitor, self._write_back, name, unload, make_room)
        self._printed = PrintedText(device.take_printed, on_printed)
        self._failures = Failures(device, self._monitor, self._printed)
        self._watchdog = Watchdog(self._failures.overrun)

    @property
    def lost(self) -> DeviceLost | None:
        """The error after which this process cannot use its device any more; None before."""
        return self._monitor.lost

    @property
    def cache(self) -> ObjectCache[CachedObject, HostObject]:
        """The objects on the device and in host memory, for reading only."""
        return self._memory.cache

    @property
    def cached_bytes(self) -> tuple[int, int]:
        """Bytes of objects in device memory and in page-locked host memory, those on their way included."""
        return self.cache.device.reserved_bytes, self.cache.host.reserved_bytes

    def kernel_seconds(self) -> float:
        """Return the device seconds of all kernels so far, with those that run."""
        with self._context:
            return sum(slot.kernel_seconds() for slot in self._slots.every())

    def prepare(self, task: KTask) -> Plan:
        """Check a kTask against its code and this device, and prepare every slot for its first request.

        Raises:
            The errors of `make_plan`; DeviceLost.
        """
        try:
            with self._context:
                for one in self._slots:
                    slot = self._slots.take(one.number)
                    try:
                        plan = self._admission.load(slot.plans.get, task, None).plan
                    finally:
                        self._slots.give(slot)
                return plan
        except KaasError as error:
            self._failures.complete(error, task)
            raise

    def load(
        self, sources: Sequence[InputSource], *, pin: bool = False, victims: Sequence[bytes] = (), client: str = ""
    ) -> RunStats:
        """Load objects to the device before their use: all of them, or none.

        Args:
            sources: the objects.
            pin: the objects stay on the device until `unpin` or `close`.
            victims: objects that leave first, as in `RunRequest`.
            client: the client that will read them.

        Raises:
            InputFailed, NotContiguous, RequestTooLarge, OutOfDeviceMemory, DeviceLost
        """
        find, ranges = self._memory.find, self._memory.ranges
        with self._context, self._slots.window(client) as window:
            look_up = partial(gather_whole, sources, find, ranges, window)
            stats = self._load(AdmissionRequest(look_up, victims=victims), pin)
            self._tidy()
            return stats

    def cached(self) -> frozenset[bytes]:
        """Return the keys of the objects on the device, those on their way included."""
        with self._monitor.lock:
            return frozenset(self._memory.cache.sizes)

    def unpin(self, keys: Iterable[bytes] | None = None) -> None:
        """Allow these objects, or all pinned ones (None), to leave the device again."""
        with self._monitor.lock:
            self._monitor.check()
            self._memory.let_go(keys)
            self._monitor.notify()

    def flush(self, keys: Iterable[bytes] | None = None) -> tuple[bytes, ...]:
        """Forget these objects, or all (None), except pinned ones; return the keys of those that were on the device.

        Kept outputs are written back first.

        Raises:
            The errors of `write_back`.
        """
        named = None if keys is None else list(keys)
        with self._context:
            self._write_back.save(self._write_back.unsaved(named))
            with self._monitor.lock:
                self._monitor.check()
                left = self._memory.flush(named)
                self._monitor.notify()
            self._tidy()
            return left

    def to_host(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        """Let objects leave the device that page-locked memory holds too; return the keys of those that have left.

        Objects in use, pinned ones and kept outputs stay.

        Raises:
            DeviceLost
        """
        with self._context, self._monitor.lock:
            self._monitor.check()
            left = self._memory.to_host(keys)
            self._monitor.notify()
            return left

    def write_back(self, keys: Iterable[bytes]) -> None:
        """Pass kept outputs to `on_write_back`. Outputs that were passed before, or that are not here, are left out.

        The call waits for no slot. The outputs stay on the device as long as there is room.

        Raises:
            DeviceError, DeviceLost, the errors of `on_write_back`.
        """
        with self._context:
            self._write_back.save(keys)

    def discard(self, keys: Iterable[bytes]) -> tuple[bytes, ...]:
        """Forget kept outputs that no program will ask for; return the keys of those that were on the device.

        An output that a request still reads leaves later, and is never written back.

        Raises:
            DeviceLost
        """
        named = list(keys)
        with self._context:
            with self._monitor.lock:
                self._monitor.check()
                self._write_back.give_up(named)
                left = self._memory.flush(named)
                self._monitor.notify()
            self._tidy()
            return left

    def run(self, request: RunRequest, slot: int | None = None) -> RunResult:
        """Run a request to its end, and return all its outputs.

        If the request fails, its pins are released and objects that only it has loaded are freed. The next request
        finds the arena in order.

        Args:
            request: the request.
            slot: number of the slot to wait for; None: any.

        Raises:
            The errors of `prepare`; InvalidRequest, MissingInput, UnexpectedInput, WrongSize, WrongDtype,
            NotContiguous, InputFailed, MissingScalar, WrongScalar; RequestTooLarge, OutOfDeviceMemory; the errors of
            `write_back`; DeviceLost, and DeadlineExceeded beyond the run limit, after which `lost` is set.
        """
        watched = self._watched(request)
        try:
            try:
                with self._context:
                    taken = self._slots.take(slot, request.task.key, request.client)
                    try:
                        result = self._run(taken, request, watched)
                    finally:
                        self._slots.give(taken)
                    self._tidy()
                    return result
            finally:
                if watched is not None:  # from here on `exceeded` and `running` do not change
                    self._watchdog.end(watched)
        except KaasError as error:
            self._failures.complete(error, request.task, watched, request.client)
            raise

    def close(self) -> None:
        """Free everything once the running requests have ended; nothing on a lost device. Later calls raise."""
        try:
            self._close()
        finally:
            self._watchdog.close()

    def _close(self) -> None:
        if self._monitor.lost is not None or self._closed:
            return
        self._closed = True
        with self._context:
            self._slots.close()
            with self._monitor.lock:
                while self._memory.leases:
                    self._monitor.wait()
                self._memory.close()
                self._slots.release()
                self._monitor.close()
            self._host_to_device.close()
            self._write_back.close()
        self.device.close()

    def interrupt(self, task: str) -> bool:
        """End all running kernels and the device's context. Return True if that is possible; no GPU can do it."""
        if self.device.cancels:
            self._failures.end(task, "was interrupted")
        return self.device.cancels

    # --- the steps of a request

    def _watched(self, request: RunRequest) -> Watched | None:
        limit_s, own_s = self._run_limit_s, request.limit_s
        if own_s is not None:
            limit_s = own_s if limit_s is None else min(limit_s, own_s)
        if limit_s is None or not self.device.cancels:
            return None
        return Watched(request.task.label, limit_s)

    def _run(self, slot: Slot, request: RunRequest, watched: Watched | None) -> RunResult:
        started = perf_counter()
        graphs = self._admission.load(slot.plans.get, request.task, request.client)
        plan = graphs.plan
        given = chosen_values(plan, request)
        kept = self._kept(plan, request) if request.keep else _NOTHING
        planned = perf_counter()

        admitted = self._admit(self._admission_request(slot, graphs, request, kept))
        if plan.prints:
            self._printed.begin(request.client)
        try:
            if watched is not None:
                self._watchdog.begin(watched)
            done = run_in_slot(slot, graphs, request, admitted, given, kept)
        except DeviceLost:
            raise
        except BaseException:
            try:
                slot.stream.synchronize()  # it may bring a kernel's error, and has ended the stream's work then too
                if plan.prints:
                    self._printed.end(request.client)
            finally:
                self._give_back(admitted.lease)
            raise
        printed = self._printed.end(request.client) if plan.prints else ""
        self._commit(admitted, saved=request.copy_kept)
        stats = measured(admitted, done, self._memory, self.cached_bytes, started, planned, perf_counter())
        return RunResult(request.task, done.outputs, stats, printed)

    def _load(self, wanted: AdmissionRequest, pin: bool) -> RunStats:
        admitted = self._admit(wanted)
        lease, memory = admitted.lease, self._memory
        try:
            for copy in (*lease.copies.values(), *lease.awaited):
                copy.events.synchronize()
            tiers, load_s = admitted.tiers()
        except DeviceLost:
            raise
        except BaseException:
            self._give_back(lease)
            raise
        self._commit(admitted, pin)
        return of_load(lease, memory, self.cached_bytes, tiers, load_s)

    def _admission_request(
        self, slot: Slot, graphs: GraphCache, request: RunRequest, kept: Mapping[int, bytes]
    ) -> AdmissionRequest:
        plan, memory = graphs.plan, self._memory
        by_value = stage(plan, request.inputs, self.device.ordinal, slot.stream.number, confined=slot.confined)
        look_up = partial(gather, plan, request.inputs, by_value, kept, memory.find, memory.ranges, slot.window)
        return AdmissionRequest(look_up, plan.task, slot.number, graphs.layout, request.victims)

    def _admit(self, wanted: AdmissionRequest) -> Admitted:
        """Reserve all memory of a request; return once its objects are on the device or on their way."""
        while True:
            admitted = self._admission.admit(wanted)
            try:
                lease = admitted.lease
                complete = not (lease.loaded or lease.awaited) or self._host_to_device.copy(lease)
            except DeviceLost:
                raise
            except BaseException:
                self._give_back(admitted.lease)
                raise
            if complete:
                return admitted
            self._give_back(admitted.lease)  # another request failed to load an object that this one found: try again

    def _kept(self, plan: Plan, request: RunRequest) -> dict[int, bytes]:
        """Return the keys of the outputs that stay on the device, by index."""
        if not (self._write_back.possible or request.copy_kept):
            label = plan.task.label
            raise InvalidRequest(f"kTask {label!r}: this executor has no receiver for kept outputs", task=label)
        return request.kept(plan)

    def _commit(self, admitted: Admitted, pin: bool = False, saved: bool = False) -> None:
        with self._monitor.lock:
            self._memory.commit(admitted.lease, admitted.inputs, saved)
            if pin:
                self._memory.hold(admitted.inputs.objects)
            self._monitor.notify()

    def _tidy(self) -> None:
        """Close page-locked memory that has to leave. Closing it may take long."""
        if self._memory.buffers.leaving:
            with self._monitor.lock:
                leaving = self._memory.buffers.take_leaving()
            for buffer in leaving:
                buffer.close()

    def _give_back(self, lease: MemoryLease) -> None:
        """Free the memory of a failed request, whose own stream must be idle. Nothing can be freed on a lost device."""
        if lease.loaded:
            self._host_to_device.synchronize()
        with self._monitor.lock:
            self._memory.give_back(lease)
            self._monitor.notify()
