"""Why a flow goes next under `mqfq_sticky`: the figures by which flows are compared, by name."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kaas.scheduling.candidates import Candidate
from kaas.scheduling.policies.orders import OwnPlaces, SortKey
from kaas.scheduling.policies.state import Queue, QueuedRequest, WorkerState
from kaas.scheduling.policies.warm_flows import PriorityLevel, TimedFlow

NAMES = ("in_flight", "-waiting", "vt", "request")
"""The figures of the paper's order; the other orders lack some of the first ones."""


@dataclass(frozen=True, slots=True)
class FreeDevices:
    """The devices that may run one more request, each with the flow that it ran last, if that goes before others."""

    last: Mapping[int, TimedFlow | None]

    def away(self, flow: TimedFlow) -> bool:
        """Return True if the flow is one of other devices: its memory is there, and it goes there."""
        own = flow.device == -1 or flow.device in self.last or not flow.has_memory
        return not own and self.last.keys().isdisjoint(flow.reads.constants.whole)

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


class FlowRules(Protocol):
    """The part of the policy that the explanations depend on."""

    order_by: str
    hard: bool


class TimedFlowOrder(OwnPlaces):
    """The part of the order of flows with virtual times that explains it."""

    _policy: FlowRules
    _known: dict[Hashable, TimedFlow]
    _levels: defaultdict[int, PriorityLevel]
    _last: dict[int, TimedFlow]
    _running: int

    def candidates(self) -> list[Candidate]:
        """Return the first request of each flow, with its virtual time, and how far that is ahead of the least."""
        self._sort()
        found, free = [], self._free_devices()
        for queue in self._flows.values():
            flow, level = self._known[queue.flow], self._levels[queue.share.priority]
            figures = {"vt": flow.vt, "ahead_s": flow.vt - level.vt, "in_flight": flow.in_flight, "device": flow.device}
            scores = free.scores(flow, queue.share.priority, level, self._key(flow, queue))
            found.append(self.candidate(queue.head, scores, **figures))
        return found

    def obstacle(self, request: QueuedRequest) -> str:
        """Return why a request may not go: its flow is throttled, or sticks to a busy device, unless nothing runs."""
        self._sort()
        flow, limits = self._known[request.flow], super().obstacle(request)
        level = None if limits or flow.queue is None else self._levels[flow.queue.share.priority]
        if level is None or (not self._running and level.waiting.first() is flow and self._choose(level)[0] is None):
            return limits
        away = self._policy.hard and self._free_devices().away(flow)
        return "throttled" if flow in level.throttled else "its device is busy" if away else ""

    def _free_devices(self) -> FreeDevices:
        sticky, free = self._policy.order_by == "sticky", [each.device.index for each in self._free_workers()]
        return FreeDevices({index: self._last.get(index) if sticky else None for index in free})

    @abstractmethod
    def _sort(self) -> None:
        """Give the flows that have changed their places."""

    @abstractmethod
    def _key(self, flow: TimedFlow, queue: Queue) -> SortKey:
        """Return the place of a flow among those that may go."""

    @abstractmethod
    def _choose(self, level: PriorityLevel) -> tuple[TimedFlow | None, WorkerState | None]:
        """Return the flow that goes next, and its worker."""

    @abstractmethod
    def _free_workers(self) -> Iterator[WorkerState]:
        """Return an iterator over the workers that may run one more request."""
