"""The slots of an executor, and `Slots`, which hands them out in the order in which threads ask.

A slot has a stream, plans and an arena. It copies a request's inputs in, launches, and copies the outputs out.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import msgspec
import numpy as np

from kaas.errors import WrongScalar
from kaas.executor.admission import Admitted
from kaas.executor.cache.lease import MemoryLease, SlotArena
from kaas.executor.cache.tiers import TierUse, granules
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_to_host import Bytes, DeviceToHost
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.device.partitions import SmPartition
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.inputs import Inputs, check_scalars
from kaas.executor.objects import CachedObject
from kaas.executor.plan.graph_cache import ArenaPlacement, GraphCache, Launches, LaunchValues, SlotPlans
from kaas.executor.plan.plan import Plan
from kaas.executor.profile import KernelTime
from kaas.executor.run import ChosenValues, RunRequest
from kaas.ktask.request import check_names, iterations_of

_WHOLE: AbstractContextManager[None] = nullcontext()
"""The whole device in the place of a partition."""


class Slot:
    """Capacity for one request at a time. Use it inside `device.context`.

    A slot has loaded libraries of its own: requests that run at the same time must not share the globals of their code.

    Fields:
        number: among the slots of its executor. arena: only the executor's memory changes it.
        window: its kernels are `confined` to it; None: they are not.
        plans: with their graphs and code. partitions: of the device.
        kernels_s: device seconds of the kernels of requests that have ended. launches: how often the kernels of a
            request were queued. in_flight: such kernels are queued or run, or have just ended.
    """

    def __init__(self, number: int, arena: SlotArena, device: OpenDevice, window: ClientWindow | None = None) -> None:
        self.number = number
        self.arena = arena
        self.window, self.confined = window, window is not None
        self.stream = device.stream()
        self.plans = SlotPlans(device, window)
        self.partitions = device.partitions
        self.kernels_s, self.launches = 0.0, 0
        self.in_flight = False
        self._seen = (0, 0.0)  # a launch, and when its kernels were first found to run
        self._device = device
        self._device_to_host = DeviceToHost(device, self.stream)
        self._client: str | None = None
        self._tables: tuple[ArenaPlacement, list[bytes]] | None = None

    def enter(self, client: str, plan: Plan) -> None:
        """Clear the arena and restore globals, where requests of other clients may have left bytes.

        The request must have its lease. A window has no bytes of other clients.
        """
        for library in plan.globals:
            library.enter(client, self.stream)
        if client != self._client or self.arena.fresh:
            if not self.confined:
                self.stream.clear(self.arena.address, self.arena.nbytes)
            self.arena.fresh = False
            self._client = client
            self._tables = None

    def copy_in(self, plan: Plan, placement: ArenaPlacement, inputs: Inputs, lease: MemoryLease) -> list[int]:
        """Submit the copies of the inputs to the places where kernels read them; return all addresses."""
        stream = self.stream
        objects = lease.objects
        if self._device.checks:
            self._describe(plan, placement, inputs, objects)
        addresses = placement.addresses.copy()
        for index, key in inputs.kept.items():
            addresses[index] = objects[key].address
        by_value = inputs.by_value
        for index, data in by_value.staged:
            stream.copy_in(addresses[index], data, len(data))
        for index, (address, _) in by_value.placed.items():
            addresses[index] = address
        for index, (address, _) in by_value.moved.items():
            stream.copy(addresses[index], address, plan.nbytes[index])
        for index in plan.zeroed:
            stream.clear(addresses[index], plan.nbytes[index])
        for index, key, offset_bytes in inputs.shared:
            addresses[index] = inputs.address(objects[key]) + offset_bytes
        self._write_tables(plan, placement, addresses)
        self._wait_for(lease)
        for index, key, offset_bytes in inputs.copied:
            stream.copy(addresses[index], objects[key].address + offset_bytes, plan.nbytes[index])
        return addresses

    def launch(self, launches: Launches) -> None:
        """Submit the kernels between two events."""
        stream = self.stream
        stream.kernels.start(stream)
        for instance, times in launches:
            instance.launch(stream, times)
        stream.kernels.stop(stream)

    def profile(
        self, graphs: GraphCache, values: LaunchValues, iterations: int, partition: SmPartition | None
    ) -> tuple[KernelTime, ...]:
        """Run the kernels one by one: all between two events, and each between two more. Return the times."""
        self.stream.kernels.start(self.stream)
        times = graphs.profile(values, self.stream, iterations, partition)
        self.stream.kernels.stop(self.stream)
        return times

    def copy_out(self, plan: Plan, addresses: list[int], staying: Container[int] = ()) -> dict[str, Bytes]:
        """Wait for everything and return the outputs' bytes, without outputs that only stay on the device."""
        outputs: dict[str, Bytes] = {}
        targets: list[tuple[int, Bytes]] = []
        for index in plan.outputs:
            if index in staying:
                continue
            outputs[plan.buffers[index].name] = data = np.empty(plan.nbytes[index], np.uint8)
            targets.append((addresses[index], data))
        self._device_to_host.copy(targets)
        return outputs

    def kernel_seconds(self) -> float:
        """Return the device seconds of kernels so far; of those that run, from the first call that finds them running.

        Any thread may call it. The sum is exact again when the request has ended.
        """
        ended_s, launch = self.kernels_s, self.launches
        began, ended = self.stream.kernels.state() if self.in_flight else (False, False)
        if not began or ended:
            return ended_s
        now_s = perf_counter()
        if self._seen[0] != launch:
            self._seen = launch, now_s
        return ended_s + now_s - self._seen[1]

    def close(self) -> None:
        """Free the plans, buffers, stream and code of the slot; its last request must have ended."""
        self.plans.close()
        self._device_to_host.close()
        self.stream.close()

    def _describe(
        self, plan: Plan, placement: ArenaPlacement, inputs: Inputs, objects: Mapping[bytes, CachedObject]
    ) -> None:
        """Name the regions of the arena, and the cached objects that kernels read or make.

        An object that other requests read at the same time gets its name in this request.
        """
        describe = self._device.describe
        describe(self.arena.address, self.arena.nbytes, list(_regions(plan, placement)))
        bound = [*((index, key) for index, key, _ in inputs.shared), *inputs.kept.items()]
        for index, key in bound:
            there = objects[key]
            if there.nbytes:
                region = (plan.buffers[index].name, 0, there.nbytes)
                describe(inputs.address(there), granules(there.nbytes), [region])

    def _wait_for(self, lease: MemoryLease) -> None:
        """Make the stream wait for the copies of objects that are on their way."""
        for copy in lease.awaited:
            copy.events.hold_back(self.stream)
        if lease.copies:
            last = next(reversed(lease.copies.values()))  # the copies run one after the other
            last.events.hold_back(self.stream)

    def _write_tables(self, plan: Plan, placement: ArenaPlacement, addresses: list[int]) -> None:
        """Write tables of pointers, which stay in the arena until another plan runs."""
        if not plan.tables:
            self._tables = None
            return
        contents = [
            b"".join((addresses[index] + offset_bytes).to_bytes(8, "little") for index, offset_bytes in table)
            for table in plan.tables
        ]
        if self._tables != (placement, contents):
            self._tables = None
            for index, data in enumerate(contents, start=len(plan.buffers)):
                self.stream.copy_in(addresses[index], data, len(data))
            self._tables = (placement, contents)


