"""Admission of requests: objects that no tier has are fetched, and memory is reserved, in the order of arrival."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TypeVar

import msgspec

from kaas.errors import KaasError, OutOfDeviceMemory, RequestTooLarge
from kaas.executor.cache.lease import MemoryLease
from kaas.executor.cache.reservation import Shortage, Unsaved
from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.cache.tiers import TierUse, granules
from kaas.executor.cache.write_back import WriteBackStream
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.inputs import Inputs
from kaas.executor.objects import FetchedObject
from kaas.executor.plan.arena import Layout
from kaas.executor.plan.sizes import describe, too_large
from kaas.executor.single_flight import SingleFlight
from kaas.ktask.graph import KTask

T = TypeVar("T")

Gather = Callable[[Mapping[bytes, FetchedObject]], Inputs]
"""Looks up the inputs of a request, given the objects that were fetched for it. Needs the lock."""


class AdmissionRequest(msgspec.Struct, frozen=True):
    """The demand of a request, or of a prefetch, which has no kTask, no slot and no arena.

    Fields:
        gather: looks up the inputs.
        layout: gives the arena's layout, for masks of the inputs in the arena and of the outputs outside it
            (`Plan.layout`).
        victims: keys of objects that leave first, as in `RunRequest`.
    """

    gather: Gather
    task: KTask | None = None
    slot: int | None = None
    layout: Callable[[int, int], Layout] | None = None
    victims: Sequence[bytes] = ()


class Admitted(msgspec.Struct, frozen=True):
    """An admitted request.

    Fields:
        at_s: the time of admission, by `perf_counter`.
        store_s: seconds spent fetching. own_s: the part of store_s without waiting for other requests' fetches.
        memory_s: seconds of looking up, waiting for room, allocating and freeing.
    """

    inputs: Inputs
    lease: MemoryLease
    at_s: float
    store_s: float
    memory_s: float
    own_s: float

    def tiers(self) -> tuple[dict[str, TierUse], float]:
        """Return the use of each tier, and the seconds of copies to the device, which must have ended."""
        lease = self.lease
        if not lease.loaded:
            return lease.tiers, 0.0
        arriving_s = sum(copy.events.seconds() for copy in lease.copies.values())
        seconds = {"device": arriving_s, "host": lease.hosting_s, "store": self.store_s}
        return {tier: use._replace(seconds=seconds[tier]) for tier, use in lease.tiers.items()}, arriving_s


class Admission:
    """Admits requests in the order of arrival.

    A request that does not fit with the running ones waits. Later requests queue behind it, even if they would fit:
    otherwise their objects could stay pinned in turn, and the first request would wait for ever.
    """

    def __init__(
        self,
        memory: TieredMemory,
        monitor: DeviceMonitor,
        write_back: WriteBackStream,
        device: str,
        unload: Callable[[], bool],
        make_room: Callable[[], bool],
    ) -> None:
        """Use `unload` and then `make_room` to free memory: of idle code, and of idle clients.

        Each returns False once there is none. device: its name, for errors.
        """
        self._unload, self._make_room = unload, make_room
        self._device = device
        self._memory = memory
        self._monitor = monitor
        self._write_back = write_back
        self._single_flight = SingleFlight(monitor)
        self._queue: list[object] = []

    def admit(self, request: AdmissionRequest) -> Admitted:
        """Fetch missing objects, and wait until everything fits at once.

        Raises:
            The errors of gathering and of fetching; RequestTooLarge, OutOfDeviceMemory: the request cannot fit even if
            no other runs; DeviceLost.
        """
        return self._roomy(partial(self._admit, request))

    def load(self, make: Callable[[KTask, int, str | None], T], task: KTask, client: str | None) -> T:
        """Make the plan of a kTask; idle code and objects leave if variables of its code have no room.

        Args:
            make: makes the plan for a client, with the bytes of the device's cache.
            task: the kTask.
            client: of the request; None: there is no request.

        Raises:
            The errors of `make_plan`; OutOfDeviceMemory: there is no room, even if no other request runs.
        """
        attempt = partial(make, task, self._memory.capacity_bytes, client)
        for give_way in (self._unload, self._empty):
            with suppress(OutOfDeviceMemory):
                return attempt()
            give_way()
        return self._roomy(attempt)

    def _empty(self) -> None:
        with self._monitor.lock:
            self._memory.empty(())

    def _roomy(self, action: Callable[[], T]) -> T:
        """Do something that needs memory. Idle code leaves once, then idle clients while the device has too little.

        Code that the action loads is idle when the action fails: it would leave each time.
        """
        unloaded = False
        while True:
            try:
                return action()
            except (OutOfDeviceMemory, RequestTooLarge) as error:
                enough = self._memory.cache.device.capacity_bytes >= self._memory.capacity_bytes
                if enough and isinstance(error, RequestTooLarge):
                    raise
                if (unloaded or not self._unload()) and not self._make_room():
                    raise
                unloaded = True

    def _admit(self, request: AdmissionRequest) -> Admitted:
        fetched: dict[bytes, FetchedObject] = {}
        own: dict[bytes, float] = {}
        store_s = memory_s = 0.0
        try:
            while True:
                with self._monitor.lock:
                    began = perf_counter()
                    inputs, lease = self._enter(request, fetched)
                    at_s = perf_counter()
                    memory_s += at_s - began
                    if lease is not None:
                        if own:
                            self._single_flight.forget(own)
                        return Admitted(inputs, lease, at_s, store_s, memory_s, sum(own.values()))
                # Fetched objects are kept, so that each object is fetched at most once.
                fetched.update(self._single_flight.fetch(inputs.missing, own))
                store_s += perf_counter() - at_s
        except BaseException:
            with self._monitor.lock:
                self._single_flight.forget(own)
            raise

    def _enter(
        self, request: AdmissionRequest, fetched: Mapping[bytes, FetchedObject]
    ) -> tuple[Inputs, MemoryLease | None]:
        """Return the inputs with a lease of all memory or, while objects are missing, without one."""
        self._monitor.check()
        ticket = object()
        try:
            while True:
                if not self._queue or self._queue[0] is ticket:
                    inputs = request.gather(fetched)
                    if inputs.missing:
                        return inputs, None
                    lease = self._reserve(request, inputs)
                    if isinstance(lease, MemoryLease):
                        return inputs, lease
                    if lease is not None:
                        self._save(lease, ticket)
                        continue
                if ticket not in self._queue:
                    self._queue.append(ticket)
                self._monitor.wait()
        finally:
            if self._queue and ticket in self._queue:
                self._queue.remove(ticket)
                self._monitor.notify()

    def _save(self, unsaved: Unsaved, ticket: object) -> None:
        """Write back objects that must leave. No request overtakes the waiting one meanwhile."""
        if ticket not in self._queue:
            self._queue.insert(0, ticket)
        with self._monitor.left():
            self._write_back.save(unsaved.keys)
        self._monitor.check()

    def _reserve(self, request: AdmissionRequest, inputs: Inputs) -> MemoryLease | Unsaved | None:
        """Return a lease, objects to be written back first, or None: the memory is not free yet."""
        if inputs.made and not self._forget_earlier(inputs.made):
            return None
        arena_bytes = request.layout(inputs.resident, inputs.kept_mask).nbytes if request.layout is not None else 0
        lease = self._memory.take(inputs, request.slot, arena_bytes, request.victims)
        if not isinstance(lease, Shortage):
            return lease
        if lease.lasting_bytes:
            raise self._refusal(request.task, inputs, arena_bytes, lease.lasting_bytes)
        return None

    def _forget_earlier(self, keys: Iterable[bytes]) -> bool:
        """Forget outputs that a request will keep and that are here already; return True if they are gone.

        The request has run here before, for an earlier process of the pool. An output that another request reads or
        writes leaves later.
        """
        memory = self._memory
        there = [key for key in keys if memory.find(key) is not None]
        if there:
            memory.let_go(there)
            self._write_back.give_up(there)
            memory.flush(there)
        return all(memory.find(key) is None for key in there)

    def _refusal(self, task: KTask | None, inputs: Inputs, arena_bytes: int, missing_bytes: int) -> KaasError:
        tier, device, held = self._memory.cache.device, self._device, inputs.held()
        room = {key: tier.sizes.get(key, granules(nbytes)) for key, nbytes in inputs.objects.items() if key not in held}
        needed_bytes, capacity_bytes = arena_bytes + sum(room.values()), tier.capacity_bytes
        if needed_bytes > capacity_bytes:
            return too_large(task, needed_bytes, capacity_bytes, device, self._memory.capacity_bytes - capacity_bytes)
        name, largest, fields = describe(task)
        return OutOfDeviceMemory(
            f"{name} needs {needed_bytes} bytes at once{largest}; pinned objects leave {missing_bytes} too few on "
            f"{device}",
            **fields,
            device=device,
            needed_bytes=needed_bytes,
            free_bytes=needed_bytes - missing_bytes,
        )
