"""How long each kernel of a request takes: launched one by one, between two events of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaas.executor.device.graphs import ParameterBlock
    from kaas.executor.device.streams import EventPair, Stream


@dataclass(frozen=True, slots=True)
class KernelTime:
    """What one kernel of a kTask took.

    Fields:
        symbol, index: its name in the code, and its place among the kTask's kernels.
        seconds: of the device, over all its launches.
        launches: one for each iteration.
    """

    symbol: str
    index: int
    seconds: float
    launches: int


def launch_timed(
    blocks: Sequence[ParameterBlock], iterations: int, stream: Stream, pairs: Sequence[EventPair]
) -> list[float]:
    """Launches the kernels in their order, which the edges of every kTask agree with, so many times; gives the seconds
    of each. As many launches as there are pairs are under way at once."""
    seconds = [0.0] * len(blocks)
    launches = iterations * len(blocks)
    for first in range(0, launches, len(pairs)):
        timed = [(launch % len(blocks), pair) for launch, pair in zip(range(first, launches), pairs, strict=False)]
        for index, pair in timed:
            pair.start(stream)
            blocks[index].launch(stream)
            pair.stop(stream)
        stream.synchronize()
        for index, pair in timed:
            seconds[index] += pair.seconds()
    return seconds
