"""What an executor measures of each request."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kaas.executor.cache.tiers import TierUse
from kaas.executor.profile import KernelTime


class RunStats(msgspec.Struct, frozen=True, array_like=True):
    """What one request did, or a load; it goes to the pool as it is.

    Fields:
        stages: seconds by stage: plan, fetch, memory (looking for what is there, waiting for room, allocating,
            freeing), copy_in, kernels (of the device), copy_out, total.
        tiers: of "device", "host" and "store", those where something happened.
        loaded, evicted: keys of objects of which something came to the device, and of which nothing is left there.
        device_s: seconds that the kernels took.
        kernels: what each kernel took, in the kTask's order, if the request asked for it.
        cached_bytes: of the objects that are then on the device and in host memory.
        occupied_s: seconds for which the request had its place on the device: its plan, its own loads, kernels and
            copies, without what it waited for; None where device_s is all of that.
    """

    stages: dict[str, float]
    tiers: dict[str, TierUse]
    loaded: Sequence[bytes]
    evicted: Sequence[bytes]
    device_s: float
    kernels: tuple[KernelTime, ...] = ()
    cached_bytes: tuple[int, ...] = ()
    occupied_s: float | None = None

    @property
    def charged_s(self) -> float:
        """Device seconds that fair sharing charges for it."""
        return self.device_s if self.occupied_s is None else self.occupied_s

    @property
    def graph(self) -> bool:
        """Whether the kernels ran as a graph: they do unless each is timed."""
        return not self.kernels

    @property
    def hits(self) -> int:
        """Objects that were on the device."""
        return self.tiers["device"].objects if "device" in self.tiers else 0

    @property
    def misses(self) -> int:
        """Objects that were not."""
        return self.tiers["device"].misses if "device" in self.tiers else 0

    @property
    def hit_bytes(self) -> int:
        return self.tiers["device"].nbytes if "device" in self.tiers else 0

    @property
    def miss_bytes(self) -> int:
        return sum(use.nbytes for tier, use in self.tiers.items() if tier != "device")
