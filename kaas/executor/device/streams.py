"""Streams, and pairs of events that time a part of a stream's work.

Each request makes these calls several times, so only a status that is an error is given to `check`.
"""

from __future__ import annotations

from typing import Any

from cuda.bindings import driver

from kaas.executor.device.driver_errors import call, check


class EventPair:
    """Two events that time a part of a stream's work, on the device's clock."""

    __slots__ = ("_began", "_ended")

    def __init__(self) -> None:
        flags = driver.CUevent_flags.CU_EVENT_DEFAULT
        self._began, self._ended = (call(driver.cuEventCreate, flags) for _ in range(2))

    def start(self, stream: Stream) -> None:
        """Record the first event: the part begins here."""
        if status := driver.cuEventRecord(self._began, stream.handle)[0]:
            check("cuEventRecord", status)

    def stop(self, stream: Stream) -> None:
        """Record the second event: the part ends here."""
        if status := driver.cuEventRecord(self._ended, stream.handle)[0]:
            check("cuEventRecord", status)

    def hold_back(self, stream: Stream) -> None:
        """Make the later work of a stream wait until the part has ended."""
        if status := driver.cuStreamWaitEvent(stream.handle, self._ended, 0)[0]:
            check("cuStreamWaitEvent", status)

    def synchronize(self) -> None:
        """Wait until the part has ended."""
        if status := driver.cuEventSynchronize(self._ended)[0]:
            check("cuEventSynchronize", status)

    def state(self) -> tuple[bool, bool]:
        """Return whether the part has begun, and whether it has ended; a lost device counts as not yet."""
        began, ended = (driver.cuEventQuery(event)[0] for event in (self._began, self._ended))
        return began == driver.CUresult.CUDA_SUCCESS, ended == driver.CUresult.CUDA_SUCCESS

    def seconds(self) -> float:
        """Return the device seconds of the part, which must have ended."""
        status, milliseconds = driver.cuEventElapsedTime(self._began, self._ended)
        if status:
            check("cuEventElapsedTime", status)
        return float(milliseconds) / 1e3

    def close(self) -> None:
        """Free both events."""
        for event in (self._began, self._ended):
            call(driver.cuEventDestroy, event)


class Stream:
    """Work that runs in order. A copy of no bytes makes no call, since it may have no address.

    Fields:
        number: the stream's number for other libraries. kernels: times a request's kernels.
    """

    def __init__(self, handle: Any, kernels: EventPair) -> None:
        self.handle = handle
        self.number = int(handle)
        self.kernels = kernels

    def copy_in(self, address: int, source: Any, nbytes: int) -> None:
        """Copy from host to device.

        `source` is any buffer of bytes, or the address of page-locked bytes. The caller keeps it until the stream is
        synchronized.
        """
        if nbytes and (status := driver.cuMemcpyHtoDAsync(address, source, nbytes, self.handle)[0]):
            check("cuMemcpyHtoDAsync", status)

    def copy_out(self, target: Any, address: int, nbytes: int) -> None:
        """Copy from device to host. `target` is a writable buffer or an address, as the source of `copy_in`."""
        if nbytes and (status := driver.cuMemcpyDtoHAsync(target, address, nbytes, self.handle)[0]):
            check("cuMemcpyDtoHAsync", status)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Copy on the device."""
        if nbytes and (status := driver.cuMemcpyDtoDAsync(target, source, nbytes, self.handle)[0]):
            check("cuMemcpyDtoDAsync", status)

    def clear(self, address: int, nbytes: int) -> None:
        """Fill device memory with zeros."""
        if nbytes and (status := driver.cuMemsetD8Async(address, 0, nbytes, self.handle)[0]):
            check("cuMemsetD8Async", status)

    def synchronize(self) -> None:
        """Wait for all work of the stream."""
        if status := driver.cuStreamSynchronize(self.handle)[0]:
            check("cuStreamSynchronize", status)

    def close(self) -> None:
        """Free the stream."""
        self.kernels.close()
        call(driver.cuStreamDestroy, self.handle)
