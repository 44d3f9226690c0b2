"""The device memory of shares: what the requests of a share leave on a device stays within `Share.memory_bytes`.

An object counts for the share whose requests brought it to the device: those of one client and function. One that a
prefetch brought counts for the first that reads it. So a share gives up what it brought itself only. Its requests run
whatever they read: objects beyond its bytes leave once no request reads them, those used longest ago first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

from kaas.scheduling.policies.cache_orders import CacheOrders
from kaas.scheduling.policies.holdings import Holdings
from kaas.scheduling.policies.state import QueuedRequest, WorkerState


class ShareMemory:
    """The limits of shares, and whose requests they are of."""

    def __init__(self, holdings: Holdings, cache_orders: CacheOrders) -> None:
        self._holdings = holdings
        self._cache_orders = cache_orders
        self._limits: dict[str, int] = {}
        self._bringers = defaultdict[str, dict[Hashable, None]](dict)  # the clients and functions of each share

    def limit(self, share: str, memory_bytes: int | None) -> None:
        """Set the bytes of a share; None: it has no limit."""
        if memory_bytes is not None:
            self._limits[share] = memory_bytes
        elif self._limits.pop(share, None) is not None:
            self._bringers.pop(share, None)

    def begun(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Take in whose request, which is dispatched, reads objects on a device."""
        if request.device_share in self._limits:
            bringer = request.share, request.function
            self._bringers[request.device_share][bringer] = None
            bringers = self._holdings.memories[worker.device.index].bringers
            for key in request.reads.sizes:
                bringers.setdefault(key, bringer)

    def ended(self, request: QueuedRequest, worker: WorkerState) -> None:
        """Let the objects of a request's share leave that are beyond its bytes."""
        limit_bytes = self._limits.get(request.device_share)
        if limit_bytes is None:
            return
        memory, mine = self._holdings.memories[worker.device.index], self._bringers[request.device_share]
        sizes = {key: self._holdings.size(key) for key, bringer in memory.bringers.items() if bringer in mine}
        excess_bytes = sum(sizes.values()) - limit_bytes
        busy = {key for running in worker.running.values() for key in running.reads.sizes}
        leaving = []
        for key in sorted(sizes, key=lambda key: (memory.used[key], key)) if excess_bytes > 0 else ():
            if excess_bytes > 0 and key not in busy:
                leaving.append(key)
                excess_bytes -= sizes[key]
                del memory.bringers[key]  # until a request of the share reads it again
        if leaving:
            self._cache_orders.to_host(worker, tuple(leaving))