def _regions(plan: Plan, placement: ArenaPlacement) -> Iterator[tuple[str, int, int]]:
    """Yield (name, offset, bytes) of the regions of the arena."""
    for buffer in plan.arena_buffers:
        address = placement.addresses[buffer.index]
        if address and buffer.nbytes:
            name = plan.buffers[buffer.index].name if buffer.index < len(plan.buffers) else "a table of pointers"
            yield name, address - placement.arena, buffer.nbytes


@dataclass(slots=True, eq=False)
class _Waiter:
    """A thread that waits for a slot. number: of the wanted slot; None: any. given: the slot that the thread got."""

    number: int | None
    given: Slot | None = None


class Slots:
    """All slots of an executor: each is free, or in use by one thread."""

    def __init__(self, slots: Sequence[Slot], monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._all = tuple(slots)
        self._free = {slot.number: slot for slot in slots}  # the last one was freed last
        self._waiters: list[_Waiter] = []

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def every(self) -> list[Slot]:
        """Return all slots, those of clients too."""
        return list(self._all)

    def window(self, client: str) -> AbstractContextManager[ClientWindow | None]:  # noqa: ARG002
        """Return the window of a client, to be used for a while; None where kernels are not confined."""
        return nullcontext()

    def take(self, number: int | None = None, task: str = "", client: str | None = None) -> Slot:  # noqa: ARG002
        """Wait for a slot and return it, or the client's one there. The caller must `give` it back.

        Args:
            number: of the slot; None: any, preferably one that has the plan of this kTask.
            task: key of the kTask.
            client: the client whose request runs there; None: no request does.

        Raises:
            DeviceLost; ValueError: there is no such slot.
        """
        with self._monitor.lock:
            slot = self._fitting(task) if number is None else self._free.get(number)
            if slot is not None:
                del self._free[slot.number]
                return slot
            if number is not None and not 0 <= number < len(self._all):
                raise ValueError(f"there is no slot {number}: they are {len(self._all)}, counted from 0")
            waiter = _Waiter(number)
            self._waiters.append(waiter)
            try:
                while waiter.given is None:
                    self._monitor.wait()
                return waiter.given
            except BaseException:
                if waiter.given is not None:
                    self._pass_on(waiter.given)
                else:
                    self._waiters.remove(waiter)
                raise

    def _fitting(self, task: str) -> Slot | None:
        free = self._free.values()
        return next((slot for slot in reversed(free) if task in slot.plans.graphs), next(reversed(free), None))

    def give(self, slot: Slot) -> None:
        """Give a slot back: to the first thread that waits for it, otherwise to the free slots."""
        slot.plans.current = None
        with self._monitor.lock:
            self._pass_on(slot)

    def close(self) -> None:
        """Wait for all slots, and close them."""
        for slot in self._all:
            self.take(slot.number)
        for slot in self.every():
            slot.close()

    def unload(self) -> bool:
        """Unload code with variables that no request uses; return False if there is none."""
        unloaded = [slot.plans.unload() for slot in self.every()]
        return any(unloaded)

    def make_room(self) -> bool:
        """Let an idle client leave, with all its memory; return False if there is none, as here."""
        return False

    def release(self) -> None:
        """Give back what the slots' memory, which is free, had its addresses from: here nothing."""

    def _pass_on(self, slot: Slot) -> None:
        for waiter in self._waiters:
            if waiter.number is None or waiter.number == slot.number:
                self._waiters.remove(waiter)
                waiter.given = slot
                self._monitor.notify()
                return
        self._free[slot.number] = slot


class SlotWork(msgspec.Struct, frozen=True):
    """The result of a slot's work.

    Fields:
        copied_at_s: the time at which all copies to the device were submitted, by `perf_counter`.
        kernels_s, travel_s: device seconds of the kernels, and of the copies of objects that the request loaded.
        kernels: the time of each kernel, if the request asked for it.
    """

    outputs: dict[str, Bytes]
    copied_at_s: float
    kernels_s: float
    kernels: tuple[KernelTime, ...]
    tiers: dict[str, TierUse]
    travel_s: float


def run_in_slot(
    slot: Slot,
    graphs: GraphCache,
    request: RunRequest,
    admitted: Admitted,
    given: ChosenValues,
    kept: Mapping[int, bytes],
) -> SlotWork:
    """Copy in, launch, copy out."""
    plan, inputs = graphs.plan, admitted.inputs
    slot.in_flight = False
    slot.enter(request.client, plan)
    placement = graphs.place(inputs.resident, slot.arena.address, inputs.kept_mask)
    addresses = slot.copy_in(plan, placement, inputs, admitted.lease)
    values = LaunchValues(placement, addresses, given.scalars)
    kernels: tuple[KernelTime, ...] = ()
    with slot.partitions.taken(request.share, request.sms) if request.sms else _WHOLE as partition:
        launches = None if request.profile else graphs.bind(values, given.iterations, partition)
        copied = perf_counter()
        if launches is None:
            kernels = slot.profile(graphs, values, given.iterations, partition)
        else:
            slot.launch(launches)
        slot.launches += 1
        slot.in_flight = True
        outputs = slot.copy_out(plan, addresses, () if request.copy_kept else kept)
    kernels_s = slot.stream.kernels.seconds()
    slot.kernels_s += kernels_s
    return SlotWork(outputs, copied, kernels_s, kernels, *admitted.tiers())


def chosen_values(plan: Plan, request: RunRequest) -> ChosenValues:
    """Check that a request names exactly the inputs and scalars of its kTask.

    Raises:
        MissingInput, UnexpectedInput, MissingScalar, WrongScalar
    """
    if request.inputs.keys() != plan.input_names:
        check_names(plan.task, request.inputs)
    chosen = ChosenValues(check_scalars(plan, request.scalars), iterations_of(plan.task, request.scalars))
    if chosen.iterations < 1:
        words = f"kTask {plan.task.label!r}: the number of iterations is at least 1, not {chosen.iterations}"
        raise WrongScalar(words, task=plan.task.label)
    return chosen
