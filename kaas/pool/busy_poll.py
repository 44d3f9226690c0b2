"""Staying awake for a short run: a thread that sleeps is woken late, and finds its caches cold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sized

SOON_S = 1e-3
"""A run that is answered within this is a short one, and the next is waited for awake for as long."""


class BusyPoll:
    """Keeps a pool's loop polling, instead of asleep, while one short run is all that the pool has to do.

    A thread that waits for its device does so too, by CUDA's default (cudaDeviceScheduleAuto). It costs processor time
    only while somebody sends short requests one at a time, and nothing where there is only one processor: the executor
    needs that. Whether the last run was a short one tells whether the next is waited for awake. Belongs to that loop.

    Args:
        requests: those of the pool, queued or running, which changes them.
    """

    def __init__(self, requests: Sized, loop: asyncio.AbstractEventLoop) -> None:
        self._requests = requests
        self._loop = loop
        self._can = len(os.sched_getaffinity(0)) > 1
        self._short = False
        self._until_s = 0.0
        self._polls = False

    def begun(self, now_s: float) -> None:
        """A run was sent."""
        if self._short and self._can:
            self._until_s = now_s + SOON_S
            if not self._polls:
                self._poll()

    def ended(self, begun_s: float) -> None:
        """A run that began then has its answer."""
        self._until_s = 0.0
        self._short = self._loop.time() - begun_s < SOON_S

    def _poll(self) -> None:
        """With something due in the next turn of the loop, this turn looks for events and does not wait for any."""
        self._polls = len(self._requests) == 1 and self._loop.time() < self._until_s
        if self._polls:
            self._loop.call_soon(self._poll)
