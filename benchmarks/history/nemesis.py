"""The nemesis: faults at times that a seed sets, some at a time, and rests between them."""

from __future__ import annotations

import errno
import os
import random
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.history.network import WAYS

FAULTS_S, REST_S = 35.0, 27.0
"""Seconds with faults, and then without. A rest is longer than the checker's limit."""
EVERY_S = 1.5
"""The mean time between two faults."""
STEPS_S = (-3600.0, 0.0, 3600.0)
"""By how much the wall clock may be wrong."""
LONGEST_S = {
    "kill the server": 0.0,
    "kill an executor": 0.0,
    "kill a step's process": 0.0,
    "kill a program": 0.0,
    "stop the server": 6.0,
    "stop an executor": 6.0,
    "stop a step's process": 6.0,
    "stop a program": 6.0,
    "cut a link": 20.0,
    "fill the disk": 8.0,
    "step the clock": 0.0,
}
"""The faults, and the longest time that one may last."""
SHORTEST_S = 0.2


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of the plan.

    Fields:
        at_s: from the beginning of the run. for_s: how long it lasts, 0 if it has no end. whom: the number of the
            process or client, modulo their count. how: a number that chooses its manner.
    """

    at_s: float
    what: str
    for_s: float
    whom: int
    how: int

    @property
    def way(self) -> str:
        """Return the way in which a link is cut."""
        return WAYS[self.how % len(WAYS)]

    @property
    def ahead_s(self) -> float:
        """Return the seconds by which the clock is ahead from then on."""
        return STEPS_S[self.how % len(STEPS_S)]


def plan(seed: int, seconds: float) -> Iterator[PlannedFault]:
    """Yield the faults of a run, in order. Each kind comes before any comes again."""
    chance = random.Random(f"{seed} faults")
    begins_s = 0.0
    deck: list[str] = []
    while begins_s < seconds:
        ends_s = min(begins_s + FAULTS_S, seconds)
        at_s = begins_s + chance.expovariate(1 / EVERY_S)
        while at_s < ends_s:
            if not deck:
                deck = chance.sample([*LONGEST_S], len(LONGEST_S))
            what = deck.pop()
            longest_s = min(LONGEST_S[what], ends_s - at_s)
            for_s = min(longest_s, SHORTEST_S + chance.random() ** 2 * longest_s) if LONGEST_S[what] else 0.0
            yield PlannedFault(at_s, what, for_s, chance.randrange(1000), chance.randrange(1000))
            at_s += chance.expovariate(1 / EVERY_S)
        begins_s += FAULTS_S + REST_S


def rests(seconds: float) -> Iterator[float]:
    """Yield when the nemesis begins to rest, for REST_S each time."""
    at_s = 0.0
    while at_s < seconds:
        yield min(at_s + FAULTS_S, seconds)
        at_s += FAULTS_S + REST_S


# --- harm, each with a function that undoes it


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> Callable[[], None]:
    """Let a process stand still. Return a function that lets it go on."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    return partial(_go_on, pid)


def _go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def fill(file: Path) -> Callable[[], None]:
    """Fill a disk with a file. Return a function that removes it."""
    with file.open("wb", buffering=0) as opened:
        disk = os.fstatvfs(opened.fileno())
        for blocks in range(disk.f_bfree, 0, -1):
            try:
                os.posix_fallocate(opened.fileno(), 0, blocks * disk.f_frsize)
                break
            except OSError as error:  # another process has written since
                if error.errno != errno.ENOSPC:
                    raise
    return partial(file.unlink, missing_ok=True)


def step(clock: Path, ahead_s: float) -> None:
    """Set by how many seconds the wall clock is ahead, for all processes that read this file."""
    with clock.open("r+b") as file:
        file.write(struct.pack("d", ahead_s))


def one_of(found: Sequence[int], whom: int) -> int | None:
    return found[whom % len(found)] if found else None
