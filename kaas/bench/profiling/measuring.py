"""Throughput and latency of a function with one share: closed loops, over whole windows of the share's time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple

from kaas.bench.load import Completion, Load, Send

BLOCK_WINDOWS, BLOCK_REQUESTS, BLOCK_S = 4, 8, 2.0
"""A block of a measurement has at least so many windows, and so many requests or seconds."""
FEWEST_BLOCKS, MOST_BLOCKS = 3, 9
AGREEING = 0.05
"""Blocks agree if they differ by this part of their median at most."""
LATENCIES, LATENCY_S, FEWEST_LATENCIES = 100, 2.0, 5
"""Latencies are those of so many requests, or of as many as end within so many seconds, but of so many at least."""
DRAIN_S = 60.0


class ShareFigures(NamedTuple):
    """The work of a function on one share of a device.

    Fields:
        rate_per_s: requests a second, while requests wait. p50_s, p99_s: of the latency, while none waits for another.
            requests: that were measured.
    """

    rate_per_s: float
    p50_s: float
    p99_s: float
    requests: int


def measure(send: Send, window_s: float, devices: int, stop: Callable[[], bool]) -> ShareFigures | None:
    """Return what a function does with the share that it has now on each device; None if `stop` returned True.

    Args:
        send: sends a request.
        window_s: the window of the share's time.
        devices: that run the function, at once: the throughput is that of one.
        stop: asks for an early end.

    Raises:
        KaasError: a request failed.
    """
    with _ends(send, 2 * devices, stop) as ends:
        rates = list(_until_they_agree(_rates(ends, window_s, 2 * devices)))
    with _ends(send, devices, stop) as ends:
        latencies = sorted(_latencies(ends, devices))
    if stop():
        return None
    p99_s = latencies[-(-99 * len(latencies) // 100) - 1]
    answered = sum(requests for _, requests in rates)
    return ShareFigures(
        median(rate for rate, _ in rates) / devices, median(latencies), p99_s, answered + len(latencies)
    )


@contextmanager
def _ends(send: Send, callers: int, stop: Callable[[], bool]) -> Iterator[Iterator[Completion]]:
    """Give the ends of requests of so many callers, which send the next request at each end, until `stop`."""
    load = Load(send)

    def ended() -> Iterator[Completion]:
        for end in load.closed(callers):
            if stop():
                return
            if end is not None:
                if end.error is not None:
                    raise end.error
                yield end

    try:
        yield ended()
    finally:
        for _ in load.drain(DRAIN_S, stop):
            pass


def _rates(ends: Iterable[Completion], window_s: float, callers: int) -> Iterator[tuple[float, int]]:
    """Yield the throughput of each block, and its requests.

    A block goes from the first end of a request in one window to the first end in a later one. So it has whole windows
    where requests run at the beginnings of windows, and whole requests where these are longer than a window.
    """
    block: tuple[float, int, int] | None = None  # its begin in seconds, the requests before it, and its first window
    last, windows = -1, 0
    for answered, end in enumerate(ends, 1):
        window = int(end.ended_s // window_s)
        if window == last:
            continue
        last, windows = window, windows + 1
        if block is None:
            if windows > 2 and answered > 2 * callers:  # the first ones have time that was not used before
                block = end.ended_s, answered, window
            continue
        requests, seconds = answered - block[1], end.ended_s - block[0]
        if window - block[2] >= BLOCK_WINDOWS and (requests >= BLOCK_REQUESTS or seconds >= BLOCK_S):
            yield requests / seconds, requests
            block = end.ended_s, answered, window


def _until_they_agree(rates: Iterator[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Yield rates until the last ones agree, or there are enough of them."""
    found: list[float] = []
    for rate, requests in rates:
        yield rate, requests
        found.append(rate)
        last = found[-FEWEST_BLOCKS:]
        agree = len(last) == FEWEST_BLOCKS and max(last) - min(last) <= AGREEING * median(last)
        if agree or len(found) == MOST_BLOCKS:
            return


def _latencies(ends: Iterable[Completion], callers: int) -> Iterator[float]:
    """Yield latencies, but for those of the first requests."""
    began_s, count = 0.0, 0
    for number, end in enumerate(ends):
        if number < 2 * callers:
            began_s = end.ended_s
            continue
        yield end.latency_s
        count += 1
        if count >= LATENCIES or (count >= FEWEST_LATENCIES and end.ended_s - began_s >= LATENCY_S):
            return
