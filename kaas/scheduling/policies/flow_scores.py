"""The figures by which MQFQ-Sticky compares flows, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.policies.holdings import NOTHING
from kaas.scheduling.policies.orders import FlowOrder, SortKey
from kaas.scheduling.policies.state import Queue
from kaas.scheduling.policies.warm_flows import PriorityLevel, TimedFlow

NAMES = ("in_flight", "-waiting", "vt", "request")
"""The figures of the paper's order; the other orders lack some of the first ones."""


@dataclass(frozen=True, slots=True)
class FreeDevices:
    """The devices that may run one more request, each with the flow that it ran last, if that goes before others."""

    last: Mapping[int, TimedFlow | None]

    def away(self, flow: TimedFlow) -> bool:
        """Return True if the flow is one of other devices: its memory is there, and it goes there."""
        constants = flow.reads.constants
        own = flow.device == -1 or flow.device in self.last or constants is NOTHING
        return not own and self.last.keys().isdisjoint(constants.whole)

    def scores(self, flow: TimedFlow, priority: int, level: PriorityLevel, key: SortKey) -> dict[str, float]:
        """Return the scores of a flow: those that a device ran last go first, then those of free devices.

        key: that of a flow that has no place, by the policy's order.
        """
        if flow in level.able:
            key = level.able.key(flow)
        last = [each for device, each in self.last.items() if each is not None and each.device == device]
        turn = last.index(flow) if flow in last else len(last)
        names = NAMES[-len(key) :]
        return {"-priority": -priority, "last": turn, "away": self.away(flow), **dict(zip(names, key, strict=True))}


def flow_candidates(
    order: FlowOrder, flows: Iterable[tuple[Queue, TimedFlow, PriorityLevel, SortKey]], free: FreeDevices
) -> list[Candidate]:
    """Return the first requests of flows, with their virtual times, and how far these are ahead of the least."""
    found = []
    for queue, flow, level, key in flows:
        figures = {"vt": flow.vt, "ahead_s": flow.vt - level.vt, "in_flight": flow.in_flight, "device": flow.device}
        scores = free.scores(flow, queue.share.priority, level, key)
        found.append(order.candidate(queue.head, scores, **figures))
    return found
