"""The request and the result of an executor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from kaas.executor.device.device_to_host import Bytes
from kaas.executor.inputs import InputSource
from kaas.executor.stats import RunStats
from kaas.ktask.dtypes import numpy_dtype
from kaas.ktask.graph import KTask

__all__ = ["RunRequest", "RunResult", "RunStats"]

_NOTHING: Mapping[str, bytes] = MappingProxyType({})


class RunRequest(msgspec.Struct, frozen=True):
    """One invocation.

    Fields:
        scalars: as `kaas.ktask.request.encode_scalars` makes them.
        client: whose memory it leaves behind.
        profile: whether to run without the graph and tell how long each kernel took.
        limit_s: how long it may run, if that is less than the executor's limit.
        keep: outputs that stay on the device, with the keys under which later requests find them; what is
            there under these is made anew. The executor writes them back when it is told to, or before they leave.
        copy_kept: those are among the result's outputs too, and never written back.
    """

    task: KTask
    inputs: Mapping[str, InputSource]
    scalars: Mapping[str, bytes]
    client: str = ""
    profile: bool = False
    limit_s: float | None = None
    keep: Mapping[str, bytes] = _NOTHING
    copy_kept: bool = False


class RunResult(msgspec.Struct, frozen=True):
    """What came of it.

    Fields:
        data: bytes of its outputs in fresh memory, by name in the order in which the kTask lists them, but for those
            that only stay on the device.
        printed: what kernels have printed, of the software GPU. With several slots some of it may be of requests that
            ran beside this one: nothing tells them apart. It also goes to the process's stdout.
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
