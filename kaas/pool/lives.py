"""What an executor's process knows of the lives of its pool: whose calls still count, and what earlier ones left."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaas.pool.events import StartWorker
from kaas.pool.status import WorkerInfo

WRITTEN_AT_ONCE = 4
"""Outputs that were written back and not collected yet; who writes more waits."""


class Post(NamedTuple):
    """Where a worker stands: as what it was started, and the handle of its pool, whose end is its own."""

    start: StartWorker
    pool: Any


@dataclass(frozen=True, slots=True)
class Orphan:
    """A run that nobody waits for any more."""

    client: str
    function: str
    label: str


@dataclass(frozen=True, slots=True)
class Adoption:
    """An executor that outlived a process of its pool, as it answers to the next.

    Fields:
        start: as what it was started. life: the number of the pool's life that now begins for it; calls that wait say
            it. running: what it still runs, by slot. functions: keys of those it has met. cached: keys on its device.
    """

    start: StartWorker
    info: WorkerInfo
    life: int
    running: dict[int, Orphan]
    functions: frozenset[str]
    cached: tuple[bytes, ...]


class Run:
    """An invocation while it runs in a slot. result: what came of it, None while it runs or if it failed."""

    __slots__ = ("ended", "message", "result")

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.ended = False
        self.result: Any = None


class Lives:
    """A pool's process that ends leaves its calls here, each in a thread that it has for itself. With the next life
    they return, so that the new calls can take their places; runs go on to their ends, and that can be waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._life = 0
        self._runs: dict[int, Run] = {}
        self._orphans: dict[int, Run] = {}
        self._written: deque[tuple[bytes, Any]] = deque()

    def begin(self) -> tuple[int, dict[int, bytes]]:
        """A new life: its number, and the messages of what runs, by slot. Outputs that were written back for an earlier
        one are dropped: nobody can name them any more."""
        with self._changed:
            self._life += 1
            self._orphans = dict(self._runs)
            self._written.clear()
            self._changed.notify_all()
            return self._life, {slot: run.message for slot, run in self._orphans.items()}

    def wait(self, life: int) -> None:
        """Until a later life begins."""
        with self._changed:
            self._changed.wait_for(lambda: self._life != life)

    # --- runs

    @contextmanager
    def running(self, slot: int, message: bytes) -> Iterator[Run]:
        run = self._runs[slot] = Run(message)
        try:
            yield run
        finally:
            with self._changed:
                if self._runs.get(slot) is run:
                    del self._runs[slot]
                run.ended = True
                if self._orphans:
                    self._changed.notify_all()

    def orphan(self, life: int, slot: int) -> Any:
        """The result of what ran in a slot when a life began, once it has ended; None if it failed, or at the end of
        that life."""
        with self._changed:
            run = self._orphans.get(slot)
            self._changed.wait_for(lambda: self._life != life or run is None or run.ended)
            if self._life != life or run is None:
                return None
            self._orphans.pop(slot, None)
            return run.result

    # --- outputs that are written back

    def write(self, key: bytes, array: Any) -> None:
        """Hand out an output; waits for room."""
        with self._changed:
            life = self._life
            self._changed.wait_for(lambda: self._life != life or len(self._written) < WRITTEN_AT_ONCE)
            if self._life == life:
                self._written.append((key, array))
                self._changed.notify_all()

    def written(self, life: int) -> tuple[bytes, Any] | None:
        """The next output that was handed out, once there is one; None at the end of that life."""
        with self._changed:
            self._changed.wait_for(lambda: self._life != life or self._written)
            if self._life != life:
                return None
            self._changed.notify_all()
            return self._written.popleft()
