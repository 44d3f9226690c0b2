"""What an executor adds to an error on its way out: whose it is, what kernels have printed, who ran for too long."""

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
from kaas.executor.device.monitor import DeviceMonitor
from kaas.executor.watchdog import Watched
from kaas.ktask.graph import KTask

_TIMED_OUT = {"code": 702, "code_name": "CUDA_ERROR_LAUNCH_TIMEOUT"}


class Failures:
    """Of one executor. All methods may be called from any thread."""

    def __init__(self, device: OpenDevice, gate: DeviceMonitor, take_printed: Callable[[str], str]) -> None:
        """
        Args:
            take_printed: takes what kernels have printed, for the log under this client's name.
        """
        self._device = device
        self._take_printed = take_printed
        self._gate = gate
        self._lock = threading.Lock()
        self._printed = ""
        self._overran = False

    def overrun(self, watched: Watched) -> None:
        """A request has run longer than it may: ends it, and the device's context with all that runs there."""
        watched.running = self.end(watched.task, f"ran longer than its limit of {watched.limit_s} s, and was ended")

    def end(self, task: str, why: str) -> tuple[str, ...]:
        """Ends a request, and the device's context with all that runs there. Returns the kernels that ran."""
        device = self._device.info().name
        self._overran = True
        self._gate.lose(DeviceLost(f"{device}: kTask {task!r} {why}", task=task, device=device, **_TIMED_OUT))
        return self._device.cancel()

    def complete(self, error: KaasError, task: KTask, watched: Watched | None = None, client: str = "") -> None:
        """Gives an error what is known about it here.

        Raises:
            DeadlineExceeded, DeviceLost: to be raised instead of it, since a request ran for too long, this one or
                another.
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
        if watched is not None:
            watched.end()  # else the watchdog may still be asking which kernels ran
        if watched is not None and watched.exceeded:
            raise _exceeded(error, task, watched) from error
        if self._overran and (lost := self._gate.lost) is not None and lost.message != error.message:
            raise DeviceLost(lost.message, **{**lost.fields, "printed": error.printed}) from error

    def _all_printed(self, client: str) -> str:
        """Each of those who ran when the device was lost gets all that was printed then."""
        with self._lock:
            printed = self._printed + self._take_printed(client)
            self._printed = printed.encode(errors="replace")[-PRINTED_BYTES:].decode(errors="ignore")
            return self._printed


def _exceeded(error: DeviceLost, task: KTask, watched: Watched) -> DeadlineExceeded:
    """Names the kernels of this kTask that ran then: those of others ran beside it."""
    kernels = tuple(sorted({kernel.symbol for kernel in task.kernels}.intersection(watched.running)))
    named = f" in kernel {' and '.join(kernels)}" if kernels else ""
    return DeadlineExceeded(
        f"kTask {task.label!r} ran longer than the run limit of {watched.limit_s} s, and was ended{named}",
        task=task.label,
        deadline_s=watched.limit_s,
        kernels=kernels,
        printed=error.printed,
    )
