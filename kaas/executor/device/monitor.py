"""The shared state of an executor's threads: the lock, the error that ends the device, the device's context."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from kaas.errors import DeviceLost, DeviceUnavailable
from kaas.executor.device.device import OpenDevice


class DeviceMonitor:
    """The monitor of an executor: a lock and a condition, on which threads wait until the state has changed.

    Once the device is lost or the executor is closed, all threads that wait or arrive get an error.

    Fields:
        lock: for decisions, which are short. No thread holds it during a call of the device, a fetch or a copy.
        lost: the first error of a lost device.
        closed: True once the executor has freed everything.
    """

    __slots__ = ("_changed", "_waiting", "closed", "lock", "lost")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lost: DeviceLost | None = None
        self.closed = False
        self._changed = threading.Condition(self.lock)
        self._waiting = 0

    def check(self) -> None:
        """Check that the device can be used.

        Raises:
            DeviceLost: a new error for each caller, since raising adds a traceback.
            DeviceUnavailable: the executor is closed.
        """
        if self.lost is not None:
            raise DeviceLost(self.lost.message, **self.lost.fields)
        if self.closed:
            raise DeviceUnavailable("this executor is closed")

    def wait(self) -> None:
        """Wait until the state has changed. Needs the lock.

        Raises:
            DeviceLost, DeviceUnavailable: as `check`.
        """
        self.check()  # otherwise the state may never change again
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1
        self.check()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Release the lock for the body of the `with` statement."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def notify(self) -> None:
        """Wake the waiting threads after a change. Needs the lock."""
        if self._waiting:
            self._changed.notify_all()

    def lose(self, error: DeviceLost) -> None:
        """Mark the device as lost. The first error is kept."""
        with self.lock:
            if self.lost is None:
                self.lost = error
            self.notify()

    def close(self) -> None:
        """Mark the executor as closed. Needs the lock."""
        self.closed = True
        self.notify()


class DeviceContext:
    """Enters the device's context in the calling thread. A DeviceLost from the body marks the device as lost."""

    __slots__ = ("_device", "_monitor")

    def __init__(self, device: OpenDevice, monitor: DeviceMonitor) -> None:
        self._device = device
        self._monitor = monitor

    def __enter__(self) -> None:
        self._monitor.check()
        self._device.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DeviceLost):
            self._monitor.lose(error)
        else:
            self._device.leave()
