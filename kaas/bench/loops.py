"""The loops that a command line asks for: callers that wait, rates, and the arrivals of a trace."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from kaas.bench.arrivals import constant, poisson, recorded
from kaas.bench.load import TICK_S, Completion, Load
from kaas.errors import InvalidRequest
from kaas.ktask.draw import printable

MOST = 1e9
MOST_RATES = 1000
MOST_CALLERS = 10_000
"""The most requests outstanding: a closed loop sends all of them before it takes in a reply."""
MOST_ARRIVALS = 10_000_000
"""The most requests of a trace: 8 bytes each, and 170 if they are lost."""
LONGEST_LINE = 1 << 20
DRAIN_S = 30.0
"""Longest wait for the last replies of a trace."""


class Arrivals(Enum):
    """The arrivals of an open loop."""

    POISSON = "poisson"
    CONSTANT = "constant"

    def at(self, rate_per_s: float, seed: int) -> Iterator[float]:
        """Return the arrivals at a rate. seed: of random ones."""
        return poisson(rate_per_s, seed) if self is Arrivals.POISSON else constant(rate_per_s)


class Loop(NamedTuple):
    """A loop to measure.

    Fields:
        opened: its queue may grow. rising: a later loop of the same series has a higher rate. callers: of a
            closed loop. whole: it has an end, to which it runs. rate_per_s: of the arrivals, if they have one.
    """

    title: str
    opened: bool
    begin: Callable[[Load], Iterator[Completion | None]]
    rising: bool = False
    callers: int = 0
    whole: bool = False
    rate_per_s: float | None = None


def loops(
    concurrency: str | None,
    rate: str | None,
    trace: Path | None,
    arrivals: Arrivals,
    seed: int = 0,
    limit_s: float = math.inf,
) -> list[Loop]:
    """Return the loops, closed ones first; by default one of a single caller.

    Args:
        concurrency: requests outstanding, as "1,4,16".
        rate: requests a second, as "100,1000"; "10:1000" doubles from 10 to 1000, "10:1000:90" adds 90 each time.
        trace: a file with a time in seconds on each line, in order; what follows a comma is left out.
        arrivals: of the rates.
        seed: of random arrivals.
        limit_s: of a measurement: what comes later in the trace is not read.

    Raises:
        InvalidRequest
    """
    counts = _numbers(concurrency or (None if rate or trace else "1"), "--concurrency", int)
    if any(count > MOST_CALLERS for count in counts):
        raise InvalidRequest(f"--concurrency takes {MOST_CALLERS} at most, not {concurrency}")
    found = [
        Loop(f"concurrency {count}", False, partial(Load.closed, outstanding=count), callers=count) for count in counts
    ]
    for part in (rate or "").split(",") if rate is not None else ():
        ends = _numbers(part, "--rate", float, ":")
        series = ends if len(ends) == 1 else _range(part, *ends)
        for each in series:
            begin = partial(_opened, partial(arrivals.at, each, seed))
            title = f"rate {str(each).removesuffix('.0')}/s"  # all digits: two rates have two titles
            found.append(Loop(title, True, begin, rising=len(series) > 1, rate_per_s=each))
    if trace is not None:
        times = _times(trace, limit_s)
        found.append(
            Loop(f"trace {printable(trace.name)}", True, partial(_opened, partial(recorded, times)), whole=True)
        )
    return found


def _opened(arrivals: Callable[[], Iterator[float]], load: Load) -> Iterator[Completion | None]:
    yield from load.opened(arrivals())
    until_s = perf_counter() + DRAIN_S
    while load.outstanding and perf_counter() < until_s:  # of a trace, which ends
        yield from load.drain(TICK_S)
        yield None  # so that the caller can stop


def _range(text: str, first: float, last: float, step: float | None = None, *more: float) -> list[float]:
    if more or first >= last:
        raise InvalidRequest(f"--rate takes a range that rises, as 10:1000, or 10:1000:90 with a step, not {text!r}")
    found = [first]
    while (value := _rounded(found[-1] + step if step else found[-1] * 2)) <= last:
        if value == found[-1] or len(found) == MOST_RATES:
            raise InvalidRequest(f"--rate takes a range of {MOST_RATES} rates at most, not {text!r}")
        found.append(value)
    return found if found[-1] == last else [*found, last]


def _rounded(value: float) -> float:
    """Return a sum without the error of its last digits: 0.3 for 0.1 + 0.1 + 0.1."""
    return float(f"{value:.12g}")


def _times(file: Path, limit_s: float) -> array[float]:
    """Return the arrivals in a file, to the first one that is more than limit_s seconds after the beginning.

    Raises:
        InvalidRequest: a line has no time, or an earlier one than the line before; or no line has one.
    """
    times = array("d")
    with file.open(errors="replace", encoding="utf-8-sig") as lines:  # a trace may be larger than the memory
        for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), ""), 1):
            if len(line) == LONGEST_LINE:
                raise InvalidRequest(f"{file}:{number}: a line has more than {LONGEST_LINE:,} letters")
            if not (text := line.partition(",")[0].strip()):
                continue
            try:
                time_s = math.nan if "_" in text else float(text)
            except ValueError:
                time_s = math.nan
            if not math.isfinite(time_s):
                raise InvalidRequest(f"{file}:{number}: a line begins with seconds, not {text[:40]!r}")
            if times and time_s < times[-1]:
                late = f"{time_s:g} s comes after {times[-1]:g} s"
                raise InvalidRequest(f"{file}:{number}: a trace is in the order of time: {late}")
            times.append(time_s)
            if time_s - times[0] > limit_s:
                break
            if len(times) > MOST_ARRIVALS:
                raise InvalidRequest(f"{file}: a trace has {MOST_ARRIVALS:,} requests within --limit at most")
    if not times:
        raise InvalidRequest(f"{file}: the trace has no requests")
    return times


def _numbers(text: str | None, option: str, kind: Callable[[str], Any], separator: str = ",") -> list[Any]:
    """Return the numbers of an option, as in "1,4,16" or "10:1000".

    Raises:
        InvalidRequest
    """
    try:
        found = [kind(part) for part in text.split(separator)] if text is not None else []
    except ValueError as error:
        numbers = "whole numbers, as 1,4,16" if kind is int else "numbers, as 10, or 10:1000"
        raise InvalidRequest(f"{option} takes {numbers}, not {text!r}") from error
    if any(not 0 < number < MOST for number in found):
        raise InvalidRequest(f"{option} takes positive numbers, not {text!r}")
    return found
