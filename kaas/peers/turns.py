"""Measurements in turns, so that all sides see the same machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

from kaas.peers.systems import PeerSystem, part_of

TURN = 10
"""Requests of one side before the next side's turn: the work that follows a reply falls to its own side."""
OURS: Mapping[str, PeerSystem] = MappingProxyType({})
"""Systems by side where all sides are KaaS's."""


class MeasuredSide(NamedTuple):
    """A side: a function that sends a request, and one that returns its result."""

    send: Callable[[], Any]
    result: Callable[[Any], Any]

    def call(self) -> Any:
        """Send a request, and return its result."""
        return self.result(self.send())


def latencies_s(
    sides: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = TURN, peers: Mapping[str, PeerSystem] = OURS
) -> dict[str, list[float]]:
    """Return the seconds of each call of each side, one call at a time.

    peers: the systems of the sides that are not KaaS's.

    Raises:
        PeerFailed
    """
    for name, call in sides.items():
        with part_of(peers.get(name, PeerSystem.KAAS)):
            for _ in range(warm_up):
                call()
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for first in range(0, rounds, TURN):
        for name, call in sides.items():
            with part_of(peers.get(name, PeerSystem.KAAS)):
                for _ in range(first, min(first + TURN, rounds)):
                    began = perf_counter()
                    call()
                    seconds[name].append(perf_counter() - began)
    return seconds


def rates_per_s(
    sides: Mapping[str, MeasuredSide],
    requests: int,
    outstanding: int,
    rounds: int,
    peers: Mapping[str, PeerSystem] = OURS,
) -> dict[str, float]:
    """Return the median of each side's requests a second in a closed loop: the oldest reply lets the next one go.

    peers: the systems of the sides that are not KaaS's.

    Raises:
        PeerFailed
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            pending = deque[Any]()
            with part_of(peers.get(name, PeerSystem.KAAS)):
                began = perf_counter()
                for _ in range(requests):
                    if len(pending) == outstanding:
                        side.result(pending.popleft())
                    pending.append(side.send())
                while pending:
                    side.result(pending.popleft())
                found[name].append(requests / (perf_counter() - began))
    return {name: median(values) for name, values in found.items()}
