"""The state that the threads of an executor share: the device's context, its lock, its loss, and the run limit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import TracebackType
from typing import Any

import msgspec
from cuda.bindings import driver

from kaas.errors import DeviceLost, DeviceUnavailable
from kaas.executor.device.driver_errors import check


class CurrentContext:
    """The context of a device. Inside a `with` statement it is the calling thread's current one."""

    __slots__ = ("_handle", "_thread")

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._thread = threading.local()

    def enter(self) -> None:
        """Make the context current in the calling thread, unless it stays so."""
        if not hasattr(self._thread, "stays"):
            check("cuCtxPushCurrent", driver.cuCtxPushCurrent(self._handle)[0])

    def leave(self) -> None:
        """Restore the thread's former context, unless this one stays."""
        if not hasattr(self._thread, "stays"):
            check("cuCtxPopCurrent", driver.cuCtxPopCurrent()[0])

    def stay(self) -> None:
        """Make the context current until the calling thread ends. `enter` and `leave` then cost nothing."""
        self.enter()
        self._thread.stays = True

    __enter__ = enter

    def __exit__(self, *_: object) -> None:
        self.leave()


class DeviceMonitor:
    """The monitor of an executor: a lock and a condition, on which threads wait until the state has changed.

    Once the device is lost or the executor is closed, all threads that wait or arrive get an error.

    Fields:
        lock: for decisions, which are short. No thread holds it during a fetch, a copy, or a call that waits for the
            device's work: the watchdog needs the lock to end a kernel for which such a call would wait.
        lost: the first error of a lost device. on_error: called if that is an error of a kernel or of the device.
        closed: True once the executor has freed everything.
    """

    __slots__ = ("_changed", "_waiting", "closed", "lock", "lost", "on_error")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lost: DeviceLost | None = None
        self.closed = False
        self.on_error: Callable[[], object] = lambda: None
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

    def lose(self, error: DeviceLost, *, ended: bool = False) -> None:
        """Mark the device as lost. The first error is kept. ended: this process has ended what ran there."""
        with self.lock:
            if self.lost is None:
                self.lost = error
                if not ended:
                    self.on_error()
            self.notify()

    def close(self) -> None:
        """Mark the executor as closed. Needs the lock."""
        self.closed = True
        self.notify()


class DeviceContext:
    """Enters the device's context in the calling thread. A DeviceLost from the body marks the device as lost."""

    __slots__ = ("_current", "_monitor")

    def __init__(self, current: CurrentContext, monitor: DeviceMonitor) -> None:
        self._current = current
        self._monitor = monitor

    def __enter__(self) -> None:
        self._monitor.check()
        self._current.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DeviceLost):
            self._monitor.lose(error)
            return
        try:
            self._current.leave()
        except DeviceLost:
            if not self._monitor.closed:  # else the executor has ended the context meanwhile
                raise


# --- the run limit


class Watched(msgspec.Struct, eq=False):
    """One request under a limit, which counts from `Watchdog.begin`. A Struct, since every request makes one.

    Fields:
        task: the label of the kTask. exceeded: the request ran longer, and the watchdog has ended it.
        running: symbols of the kernels that ran on the device at that moment.
    """

    task: str
    limit_s: float
    exceeded: bool = False
    running: tuple[str, ...] = ()


class Watchdog:
    """The limits of running requests. Its thread starts with the first limit, and ends with `close`."""

    def __init__(self, overrun: Callable[[Watched], None]) -> None:
        """Call `overrun` with each request as soon as it has run for too long. It must not wait."""
        self._overrun = overrun
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._limits: dict[Watched, float] = {}
        self._wakes_s = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def begin(self, watched: Watched) -> None:
        """Watch a request from now on."""
        ends_s = monotonic() + min(watched.limit_s, threading.TIMEOUT_MAX)  # an int may be too large for a float
        with self._lock:
            self._limits[watched] = ends_s
            if self._thread is None and not self._closed:
                thread = threading.Thread(target=self._watch, name="kaas watchdog", daemon=True)
                thread.start()
                self._thread = thread
            elif ends_s < self._wakes_s:
                self._changed.notify()

    def end(self, watched: Watched) -> None:
        """Remove a request. After this call `exceeded` and `running` do not change any more."""
        with self._lock:
            self._limits.pop(watched, None)  # no wake-up: most requests end before their limit

    def close(self) -> None:
        """End the thread, and wait for that."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                now_s = monotonic()
                for watched in sorted(self._limits, key=self._limits.__getitem__):
                    if self._limits[watched] > now_s:
                        break
                    del self._limits[watched]
                    watched.exceeded = True
                    self._overrun(watched)
                self._wakes_s = min(self._limits.values(), default=math.inf)
                self._changed.wait(min(self._wakes_s - now_s, threading.TIMEOUT_MAX))
