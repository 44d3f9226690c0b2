"""Page-locked host memory that is used again, since locking pages takes a driver milliseconds."""

from __future__ import annotations

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_memory import HostMemory


class PageLockedBuffers:
    """Unused buffers by size, for callers that want a buffer of exactly that size.

    Unlocking pages takes a driver as long as locking them, and may wait for the device. Surplus buffers are therefore
    only put into `leaving`, and closed where no other thread waits.

    Fields:
        idle_bytes: bytes of the unused buffers. leaving: buffers to be closed.
    """

    def __init__(self, device: OpenDevice) -> None:
        self._device = device
        self._idle: dict[int, list[HostMemory]] = {}
        self.idle_bytes = 0
        self.leaving: list[HostMemory] = []

    def take(self, nbytes: int, idle_bytes: int) -> HostMemory | None:
        """Return a buffer; None if the driver locks no more memory. idle_bytes: the most that may stay unused."""
        same = self._idle.get(nbytes)
        if same:
            self.idle_bytes -= nbytes
            return self._pop(nbytes)
        self.trim(idle_bytes)
        try:
            return self._device.allocate_host(nbytes)
        except OutOfDeviceMemory:
            return None

    def give(self, buffer: HostMemory) -> None:
        """Add an unused buffer."""
        self._idle.setdefault(buffer.nbytes, []).append(buffer)
        self.idle_bytes += buffer.nbytes

    def trim(self, keep_bytes: int) -> None:
        """Move buffers beyond keep_bytes to `leaving`, beginning with the size that has been here for longest."""
        while self.idle_bytes > keep_bytes:
            buffer = self._pop(next(iter(self._idle)))
            self.idle_bytes -= buffer.nbytes
            self.leaving.append(buffer)

    def take_leaving(self) -> list[HostMemory]:
        """Return the buffers in `leaving`, which the caller must close."""
        leaving, self.leaving = self.leaving, []
        return leaving

    def _pop(self, nbytes: int) -> HostMemory:
        same = self._idle[nbytes]
        buffer = same.pop()
        if not same:
            del self._idle[nbytes]
        return buffer
