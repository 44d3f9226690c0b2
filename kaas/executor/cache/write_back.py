"""Copies outputs that stayed on the device to the host: when they are asked for, or before they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kaas.executor.cache.memory import TieredMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_to_host import DeviceToHost
from kaas.executor.device.monitor import DeviceMonitor
from kaas.ktask.dtypes import numpy_dtype

Deliver = Callable[[bytes, np.ndarray[Any, Any]], None]
"""Takes an output by its key; may block."""


class WriteBackStream:
    """The way of kept outputs to the host, on a stream of its own: it waits for no slot and no other stream. Use it
    inside `device.current()`, and not within the lock.

    An object stays *unsaved* in the cache, and so on the device, until its copy has been delivered.
    """

    def __init__(
        self, device: OpenDevice, memory: TieredMemory, monitor: DeviceMonitor, deliver: Deliver | None
    ) -> None:
        self.possible = deliver is not None
        self._memory = memory
        self._monitor = monitor
        self._deliver = deliver
        self._stream = device.stream()
        self._device_to_host = DeviceToHost(device, self._stream)
        self._copying = threading.Lock()
        self._under_way: set[bytes] = set()

    def save(self, keys: Iterable[bytes]) -> None:
        """Delivers each of these that has not been; waits for those that others are delivering. Other keys are nothing
        to it.

        Raises:
            DeviceError, DeviceLost: of the copy; what `deliver` raises. The object is unsaved then, as before.
        """
        for key in keys:
            if not self._begin(key):
                continue
            try:
                self._copy(key)
            except BaseException:
                self._end(key, saved=False)
                raise
            self._end(key, saved=True)

    def unsaved(self, keys: Iterable[bytes] | None = None) -> list[bytes]:
        """Those of these objects, or of all, that have not been delivered."""
        with self._monitor.lock:
            left = self._memory.cache.unsaved
            return list(left) if keys is None else [key for key in keys if key in left]

    def give_up(self, keys: Iterable[bytes]) -> None:
        """Within the lock: no program wants these any more. Copies on their way arrive nevertheless."""
        for key in keys:
            if key not in self._under_way:
                self._memory.cache.saved(key)

    def close(self) -> None:
        self._device_to_host.close()
        self._stream.close()

    def _begin(self, key: bytes) -> bool:
        with self._monitor.lock:
            while key in self._under_way:
                self._monitor.wait()
            if key not in self._memory.cache.unsaved:
                return False
            self._under_way.add(key)
            return True

    def _copy(self, key: bytes) -> None:
        assert self._deliver is not None, "nothing is kept otherwise"
        there = self._memory.cache.device.values[key]  # it stays there while it is unsaved
        assert there.dtype is not None, "it is an output"
        assert there.shape is not None, "it is an output"
        data = np.empty(there.nbytes, np.uint8)
        with self._copying:
            self._device_to_host.copy([(there.address, data)])
        self._deliver(key, data.view(numpy_dtype(there.dtype)).reshape(there.shape))

    def _end(self, key: bytes, *, saved: bool) -> None:
        with self._monitor.lock:
            self._under_way.remove(key)
            if saved:
                self._memory.cache.saved(key)
            self._monitor.notify()
