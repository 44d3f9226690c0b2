"""The memory of one slot, and of one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from kaas.executor.cache.inflight import InflightCopy
from kaas.executor.cache.reservation import Reservation
from kaas.executor.cache.tiers import TierUse
from kaas.executor.device.device_memory import DeviceHeap
from kaas.executor.objects import CachedObject, HostObject


@dataclass(slots=True)
class SlotArena:
    """A slot's arena, from `home`. address: 0 while it has no bytes; fresh: it was not cleared since its allocation."""

    home: DeviceHeap
    address: int = 0
    nbytes: int = 0
    fresh: bool = False


class MemoryLease(msgspec.Struct):
    """The memory of one request: its reservation, and the work that was done for it.

    Fields:
        objects: all objects on the device. Those of the request stay there.
        tiers: as in `RunStats`, without the seconds of copies.
        loaded: objects that are new on the device. sources: the bytes, or the host address, to copy them from; None for
            held ones, whose bytes are there.
        made: objects that the request makes there. host_loaded: objects that are new in host memory.
        evicted, host_evicted: victims that are freed.
        left: keys of evicted objects of which nothing is on the device any more.
        copies: of loaded. awaited: copies that other requests make of this request's objects.
        hosting_s: seconds that fetched objects took to be copied to host memory.
    """

    reservation: Reservation
    objects: Mapping[bytes, CachedObject]
    tiers: dict[str, TierUse] = {}
    loaded: dict[bytes, CachedObject] = {}
    made: dict[bytes, CachedObject] = {}
    sources: dict[bytes, Any] = {}
    host_loaded: dict[bytes, HostObject] = {}
    evicted: list[bytes] = []
    host_evicted: list[bytes] = []
    left: tuple[bytes, ...] = ()
    copies: dict[bytes, InflightCopy] = {}
    awaited: list[InflightCopy] = []
    hosting_s: float = 0.0
