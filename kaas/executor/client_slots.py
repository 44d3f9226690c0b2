"""The clients of an executor: their windows and slots, if their kernels are confined."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.device.window import ClientWindow
from kaas.executor.slots import Slot

Isolation = Literal["none", "fence"]


class ClientSlots:
    """The windows of clients, and their slots. Use it inside `device.context`, by any thread.

    A client has a slot of its own for each slot of the executor in which its requests have run: with its own arena,
    code and graphs, at addresses of its window. A thread that has the executor's slot may use the client's one. Without
    fences all clients use the executor's slots.
    """

    def __init__(
        self, device: OpenDevice, memory: TieredMemory, monitor: DeviceMonitor, isolation: Isolation = "none"
    ) -> None:
        self._device = device
        self._memory = memory
        self._monitor = monitor
        self._fenced = isolation == "fence"
        self._windows: dict[str, ClientWindow] = {}
        self._slots: dict[tuple[str, int], Slot] = {}

    def __iter__(self) -> Iterator[Slot]:
        return iter(list(self._slots.values()))

    def window(self, client: str) -> ClientWindow | None:
        """Return a client's window; None without fences."""
        if not self._fenced:
            return None
        with self._monitor.lock:
            return self._window(client)

    def slot(self, taken: Slot, client: str) -> Slot:
        """Return a client's slot, for the executor's slot that the caller has."""
        if not self._fenced:
            return taken
        key = client, taken.number
        slot = self._slots.get(key)
        if slot is None:
            with self._monitor.lock:
                window = self._window(client)
                number, arena = self._memory.arena(window.written)
            slot = self._slots[key] = Slot(number, arena, self._device, window)
        return slot

    def _window(self, client: str) -> ClientWindow:
        window = self._windows.get(client)
        if window is None:
            window = self._windows[client] = self._device.window()
        return window

    def close(self) -> None:
        """Close the windows. Their slots are closed, and their memory is free."""
        while self._windows:
            self._windows.popitem()[1].close()
