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
    blocks: Sequence[ParameterBlock], iterations: int, stream: Stream, watches: Sequence[EventPair]
) -> list[float]:
    """Launches the kernels in their order, which the edges of every kTask agree with, so many times; gives the seconds
    of each. As many launches as there are watches are under way at once."""
    seconds = [0.0] * len(blocks)
    launches = iterations * len(blocks)
    for first in range(0, launches, len(watches)):
        timed = [(launch % len(blocks), watch) for launch, watch in zip(range(first, launches), watches, strict=False)]
        for index, watch in timed:
            watch.start(stream)
            blocks[index].launch(stream)
            watch.stop(stream)
        stream.synchronize()
        for index, watch in timed:
            seconds[index] += watch.seconds()
    return seconds
