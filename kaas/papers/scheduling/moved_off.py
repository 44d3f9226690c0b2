"""The FCFS of the MQFQ-Sticky paper: a function's memory leaves the device after each request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from kaas.scheduling.decisions import Decision, Evict, EvictTo
from kaas.scheduling.events import Event, PhysicalDevice, RequestArrived, RequestDone
from kaas.scheduling.policies.fcfs import FirstComeFirstServed


class FcfsMovedOff:
    """First come, first served; what a request read goes to host memory at its end, unless another one uses it."""

    def __init__(self, devices: Sequence[PhysicalDevice]) -> None:
        self._fcfs = FirstComeFirstServed(devices)
        self._reads: dict[int, tuple[bytes, ...]] = {}
        self._orders = count(1)

    def handle(self, event: Event) -> list[Decision]:
        """Pass an event on, and move memory off before the next request begins."""
        decisions = self._fcfs.handle(event)
        match event:
            case RequestArrived(request=request):
                self._reads[request] = tuple(use.key for use in event.inputs if use.key is not None)
            case RequestDone(request=request, worker=worker):
                keys = self._reads.pop(request, ())
                decisions.insert(0, Evict(worker, keys, next(self._orders), EvictTo.HOST))
            case _:
                pass
        return decisions
