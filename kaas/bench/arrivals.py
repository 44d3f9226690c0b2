"""Arrivals of requests of an open loop: endless or finite series of seconds since the beginning, in order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

from kaas.errors import InvalidRequest


def poisson(rate_per_s: float, seed: int = 0) -> Iterator[float]:
    """Yield the arrivals of a Poisson process: gaps are independent and exponential with a mean of 1 / rate.

    Raises:
        InvalidRequest: the rate is not positive.
    """
    _require_rate(rate_per_s)
    gaps = random.Random(seed)
    return itertools.accumulate(iter(lambda: gaps.expovariate(rate_per_s), None))


def poisson_of(rate_per_s: float, count: int, seed: int = 0) -> Iterator[float]:
    """Yield the arrivals of a Poisson process of which each `count` arrivals take exactly count / rate seconds.

    Under this condition they are independent and uniform. A short run then gets the load that it is meant to get: of 50
    arrivals without the condition one run in three misses it by 14 % or more.

    Raises:
        InvalidRequest: the rate is not positive.
    """
    _require_rate(rate_per_s)
    places, block_s = random.Random(seed), count / rate_per_s
    for block in itertools.count():
        yield from sorted((block + places.random()) * block_s for _ in range(count))


def constant(rate_per_s: float) -> Iterator[float]:
    """Yield arrivals with equal gaps. The first one is a gap after the beginning.

    Raises:
        InvalidRequest: the rate is not positive.
    """
    _require_rate(rate_per_s)
    return (number / rate_per_s for number in itertools.count(1))  # not a sum, whose error grows


def recorded(times_s: Iterable[float]) -> Iterator[float]:
    """Yield the arrivals of a trace, relative to its first one. Gaps of any length stay as they are.

    Raises:
        InvalidRequest: a time is earlier than the one before, or the trace is empty. Comes with the time.
    """
    first = last = None
    for time_s in times_s:
        if first is None or last is None:
            first = last = time_s
        if not time_s >= last:
            raise InvalidRequest(f"a trace is in the order of time: {time_s:g} s comes after {last:g} s")
        last = time_s
        yield time_s - first
    if first is None:
        raise InvalidRequest("the trace has no requests")


def _require_rate(rate_per_s: float) -> None:
    if not 0 < rate_per_s < float("inf"):
        raise InvalidRequest(f"a rate is a positive number of requests a second, not {rate_per_s:g}")
