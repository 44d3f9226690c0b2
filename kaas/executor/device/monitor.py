"""What the threads of an executor share: the lock, the error that ends the device, and the context that they enter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from kaas.errors import DeviceLost, DeviceUnavailable
from kaas.executor.device.device import OpenDevice


class DeviceMonitor:
    """Whoever cannot go on waits until something has changed. Once the device is lost, or the executor closed, all that
    wait, or come, are told.

    Fields:
        lock: for decisions, which never take long: nobody holds it while a device, a fetch or a copy is under way.
        lost: the first error that told that the device is.
        closed: whether everything has been given back.
    """

    __slots__ = ("_changed", "_waiting", "closed", "lock", "lost")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lost: DeviceLost | None = None
        self.closed = False
        self._changed = threading.Condition(self.lock)
        self._waiting = 0

    def check(self) -> None:
        """
        Raises:
            DeviceLost: an error of its own for each who asks, since it gets a traceback.
            DeviceUnavailable: the executor is closed.
        """
        if self.lost is not None:
            raise DeviceLost(self.lost.message, **self.lost.fields)
        if self.closed:
            raise DeviceUnavailable("this executor is closed")

    def wait(self) -> None:
        """Within the lock: until something has changed.

        Raises:
            DeviceLost
        """
        self.check()  # else nothing may change any more
        self._waiting += 1
        try:
            self._changed.wait()
        finally:
            self._waiting -= 1
        self.check()

    @contextmanager
    def left(self) -> Iterator[None]:
        """Within the lock: leaves it for a while."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def notify(self) -> None:
        """Within the lock: something has changed."""
        if self._waiting:
            self._changed.notify_all()

    def lose(self, error: DeviceLost) -> None:
        """The device is lost."""
        with self.lock:
            if self.lost is None:
                self.lost = error
            self.notify()

    def close(self) -> None:
        """Within the lock: everything has been given back."""
        self.closed = True
        self.notify()


class DeviceContext:
    """The device's context, for the calling thread, and the end of everything once the device is lost."""

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
