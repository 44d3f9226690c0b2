"""Copies objects to the device, on one stream for all slots, while kernels of other requests run."""

from __future__ import annotations

import threading
from time import perf_counter

import numpy as np

from kaas.executor.cache.lease import MemoryLease
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.device.streams import Stream


class HostToDevice:
    """The stream of copies to the device. Use it inside `device.context`."""

    def __init__(self, stream: Stream, monitor: DeviceMonitor) -> None:
        self._stream = stream
        self._monitor = monitor
        self._submitting = threading.Lock()  # so that each copy is between its own two events

    def copy(self, lease: MemoryLease) -> bool:
        """Submit the copies of objects that are new on the device, through host memory where the cache keeps them.

        Returns:
            True once other requests have submitted their copies of this request's objects; False if one failed.
        """
        try:
            for key in lease.loaded:
                self._submit(lease, key)
        except BaseException:
            with self._monitor.lock:
                for copy in lease.copies.values():
                    copy.failed = not copy.submitted
                self._monitor.notify()
            raise
        return not lease.awaited or self._wait_for_others(lease)

    def synchronize(self) -> None:
        """Wait for all submitted copies."""
        self._stream.synchronize()

    def close(self) -> None:
        """Free the stream."""
        self._stream.close()

    def _submit(self, lease: MemoryLease, key: bytes) -> None:
        loaded, source = lease.loaded[key], lease.sources[key]
        copy, hosted = lease.copies[key], lease.host_loaded.get(key)
        if hosted is not None:
            began = perf_counter()
            hosted.memory.data[: hosted.nbytes] = np.frombuffer(source, np.uint8)
            lease.hosting_s += perf_counter() - began
            source = hosted.memory.address
        with self._submitting:
            copy.events.start(self._stream)
            if source is not None:
                self._stream.copy_in(loaded.home.written_at(loaded.address), source, loaded.nbytes)
            copy.events.stop(self._stream)
        with self._monitor.lock:
            copy.submitted = True
            self._monitor.notify()

    def _wait_for_others(self, lease: MemoryLease) -> bool:
        with self._monitor.lock:
            while not all(copy.submitted or copy.failed for copy in lease.awaited):
                self._monitor.wait()
            return not any(copy.failed for copy in lease.awaited)
