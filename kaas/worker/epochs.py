"""The lives of a pool as an executor's process sees them: whose messages count, and what earlier ones left running."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from kaas.scheduling.events import StartWorker
from kaas.wire.connections.connection import Line, LineLost
from kaas.wire.messages import FromPeer, Need, Run
from kaas.wire.specs import decode_invocation
from kaas.wire.status.status import WorkerInfo
from kaas.worker.deferred_results import Parcels
from kaas.worker.supplies import Supplies


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
        start: as what it was started. running: what it still runs, by slot. functions: keys of those it has met.
        cached: keys on its device.
    """

    start: StartWorker
    info: WorkerInfo
    running: dict[int, Orphan]
    functions: frozenset[str]
    cached: tuple[bytes, ...]


class Life:
    """One life of the pool, as long as it or this process does not end, and all that is only good for it."""

    def __init__(self, name: str, line: Line) -> None:
        """
        Args:
            name: as in the pool's Address.
        """
        self.name = name
        self.line = line
        self.supplies = Supplies(lambda number: line.send(Need(number)))
        self.parcels = Parcels()
        self.over = False
        self._ending = threading.Lock()

    def send(self, header: FromPeer, frames: Sequence[Any] = ()) -> None:
        """To the pool, unless it has ended: what is said of one life means nothing to the next."""
        try:
            self.line.send(header, frames)
        except LineLost:
            return

    def close(self) -> bool:
        """Whoever waits for the pool goes on. Whether it was not over yet."""
        with self._ending:
            ends, self.over = not self.over, True
        self.supplies.close()
        self.parcels.close()
        self.line.close()
        return ends


class Running:
    """An invocation while it runs in a slot, and the life that asked for it.

    Fields:
        frames: those behind the header.
    """

    __slots__ = ("asked", "frames", "invocation", "life")

    def __init__(self, life: Life, asked: Run, frames: Sequence[Any]) -> None:
        self.life = life
        self.asked = asked
        self.invocation = decode_invocation(frames[0])
        self.frames = frames


class Lives:
    """All of them, one after the other: what runs goes on from one to the next. All methods may be called from any
    thread.

    Fields:
        now: the last that began.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._runs: dict[int, Running] = {}
        self.now: Life | None = None

    def begin(self, life: Life) -> dict[int, Running]:
        """What runs, by slot; who had asked for it has ended."""
        with self._changed:
            former, self.now = self.now, life
            left = dict(self._runs)
            self._changed.notify_all()
        if former is not None:
            former.close()
        return left

    def wait(self, name: str) -> None:
        """Until a later life begins."""
        with self._changed:
            self._changed.wait_for(lambda: self.now is not None and self.now.name != name)

    def started(self, run: Running) -> bool:
        """Whether it may run: if its life is over, the next one, which was not told of it, has its slot."""
        with self._lock:
            if run.life is not self.now:
                return False
            self._runs[run.asked.slot] = run
        return True

    def functions(self) -> set[str]:
        """Of what runs."""
        with self._lock:
            return {run.invocation.function for run in self._runs.values()}

    def ended(self, run: Running) -> Life | None:
        """The life that has adopted this run, if its own is over."""
        with self._lock:
            del self._runs[run.asked.slot]
            return None if self.now is run.life else self.now
