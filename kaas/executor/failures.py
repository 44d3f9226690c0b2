"""Facts that an executor adds to an error: the request that caused it, printed text, the kernels that ran."""

from __future__ import annotations

import threading
from collections import Counter
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


class PrintedText:
    """The text that kernels print on a device, which does not show whose kernels do. Any thread may call the methods.

    A request gets text that only kernels of its client can have printed. All text goes to the log.

    Args:
        take: returns the text since the last call. log: gets (client, text); None: there is no log.
    """

    def __init__(self, take: Callable[[], str], log: Callable[[str, str], None] | None) -> None:
        self._take, self._log = take, log
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()  # requests that print, by client
        self._printing: set[str] = set()  # clients whose requests have run since text was last taken
        self._lost: dict[str, str] = {}

    def begin(self, client: str) -> None:
        """Take in that a request begins whose kernels may print."""
        with self._lock:
            self._running[client] += 1
            self._printing.add(client)

    def end(self, client: str) -> str:
        """Take in that such a request has ended; return its text."""
        with self._lock:
            self._running[client] -= 1
            text = self._taken(client)
            self._running += Counter()  # without those that run no more
            self._printing = {*self._running}
            return text

    def of_lost(self, client: str) -> str:
        """Return the text of a request that ran when the device was lost, whose kernels may print or not."""
        with self._lock:
            text = self._lost.get(client, "") + self._taken(client)
            self._lost[client] = text.encode(errors="replace")[-PRINTED_BYTES:].decode(errors="ignore")
            return self._lost[client]

    def _taken(self, client: str) -> str:
        text = self._take()
        if text and self._log is not None:
            self._log(client, text)
        return text if self._printing <= {client} else ""


class Failures:
    """The errors of one executor. Any thread may call the methods."""

    def __init__(self, device: OpenDevice, monitor: DeviceMonitor, printed: PrintedText) -> None:
        self._device = device
        self._printed = printed
        self._monitor = monitor
        self._overran = False

    def overrun(self, watched: Watched) -> None:
        """End a request that has run for too long, and the device's context with all requests on it."""
        watched.running = self.end(watched.task, f"ran longer than its limit of {watched.limit_s} s, and was ended")

    def end(self, task: str, why: str) -> tuple[str, ...]:
        """End a request, and the device's context with all requests on it. Return the kernels that ran."""
        device = self._device.info().name
        self._overran = True
        error = DeviceLost(f"{device}: kTask {task!r} {why}", task=task, device=device, **_TIMED_OUT)
        self._monitor.lose(error, ended=True)
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
            error.printed = self._printed.of_lost(client)
        if watched is not None and watched.exceeded:
            raise _exceeded(error, task, watched) from error
        if self._overran and (lost := self._monitor.lost) is not None and lost.message != error.message:
            raise DeviceLost(lost.message, **{**lost.fields, "printed": error.printed}) from error


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
