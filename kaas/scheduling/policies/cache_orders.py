"""Prefetches and evictions that a policy orders, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping

from kaas.scheduling.decisions import Evict, EvictTo, Prefetch
from kaas.scheduling.events import Ordered
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.placement import Placement
from kaas.scheduling.policies.state import WorkerState


class CacheOrders:
    """The open prefetches; objects on their way count as held. A refused one is forgotten: no policy waits for any."""

    def __init__(self, holdings: Holdings, placement: Placement) -> None:
        self._holdings = holdings
        self._placement = placement
        self._last = 0
        # with the objects that come, those that leave, and the last dispatch's number
        self._open: dict[int, tuple[WorkerState, tuple[bytes, ...], tuple[bytes, ...], int]] = {}

    def prefetch(self, worker: WorkerState, sizes: Mapping[bytes, int], victims: tuple[bytes, ...] = ()) -> None:
        """Load the objects of a request that waits, given with their bytes, and give the victims up for them."""
        self._last += 1
        self._placement.decisions.append(Prefetch(worker.id, tuple(sizes), self._last, victims))
        self._holdings.give_up(victims, worker.device.index)
        expected = self._holdings.expect(sizes, worker.device.index)
        self._open[self._last] = worker, expected, victims, self._holdings.dispatches

    def to_host(self, worker: WorkerState, keys: tuple[bytes, ...]) -> None:
        """Move objects to page-locked memory."""
        self._last += 1
        self._placement.decisions.append(Evict(worker.id, keys, self._last, EvictTo.HOST))
        self._open[self._last] = worker, (), (), self._holdings.dispatches

    def answered(self, event: Ordered) -> None:
        """Take in that an order was carried out or refused."""
        worker, expected, victims, since = self._open.pop(event.order, (None, (), (), 0))
        if self._holdings.leaving:
            self._holdings.let_go(-1 if worker is None else worker.device.index, since)
        if worker is not None:
            self._holdings.kept(victims, worker.device.index)
            self._holdings.ended(expected, worker.device.index)

    def lost(self, worker: WorkerState) -> None:
        """Take in that a worker has ended, and its orders with it."""
        for order in [order for order, (whose, *_) in self._open.items() if whose is worker]:
            self._holdings.ended(self._open.pop(order)[1], worker.device.index)
