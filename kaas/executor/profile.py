"""The time of each kernel of a request. The kernels are launched one by one, each between two events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaas.executor.device.graphs import GraphInstance, ParameterBlock
    from kaas.executor.device.streams import EventPair, Stream


@dataclass(frozen=True, slots=True)
class KernelTime:
    """The time of one kernel of a kTask.

    Fields:
        symbol, index: the kernel's name in the code, and its place among the kTask's kernels.
        seconds: device time of all its launches.
        launches: one for each iteration.
    """

    symbol: str
    index: int
    seconds: float
    launches: int


def launch_timed(
    kernels: Sequence[ParameterBlock | GraphInstance], iterations: int, stream: Stream, pairs: Sequence[EventPair]
) -> list[float]:
    """Launch the kernels in their order, which satisfies the edges of every kTask. Return the seconds of each.

    Up to `len(pairs)` launches are under way at once.
    """
    seconds = [0.0] * len(kernels)
    launches = iterations * len(kernels)
    for first in range(0, launches, len(pairs)):
        timed = [(launch % len(kernels), pair) for launch, pair in zip(range(first, launches), pairs, strict=False)]
        for index, pair in timed:
            pair.start(stream)
            kernels[index].launch(stream)
            pair.stop(stream)
        stream.synchronize()
        for index, pair in timed:
            seconds[index] += pair.seconds()
    return seconds
