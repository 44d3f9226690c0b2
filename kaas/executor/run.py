"""The request and the result of an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np

from kaas.errors import InvalidRequest
from kaas.executor.device.device_to_host import Bytes
from kaas.executor.inputs import InputSource
from kaas.executor.plan.plan import Plan
from kaas.executor.run_stats import RunStats
from kaas.ktask.dtypes import numpy_dtype
from kaas.ktask.graph import KTask

__all__ = ["RunRequest", "RunResult", "RunStats"]

_NOTHING: Mapping[str, bytes] = MappingProxyType({})


class RunRequest(msgspec.Struct, frozen=True):
    """One invocation.

    Fields:
        inputs: by buffer name.
        scalars: as `kaas.ktask.request.encode_scalars` makes them.
        client: the client to which the bytes belong that the request leaves in memory.
        profile: run without the graph, and measure the time of each kernel.
        limit_s: seconds that the request may run, if that is less than the executor's limit.
        keep: names of outputs that stay on the device, with the keys under which later requests find them. An object
            that is there under such a key is replaced. The executor writes them back on demand, or before they leave.
        copy_kept: kept outputs are also in the result, and are never written back.
        victims: keys of objects that leave the device first, in this order, as far as the request needs room; then
            follow those that the cache's own rule chooses. Objects in use or pinned stay.
        share, sms: the number of SMs for the kernels, 0 for all. Requests of one share may have the same ones.
    """

    task: KTask
    inputs: Mapping[str, InputSource]
    scalars: Mapping[str, bytes]
    client: str = ""
    profile: bool = False
    limit_s: float | None = None
    keep: Mapping[str, bytes] = _NOTHING
    copy_kept: bool = False
    victims: Sequence[bytes] = ()
    share: str = ""
    sms: int = 0

    def kept(self, plan: Plan) -> dict[int, bytes]:
        """Return the keys of the outputs that stay on the device, by index.

        Raises:
            InvalidRequest: the kTask has no such output.
        """
        outputs = {plan.buffers[index].name: index for index in plan.outputs}
        for name in self.keep:
            if name not in outputs:
                label = plan.task.label
                raise InvalidRequest(f"kTask {label!r} has no output {name!r} to keep", task=label, buffer=name)
        return {outputs[name]: key for name, key in self.keep.items()}


class RunResult(msgspec.Struct, frozen=True):
    """The result of an invocation.

    Fields:
        data: bytes of the outputs in fresh memory, by name in the kTask's order, without outputs that only stay on the
            device.
        printed: the text that kernels of the software GPU printed. With several slots it may include text of requests
            that ran at the same time, since nothing separates them. It also goes to the process's stdout.
    """

    task: KTask
    data: dict[str, Bytes]
    stats: RunStats
    printed: str = ""

    @property
    def outputs(self) -> dict[str, np.ndarray[Any, Any]]:
        """The outputs as arrays that share the memory of `data`."""
        return {
            buffer.name: self.data[buffer.name].view(numpy_dtype(buffer.dtype)).reshape(buffer.shape)
            for buffer in self.task.outputs
            if buffer.name in self.data
        }


class ChosenValues(msgspec.Struct, frozen=True):
    """The values that a request chooses besides its inputs: scalars in the plan's order, and the iterations."""

    scalars: list[bytes]
    iterations: int
