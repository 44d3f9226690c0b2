"""Waiting for events of a connection: asleep, or spinning if an event is likely to come soon."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable
from time import monotonic

SOON_S = 1e-3
"""A wait that ends within this time is short."""
AWAY_S, ASLEEP_S = 0.3e-3, 0.25
"""A thread that yields and is away for longer than the first shares its processor: it does not spin for the second."""


class AdaptivePoll:
    """An edge-triggered epoll. Each event reaches one thread, however many wait.

    To wake a thread of an idle processor takes 20 to 50 μs, or more on a virtual machine, and the threads that hand a
    request on meanwhile are moved between processors. So after a short wait the next wait begins by spinning, as KVM
    does for a guest (halt polling) and CUDA by default for a device. One thread spins, for as long as a short wait may
    last, and yields to all other threads that can run.
    """

    def __init__(self, files: Iterable[int]) -> None:
        """files: descriptors; an event says that there is something to read."""
        self._epoll = select.epoll()
        for file in files:
            self._epoll.register(file, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        self._spinning = threading.Lock()
        self._soon = False
        self._asleep_until_s = 0.0

    def wait(self, idle: bool) -> int:
        """Return the events of one file. idle: this process does nothing else, so no thread waits for Python's lock."""
        began_s = monotonic()
        found: list[tuple[int, int]] = []
        if idle and self._soon and began_s >= self._asleep_until_s and self._spinning.acquire(blocking=False):
            try:
                found = self._look(began_s)
            finally:
                self._spinning.release()
        [(_, events)] = found or self._epoll.poll(None, 1)
        self._soon = monotonic() - began_s < SOON_S
        return events

    def _look(self, now_s: float) -> list[tuple[int, int]]:
        """Spin for as long as a short wait may last; return the event that comes, if one does."""
        end_s = now_s + SOON_S
        while now_s < end_s:
            os.sched_yield()
            found = self._epoll.poll(0, 1)
            looked_s, now_s = now_s, monotonic()
            if now_s - looked_s > AWAY_S:
                self._asleep_until_s = now_s + ASLEEP_S
                return found
            if found:
                return found
        return []

    def close(self) -> None:
        self._epoll.close()
