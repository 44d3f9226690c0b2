"""Ends requests that exceed the run limit. One thread for each executor sleeps until the next limit."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from time import monotonic

import msgspec


class Watched(msgspec.Struct, eq=False):
    """One request under a limit, which counts from `begin`. A Struct, since every request makes one.

    Fields:
        task: the label of the kTask. exceeded: the request ran longer, and the watchdog has ended it.
        running: symbols of the kernels that ran on the device at that moment.
    """

    watchdog: Watchdog
    task: str
    limit_s: float
    exceeded: bool = False
    running: tuple[str, ...] = ()

    def begin(self) -> None:
        """Start the limit's time."""
        self.watchdog.begin(self)

    def end(self) -> None:
        """Remove the request from its watchdog."""
        self.watchdog.end(self)


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
