"""Page-locked host memory that is used again: locking pages takes a driver milliseconds."""

from __future__ import annotations

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.memory import HostMemory


class PageLockedBuffers:
    """Unused buffers, by size, for those who want one of just that size.

    To unlock pages, as to lock them, takes a driver long, and it may wait for the device: what has to leave is only set
    aside here, to be closed where no caller waits for it.

    Fields:
        idle_bytes: of the buffers that may be taken. leaving: those that may not any more.
    """

    def __init__(self, device: OpenDevice) -> None:
        self._device = device
        self._idle: dict[int, list[HostMemory]] = {}
        self.idle_bytes = 0
        self.leaving: list[HostMemory] = []

    def take(self, nbytes: int, idle_bytes: int) -> HostMemory | None:
        """A buffer; None if the driver locks no more memory. idle_bytes: so much may lie here unused afterwards."""
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
        self._idle.setdefault(buffer.nbytes, []).append(buffer)
        self.idle_bytes += buffer.nbytes

    def trim(self, keep_bytes: int) -> None:
        """Sets aside what is too much, sizes first of which there have been buffers for the longest time."""
        while self.idle_bytes > keep_bytes:
            buffer = self._pop(next(iter(self._idle)))
            self.idle_bytes -= buffer.nbytes
            self.leaving.append(buffer)

    def take_leaving(self) -> list[HostMemory]:
        """What has been set aside, for the caller to close."""
        leaving, self.leaving = self.leaving, []
        return leaving

    def _pop(self, nbytes: int) -> HostMemory:
        same = self._idle[nbytes]
        buffer = same.pop()
        if not same:
            del self._idle[nbytes]
        return buffer
