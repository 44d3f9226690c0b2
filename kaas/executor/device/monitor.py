"""What the threads of an executor share: the lock, the error that ends the device, and the context that they enter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from kaas.errors import DeviceLost, DeviceUnavailable
from kaas.executor.device.device import OpenDevice


class DeviceMonitor:
    """The monitor of an executor: threads that cannot go on wait in it until something has changed.

    Once the device is lost, or the executor closed, all threads that wait or come get an error.

    Fields:
        lock: for decisions, which never take long: no thread holds it during a call of the device, a fetch or a copy.
        lost: the first error that said that the device is lost.
        closed: True once everything has been given back.
    """

    __slots__ = ("_changed", "_waiting", "closed", "lock", "lost")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lost: DeviceLost | None = None
        self.closed = False
        self._changed = threading.Condition(self.lock)
        self._waiting = 0

    def check(self) -> None:
        """Check that the device is there.

        Raises:
            DeviceLost: a new error for each caller, since it gets a traceback.
            DeviceUnavailable: the executor is closed.
        """
        if self.lost is not None:
            raise DeviceLost(self.lost.message, **self.lost.fields)
        if self.closed:
            raise DeviceUnavailable("this executor is closed")

    def wait(self) -> None:
        """Wait until something has changed. Needs the lock.

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
        """Leave the lock for a while."""
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def notify(self) -> None:
        """Take in that something has changed. Needs the lock."""
        if self._waiting:
            self._changed.notify_all()

    def lose(self, error: DeviceLost) -> None:
        """Take in that the device is lost."""
        with self.lock:
            if self.lost is None:
                self.lost = error
            self.notify()

    def close(self) -> None:
        """Take in that everything has been given back. Needs the lock."""
        self.closed = True
        self.notify()


class DeviceContext:
    """The device's context, for the calling thread; an error of a lost device ends everything."""

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
