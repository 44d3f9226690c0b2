"""A thread that calls functions at given times, and ends when it is idle."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

LINGER_S = 10.0
"""The thread ends when it was idle for so long."""


class TimerThread:
    """Calls functions at given times, on one thread that starts with the first function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()  # itself, not the Condition, in `with`: Ctrl-C cannot leave that locked
        self._changed = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Callable[[], Any]]] = []
        self._numbers = count()
        self._closed = False
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, do: Callable[[], Any]) -> None:
        """Call a function once, after some seconds, unless `close` comes before. It must neither block nor raise."""
        with self._lock:
            if self._closed:
                return
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._numbers), do))
            if self._thread is not None and self._thread.is_alive():
                self._changed.notify()
            else:  # or its start was interrupted
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread, and drop the functions that it has not called."""
        with self._lock:
            self._closed = True
            self._heap.clear()
            self._changed.notify()

    def _run(self) -> None:
        while (do := self._next()) is not None:
            do()

    def _next(self) -> Callable[[], Any] | None:
        with self._lock:
            while not self._closed and self._thread is threading.current_thread():
                if self._heap:
                    left_s = self._heap[0][0] - time.monotonic()
                    if left_s <= 0:
                        return heapq.heappop(self._heap)[2]
                    self._changed.wait(left_s)
                elif not self._changed.wait(LINGER_S) and not self._heap:
                    break
            if self._thread is threading.current_thread():
                self._thread = None
            return None
