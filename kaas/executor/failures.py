"""Facts that an executor adds to an error: the request that caused it, printed text, the kernels that ran."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kaas.errors import (
    PRINTED_BYTES,
    DeadlineExceeded,
    DeviceError,
    DeviceLost,
    InvalidCode,
    InvalidRequest,
    KaasError,
    OutOfDeviceMemory,
)
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.monitor import DeviceMonitor, Watched
from kaas.ktask.graph import KTask
from kaas.ktask.symbols import source_name

_TIMED_OUT = {"code": 702, "code_name": "CUDA_ERROR_LAUNCH_TIMEOUT"}


class Failures:
    """The errors of one executor. Any thread may call the methods."""

    def __init__(self, device: OpenDevice, monitor: DeviceMonitor, take_printed: Callable[[str], str]) -> None:
        """Use `take_printed` for the text that kernels have printed; its argument is the client, for the log."""
        self._device = device
        self._take_printed = take_printed
        self._monitor = monitor
        self._lock = threading.Lock()
        self._printed = ""
        self._overran = False

    def overrun(self, watched: Watched) -> None:
        """End a request that has run for too long, and the device's context with all requests on it."""
        watched.running = self.end(watched.task, f"ran longer than its limit of {watched.limit_s} s, and was ended")

    def end(self, task: str, why: str) -> tuple[str, ...]:
        """End a request, and the device's context with all requests on it. Return the kernels that ran."""
        device = self._device.info().name
        self._overran = True
        self._monitor.lose(DeviceLost(f"{device}: kTask {task!r} {why}", task=task, device=device, **_TIMED_OUT))
        return self._device.cancel()

    def complete(self, error: KaasError, task: KTask, watched: Watched | None = None, client: str = "") -> None:
        """Add to an error the facts that are known here. The watchdog no longer watches the request.

        Raises:
            DeadlineExceeded, DeviceLost: instead of the error, since this request or another one ran for too long.
        """
        if isinstance(error, DeviceError | InvalidCode | InvalidRequest) and not hasattr(error, "task"):
            error.task = task.label
        if isinstance(error, DeviceError) and not hasattr(error, "device"):
            error.device = self._device.info().name
        if isinstance(error, OutOfDeviceMemory) and not hasattr(error, "buffer"):
            largest = task.largest_buffer
            error.buffer, error.buffer_bytes = largest.name, largest.nbytes
        if not isinstance(error, DeviceLost):
            return
        if not hasattr(error, "printed"):
            error.printed = self._all_printed(client)
        if watched is not None and watched.exceeded:
            raise _exceeded(error, task, watched) from error
        if self._overran and (lost := self._monitor.lost) is not None and lost.message != error.message:
            raise DeviceLost(lost.message, **{**lost.fields, "printed": error.printed}) from error

    def _all_printed(self, client: str) -> str:
        """Return all printed text, for each request that ran when the device was lost."""
        with self._lock:
            printed = self._printed + self._take_printed(client)
            self._printed = printed.encode(errors="replace")[-PRINTED_BYTES:].decode(errors="ignore")
            return self._printed


def _exceeded(error: DeviceLost, task: KTask, watched: Watched) -> DeadlineExceeded:
    """Return the error, with the kernels that ran and belong to this kTask, not to a request in parallel."""
    kernels = tuple(sorted({kernel.symbol for kernel in task.kernels}.intersection(watched.running)))
    named = f" in kernel {' and '.join(map(source_name, kernels))}" if kernels else ""
    return DeadlineExceeded(
        f"kTask {task.label!r} ran longer than the run limit of {watched.limit_s} s, and was ended{named}",
        task=task.label,
        deadline_s=watched.limit_s,
        kernels=kernels,
        printed=error.printed,
    )
