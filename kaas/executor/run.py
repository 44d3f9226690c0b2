"""What an executor is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from kaas.dtypes import numpy_dtype
from kaas.executor.inputs import Source
from kaas.executor.outlet import Bytes
from kaas.executor.profile import KernelTime
from kaas.executor.tiers import TierUse
from kaas.graph import KTask

_NOTHING: Mapping[str, bytes] = MappingProxyType({})


class Request(msgspec.Struct, frozen=True):
    """One invocation.

    Fields:
        scalars: as `kaas.request.encode_scalars` makes them.
        client: whose memory it leaves behind.
        profile: whether to run without the graph and tell how long each kernel took.
        limit_s: how long it may run, if that is less than the executor's limit.
        keep: outputs that stay on the device, with the keys under which later requests find them; what is
            there under these is made anew. The executor writes them back when it is told to, or before they leave.
        copy_kept: those are among the result's outputs too, and never written back.
    """

    task: KTask
    inputs: Mapping[str, Source]
    scalars: Mapping[str, bytes]
    client: str = ""
    profile: bool = False
    limit_s: float | None = None
    keep: Mapping[str, bytes] = _NOTHING
    copy_kept: bool = False


class RunStats(msgspec.Struct, frozen=True):
    """What one request did.

    Fields:
        stages: seconds by stage: plan, fetch, memory (waiting for room, allocating, freeing), copy_in, kernels (of the
            device), copy_out, total.
        tiers: of "device", "host" and "store", those where something happened.
        loaded, evicted: keys of objects of which something came to the device, and of which nothing is left there.
        device_s: seconds that the kernels took.
        kernels: what each kernel took, in the kTask's order, if the request asked for it.
    """

    stages: dict[str, float]
    tiers: dict[str, TierUse]
    loaded: tuple[bytes, ...]
    evicted: tuple[bytes, ...]
    device_s: float
    kernels: tuple[KernelTime, ...] = ()

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


class Result(msgspec.Struct, frozen=True):
    """What came of it.

    Fields:
        data: bytes of its outputs in fresh memory, by name in the order in which the kTask lists them, but for those
            that only stay on the device.
        printed: what kernels have printed, of the software GPU. With several slots some of it may be of requests that
            ran beside this one: nothing tells them apart. It also went to the process's stderr, that of a GPU to its
            stdout.
    """

    task: KTask
    data: dict[str, Bytes]
    stats: RunStats
    printed: str = ""

    @property
    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The same memory as arrays."""
        return {
            buffer.name: self.data[buffer.name].view(numpy_dtype(buffer.dtype)).reshape(buffer.shape)
            for buffer in self.task.outputs
            if buffer.name in self.data
        }
