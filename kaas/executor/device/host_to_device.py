"""Brings objects to the device, on one stream for all slots: they travel while kernels of other requests run."""

from __future__ import annotations

import threading
from time import perf_counter

import numpy as np

from kaas.executor.cache.memory import MemoryLease
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.device.streams import Stream


class HostToDevice:
    """The stream of copies to the device. Use it inside `device.current()`."""

    def __init__(self, stream: Stream, gate: DeviceMonitor) -> None:
        self._stream = stream
        self._gate = gate
        self._submitting = threading.Lock()  # so that a copy stands right between its two events

    def bring(self, lease: MemoryLease) -> bool:
        """Submits the copies of what is new on the device, through host memory where that takes it.

        Returns:
            Whether what other requests are bringing comes too; waits until they have submitted it.
        """
        try:
            for key in lease.loaded:
                self._submit(lease, key)
        except BaseException:
            with self._gate.lock:
                for arrival in lease.arrivals.values():
                    arrival.failed = not arrival.submitted
                self._gate.notify()
            raise
        return not lease.awaited or self._awaited(lease)

    def synchronize(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        self._stream.close()

    def _submit(self, lease: MemoryLease, key: bytes) -> None:
        loaded, source = lease.loaded[key], lease.sources[key]
        arrival, hosted = lease.arrivals[key], lease.host_loaded.get(key)
        if hosted is not None:
            began = perf_counter()
            hosted.memory.data[: hosted.nbytes] = np.frombuffer(source, np.uint8)
            lease.hosting_s += perf_counter() - began
            source = hosted.memory.address
        with self._submitting:
            arrival.watch.start(self._stream)
            self._stream.copy_in(loaded.address, source, loaded.nbytes)
            arrival.watch.stop(self._stream)
        with self._gate.lock:
            arrival.submitted = True
            self._gate.notify()

    def _awaited(self, lease: MemoryLease) -> bool:
        with self._gate.lock:
            while not all(arrival.submitted or arrival.failed for arrival in lease.awaited):
                self._gate.wait()
            return not any(arrival.failed for arrival in lease.awaited)
