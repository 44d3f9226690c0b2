"""Page-locked host memory that is used again: locking pages takes a driver milliseconds."""

from __future__ import annotations

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device import Device, HostMemory


class HostBuffers:
    """Buffers that nobody uses, by size, for those who want one of just that size.

    Fields:
        idle_bytes: what they take together.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._idle: dict[int, list[HostMemory]] = {}
        self.idle_bytes = 0

    def take(self, nbytes: int, idle_bytes: int) -> HostMemory | None:
        """A buffer; None if the driver locks no more memory. idle_bytes: so much may lie here unused afterwards."""
        same = self._idle.get(nbytes)
        if same:
            buffer = same.pop()
            if not same:
                del self._idle[nbytes]
            self.idle_bytes -= nbytes
            return buffer
        self.trim(idle_bytes)
        for _ in range(2):
            try:
                return self._device.allocate_host(nbytes)
            except OutOfDeviceMemory:
                self.trim(0)
        return None

    def give(self, buffer: HostMemory) -> None:
        self._idle.setdefault(buffer.nbytes, []).append(buffer)
        self.idle_bytes += buffer.nbytes

    def trim(self, keep_bytes: int) -> None:
        """Gives memory back to the driver, those sizes first that were not given for the longest time."""
        while self.idle_bytes > keep_bytes:
            size = next(iter(self._idle))
            self._idle[size].pop().close()
            self.idle_bytes -= size
            if not self._idle[size]:
                del self._idle[size]
