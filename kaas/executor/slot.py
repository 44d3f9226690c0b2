"""A slot: a stream and what its arena holds. Copies a request's inputs in, launches, and copies its outputs out."""

from __future__ import annotations

from typing import Any

import numpy as np

from kaas.dtypes import numpy_dtype
from kaas.executor.device import GraphInstance, Stream
from kaas.executor.inputs import Inputs
from kaas.executor.memory import Lease, Memory
from kaas.executor.plan import Plan
from kaas.executor.replay import Placement

Outputs = dict[str, np.ndarray[Any, Any]]


class Slot:
    """Capacity for one request at a time. Use it inside `device.current()`."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._client: str | None = None
        self._tables: tuple[Placement, list[bytes]] | None = None

    def enter(self, client: str, memory: Memory) -> None:
        """Clears the arena if requests of other clients may have left something there."""
        if client != self._client or memory.arena_is_fresh:
            self.stream.clear(memory.arena, memory.cache.arena_bytes)
            memory.arena_is_fresh = False
            self._client = client
            self._tables = None

    def copy_in(self, plan: Plan, placement: Placement, inputs: Inputs, lease: Lease) -> list[int]:
        """Submits the copies that bring the inputs to where the kernels find them; gives all addresses."""
        stream = self.stream
        objects = lease.objects
        self.copy_objects(lease)
        addresses = placement.addresses.copy()
        for index, data in inputs.staged:
            stream.copy_in(addresses[index], data, len(data))
        for index, key, offset_bytes in inputs.shared:
            addresses[index] = objects[key].address + offset_bytes
        for index, key, offset_bytes in inputs.copied:
            stream.copy(addresses[index], objects[key].address + offset_bytes, plan.buffers[index].nbytes)
        for index in plan.zeroed:
            stream.clear(addresses[index], plan.buffers[index].nbytes)
        self._write_tables(plan, placement, addresses)
        return addresses

    def copy_objects(self, lease: Lease) -> None:
        """Submits the copies of what is new on the device, between two events."""
        if lease.loaded:
            self.stream.copies.start(self.stream)
            for key, loaded in lease.loaded.items():
                self.stream.copy_in(loaded.address, lease.sources[key], loaded.nbytes)
            self.stream.copies.stop(self.stream)

    def launch(self, instance: GraphInstance, iterations: int) -> None:
        """Submits the graph, once for each iteration, between two events."""
        self.stream.kernels.start(self.stream)
        instance.launch(self.stream, iterations)
        self.stream.kernels.stop(self.stream)

    def copy_out(self, plan: Plan, addresses: list[int]) -> Outputs:
        """Waits for everything and gives the outputs."""
        outputs: Outputs = {}
        for index in plan.outputs:
            buffer = plan.buffers[index]
            # Bytes, since bfloat16 and float8 arrays have no buffer protocol.
            data = np.empty(buffer.nbytes, np.uint8)
            self.stream.copy_out(data, addresses[index], buffer.nbytes)
            outputs[buffer.name] = data.view(numpy_dtype(buffer.dtype)).reshape(buffer.shape)
        self.stream.synchronize()
        return outputs

    def close(self) -> None:
        self.stream.close()

    def _write_tables(self, plan: Plan, placement: Placement, addresses: list[int]) -> None:
        """Tables stay in the arena from one request to the next, unless another plan's runs in between."""
        if not plan.tables:
            self._tables = None
            return
        contents = [
            b"".join((addresses[index] + offset_bytes).to_bytes(8, "little") for index, offset_bytes in table)
            for table in plan.tables
        ]
        if self._tables != (placement, contents):
            self._tables = None
            for index, data in enumerate(contents, start=len(plan.buffers)):
                self.stream.copy_in(addresses[index], data, len(data))
            self._tables = (placement, contents)
