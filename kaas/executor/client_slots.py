"""The slots of an executor that confines kernels: each client has its own, at addresses of its window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Literal

from kaas.errors import OutOfDeviceMemory
from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.device.windows.window import ClientWindow
from kaas.executor.slots import Slot, Slots

Isolation = Literal["none", "fence"]
MOST_CLIENTS = 256
"""Clients with a window. With more, those leave that have had no request for longest, with all that is in it."""


@dataclass(slots=True)
class _FencedClient:
    """A client. slots: by the executor's slot. uses: requests and loads under way."""

    window: ClientWindow
    slots: dict[Slot, Slot] = field(default_factory=dict)
    uses: int = 0


def make_slots(
    count: int, device: OpenDevice, memory: TieredMemory, monitor: DeviceMonitor, isolation: Isolation
) -> Slots:
    """Return so many slots; isolation: as in `Executor`."""
    made = [Slot(*memory.arena(), device) for _ in range(count)]
    return FencedSlots(made, monitor, device, memory) if isolation == "fence" else Slots(made, monitor)


class FencedSlots(Slots):
    """Slots in each of which a client has an arena, code and graphs of its own. Use it inside `device.context`."""

    def __init__(self, slots: Sequence[Slot], monitor: DeviceMonitor, device: OpenDevice, memory: TieredMemory) -> None:
        super().__init__(slots, monitor)
        self._device = device
        self._memory = memory
        self._clients: dict[str, _FencedClient] = {}  # the one that came last at the end
        self._taken: dict[Slot, tuple[Slot, str]] = {}  # clients' slots in use: the executor's slot, and the client
        self._leaving = 0  # clients that are forgotten now

    def every(self) -> list[Slot]:
        """Return all slots, those of clients too."""
        with self._monitor.lock:
            return [*self._all, *(slot for client in self._clients.values() for slot in client.slots.values())]

    @contextmanager
    def window(self, client: str) -> Iterator[ClientWindow]:
        """Return the window of a client, to be used for a while."""
        used = self._enter(client)
        try:
            yield used.window
        finally:
            self._exit(client)

    def take(self, number: int | None = None, task: str = "", client: str | None = None) -> Slot:
        """Wait for a slot and return the client's one there; see `Slots.take`."""
        taken = super().take(number, task)
        if client is None:
            return taken
        with ExitStack() as undo:
            undo.callback(super().give, taken)
            used = self._enter(client)
            undo.callback(self._exit, client)
            own = used.slots.get(taken) or self._made(used, taken)
            undo.pop_all()
        self._taken[own] = taken, client
        return own

    def give(self, slot: Slot) -> None:
        """Give a slot back, the executor's or a client's."""
        slot.plans.current = None
        taken, client = self._taken.pop(slot, (slot, None))
        if client is not None:
            self._exit(client)
        super().give(taken)

    def make_room(self) -> bool:
        """Let the client leave whose last request is the longest ago; return False if all are in use."""
        with self._monitor.lock:
            return self._make_room()

    def release(self) -> None:
        """Close the windows. All slots are closed, and all memory is free. Needs the lock."""
        while self._leaving:
            self._monitor.wait()
        while self._clients:
            self._clients.popitem()[1].window.close()

    def _made(self, client: _FencedClient, taken: Slot) -> Slot:
        with self._monitor.lock:
            number, arena = self._memory.arena(client.window.written)
        made = client.slots[taken] = Slot(number, arena, self._device, client.window)
        return made

    def _enter(self, name: str) -> _FencedClient:
        with self._monitor.lock:
            client = self._clients.pop(name, None)
            if client is None:
                window = self._window()
                client = self._clients.pop(name, None)  # which may have come while the lock was free
                if client is None:
                    client = _FencedClient(window)
                else:
                    window.close()
            self._clients[name] = client
            client.uses += 1
            return client

    def _window(self) -> ClientWindow:
        """Return a new window, for which other clients leave if they are too many, or have too many addresses."""
        if len(self._clients) >= MOST_CLIENTS:
            self._make_room()
        while True:
            try:
                return self._device.window()
            except OutOfDeviceMemory:
                if not self._make_room():
                    raise

    def _make_room(self) -> bool:
        """Forget the client whose last request is the longest ago; return False if all are in use."""
        left = next(filter(None, map(self._leave, list(self._clients))), None)
        if left is not None:
            self._close(left)
        return left is not None

    def _exit(self, name: str) -> None:
        with self._monitor.lock:
            self._clients[name].uses -= 1

    def _leave(self, name: str) -> _FencedClient | None:
        """Forget a client with all its memory, and return it to be closed; return None if some memory is in use."""
        client = self._clients[name]
        if client.uses or not self._memory.leave(client.window.heaps):
            return None
        for slot in client.slots.values():
            self._memory.drop_arena(slot.number)
        return self._clients.pop(name)

    def _close(self, left: _FencedClient) -> None:
        """Close what a client leaves. Meanwhile the lock is free: to unload code the driver waits for all kernels."""
        self._leaving += 1
        try:
            with self._monitor.left():
                for slot in left.slots.values():
                    slot.close()
            left.window.close()
        finally:
            self._leaving -= 1
            self._monitor.notify()
