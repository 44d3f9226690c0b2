"""The measurements of each request in an executor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kaas.executor.cache.tiers import TierUse
from kaas.executor.profile import KernelTime


class RunStats(msgspec.Struct, frozen=True, array_like=True):
    """The measurements of one request or one load. It travels to the pool unchanged.

    Fields:
        stages: seconds by stage: plan, fetch, memory (looking objects up, waiting for room, allocating, freeing),
            copy_in, kernels (device time), copy_out, total. Of a command without loads: kernels, the device time of
            all kernels so far, and clock, when that was read.
        tiers: the use of "device", "host" and "store", without unused tiers.
        loaded: keys of objects of which at least a part was loaded to the device or made there.
        evicted: keys of objects that were evicted and of which nothing is left on the device.
        device_s: device seconds of the kernels.
        kernels: the time of each kernel, in the kTask's order, if the request asked for it.
        cached_bytes: bytes of the objects on the device and in host memory after the request.
        occupied_s: seconds for which the request occupied the device: its plan, its own loads, kernels and copies,
            without waiting; None if device_s is the whole.
        load_s: the part of occupied_s in which the request's own loads came: fetched, and copied to the device.
        hosted: those of `evicted` that page-locked memory still holds.
        part: the part of the device's SMs on which the kernels ran; the pool knows it.
    """

    stages: dict[str, float]
    tiers: dict[str, TierUse]
    loaded: Sequence[bytes]
    evicted: Sequence[bytes]
    device_s: float
    kernels: tuple[KernelTime, ...] = ()
    cached_bytes: tuple[int, ...] = ()
    occupied_s: float | None = None
    load_s: float = 0.0
    hosted: Sequence[bytes] = ()
    part: float = 1.0

    @property
    def charged_s(self) -> float:
        """Device seconds that fair sharing charges for the request."""
        return self.device_s if self.occupied_s is None else self.occupied_s

    @property
    def graph(self) -> bool:
        """True if the kernels ran as a graph: always, except when each kernel is timed."""
        return not self.kernels

    @property
    def hits(self) -> int:
        """Number of input objects that were on the device."""
        return self.tiers["device"].objects if "device" in self.tiers else 0

    @property
    def misses(self) -> int:
        """Number of input objects that were not on the device."""
        return self.tiers["device"].misses if "device" in self.tiers else 0

    @property
    def hit_bytes(self) -> int:
        """Bytes of input objects that were on the device."""
        return self.tiers["device"].nbytes if "device" in self.tiers else 0

    @property
    def miss_bytes(self) -> int:
        """Bytes of input objects that came from host memory or the store."""
        nbytes = 0
        for tier, use in self.tiers.items():
            if tier != "device":
                nbytes += use.nbytes
        return nbytes
