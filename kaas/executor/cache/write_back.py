"""Copies outputs that stayed on the device to the host: on demand, or before they leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from kaas.executor.cache.tiered_memory import TieredMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_to_host import DeviceToHost
from kaas.executor.device.monitor import DeviceMonitor
from kaas.ktask.dtypes import numpy_dtype

Deliver = Callable[[bytes, np.ndarray[Any, Any]], None]
"""Receives an output with its key. It may block."""


class WriteBackStream:
    """The copies of kept outputs to the host, on a stream of their own, which waits for no slot and no other stream.

    Use it inside `device.context`, and without holding the lock. An object stays *unsaved* in the cache, and so on
    the device, until its copy is delivered.

    Fields:
        possible: True if there is a receiver.
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
        """Deliver each unsaved object of these, and wait for those that other threads deliver. Ignore other keys.

        Raises:
            DeviceError, DeviceLost: the copy failed; the errors of `deliver`. The object stays unsaved.
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
        """Return the undelivered objects of these, or of all (None)."""
        with self._monitor.lock:
            left = self._memory.cache.unsaved
            return list(left) if keys is None else [key for key in keys if key in left]

    def give_up(self, keys: Iterable[bytes]) -> None:
        """Drop outputs that no program wants. Copies on their way still arrive. Needs the lock."""
        for key in keys:
            if key not in self._under_way:
                self._memory.cache.saved(key)

    def close(self) -> None:
        """Free the stream and its buffers."""
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
        assert self._deliver is not None, "without a receiver no output is kept"
        there = self._memory.cache.device.values[key]  # an unsaved object stays there
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
