"""cuda.core's classes, every property and method of theirs that needs no compiler, interop or second process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    GraphMemoryResource,
    Kernel,
    LaunchConfig,
    ManagedMemoryResource,
    ObjectCode,
    PinnedMemoryResource,
    Stream,
    launch,
)
from cuda.core.graph import GraphCompleteOptions, GraphDefinition
from cuda.core.utils import StridedMemoryView, copy_batch

from softgpu.tests.driver.calls import view
from softgpu.tests.driver.fake import IMAGE

pytestmark = pytest.mark.usefixtures("library")

SHAPE = LaunchConfig(grid=1, block=32)
NEEDS_THE_RUNTIME = {"pci_bus_id"}  # these ask the CUDA runtime library, which works with NVIDIA's driver only
BETWEEN_PROCESSES = {"ipc_descriptor", "allocation_handle"}
OF_PARTS_OF_A_DEVICE = {"resources"}


@pytest.fixture
def device() -> Device:
    made = Device(0)
    made.set_current()
    return made


@pytest.fixture
def stream(device: Device) -> Iterator[Stream]:
    made = device.create_stream()
    yield made
    made.sync()


@pytest.fixture
def add() -> Kernel:
    return ObjectCode.from_ptx(IMAGE[:-1]).get_kernel("add")


def read(thing: Any, *but: str) -> dict[str, Any]:
    """All public properties of an object, but those named."""
    names = [name for name in dir(type(thing)) if not name.startswith("_") and name not in but]
    kinds = ("property", "getset_descriptor")
    return {name: getattr(thing, name) for name in names if type(getattr(type(thing), name)).__name__ in kinds}


@pytest.mark.refusals
def test_properties(device: Device, stream: Stream, add: Kernel) -> None:
    buffer = device.allocate(512, stream=stream)
    event = stream.record(options=EventOptions(timing_enabled=True, blocking_sync=True))
    unavailable = NEEDS_THE_RUNTIME | BETWEEN_PROCESSES
    for thing in (device, stream, device.context, event, buffer, add, add.attributes):
        assert read(thing, *unavailable)
    assert read(event, *unavailable)["is_blocking_sync"]
    assert device.can_access_peer(1)
    assert str(device.uuid) != str(Device(1).uuid)
    with pytest.raises(Exception, match="NotSupported"):
        device.sync()


def test_streams(device: Device) -> None:
    first, second = device.create_stream(), device.create_stream()
    first.wait(second)
    again = Stream.from_handle(int(first.handle))
    assert int(again.handle) == int(first.handle)
    device.default_stream.sync()
    first.close()
    assert first.is_closed


@pytest.mark.parametrize("make", [DeviceMemoryResource, PinnedMemoryResource, ManagedMemoryResource])
def test_memory_resources(device: Device, stream: Stream, make: Any) -> None:
    resource = make(device) if make is DeviceMemoryResource else make()
    buffer = resource.allocate(1000, stream=stream)
    assert read(resource, "allocation_handle")["handle"]
    assert read(buffer, "ipc_descriptor")["size"] == 1000
    assert resource.attributes.used_mem_current >= 1024
    buffer.fill(np.int32(5), stream=stream)
    stream.sync()
    assert (view(buffer.handle, np.int32, 250) == 5).all()
    assert buffer.is_managed == (make is ManagedMemoryResource)
    buffer.close(stream)


def test_managed_buffers(device: Device, stream: Stream) -> None:
    buffer = ManagedMemoryResource().allocate(4096, stream=stream)
    buffer.read_mostly = True
    buffer.preferred_location = device
    buffer.accessed_by.add(Device(1))
    assert (buffer.read_mostly, buffer.preferred_location, set(buffer.accessed_by)) == (True, device, {Device(1)})
    buffer.accessed_by.discard(Device(1))
    buffer.prefetch(device, stream=stream)
    buffer.discard(stream=stream)
    buffer.discard_prefetch(device, stream=stream)
    assert set(buffer.accessed_by) == set()
    buffer.close(stream)


def test_a_pool_for_peers(device: Device) -> None:
    pool = DeviceMemoryResource(device, DeviceMemoryResourceOptions(max_size=1 << 20))
    pool.peer_accessible_by = [1]
    assert set(pool.peer_accessible_by) == {Device(1)}
    with pytest.raises(Exception, match="NOT_SUPPORTED"):
        DeviceMemoryResource(device, DeviceMemoryResourceOptions(ipc_enabled=True))


def test_copies_of_buffers(device: Device, stream: Stream) -> None:
    first, second = device.allocate(64, stream=stream), device.allocate(64, stream=stream)
    first.fill(np.int16(7), stream=stream)
    copy_batch(stream, [first], [second])
    third = second.copy_to(stream=stream)
    stream.sync()
    assert (view(third.handle, np.int16, 32) == 7).all()
    assert StridedMemoryView.from_any_interface(third, stream_ptr=-1).ptr == int(third.handle)


def test_kernels_from_files_and_handles(tmp_path: Path) -> None:
    path = tmp_path / "kernels.ptx"
    path.write_bytes(IMAGE[:-1])
    code = ObjectCode.from_ptx(str(path))
    kernel = code.get_kernel("add")
    assert Kernel.from_handle(int(kernel.handle), code).num_arguments == 3
    assert int(code.get_module())
    most = kernel.occupancy.max_potential_block_size(0, 0)
    assert most.max_block_size == 1024
    assert kernel.occupancy.available_dynamic_shared_memory_per_block(2, 128) == 48 << 10


def test_features_that_an_sm_80_device_lacks_are_refused(stream: Stream, add: Kernel) -> None:
    with pytest.raises(Exception, match="not supported"):
        launch(stream, LaunchConfig(grid=1, block=1, cluster=1), add, np.uint64(0), np.int32(0), np.int32(0))
    with pytest.raises(Exception, match="NOT_SUPPORTED"):
        GraphDefinition().instantiate(GraphCompleteOptions(device_launch=True))
    GraphDefinition().instantiate(GraphCompleteOptions(auto_free_on_launch=True, upload_stream=stream))


class Nodes:
    """A graph with a node of every type, one after the other."""

    def __init__(self, device: Device, stream: Stream, add: Kernel) -> None:
        self.heard: list[int] = []
        self.buffers = [device.allocate(512, stream=stream) for _ in range(2)]
        self.arguments = (self.buffers[0], np.int32(4), np.int32(1))
        self.event = device.create_event()
        self.child = GraphDefinition()
        self.child.launch(SHAPE, add, *self.arguments)
        self.graph = GraphDefinition()
        self.launched = self.graph.launch(SHAPE, add, *self.arguments)
        self.filled = self.launched.memset(int(self.buffers[0].handle) + 64, 1, 4)
        self.copied = self.filled.memcpy(self.buffers[1], self.buffers[0], 16)
        self.recorded = self.copied.record(self.event)
        self.waited = self.recorded.wait(self.event)
        self.called = self.waited.callback(lambda: self.heard.append(1))
        self.embedded = self.called.embed(self.child)
        self.allocated = self.embedded.allocate(256)
        used = self.allocated.memset(self.allocated.dptr, 2, 16)
        self.freed = used.deallocate(self.allocated.dptr)

    def all(self) -> list[Any]:
        made = [self.launched, self.filled, self.copied, self.recorded, self.waited, self.called]
        return [*made, self.embedded, self.allocated, self.freed]


@pytest.fixture
def nodes(device: Device, stream: Stream, add: Kernel) -> Nodes:
    made = Nodes(device, stream, add)
    view(made.buffers[0].handle, np.int32, 128)[:] = 0
    return made


def test_nodes_have_their_properties(nodes: Nodes) -> None:
    assert all(read(node) for node in nodes.all())
    assert nodes.launched.block == (32, 1, 1)
    assert (nodes.copied.size, nodes.filled.width, nodes.allocated.bytesize) == (16, 4, 256)
    assert set(nodes.filled.pred) == {nodes.launched}
    assert len(nodes.graph.edges()) == 9


def test_nodes_change(nodes: Nodes, stream: Stream, add: Kernel) -> None:
    nodes.launched.update(config=SHAPE, kernel=add, args=(nodes.buffers[0], np.int32(4), np.int32(10)))
    nodes.filled.update(value=3)
    nodes.copied.update(size=8)
    nodes.recorded.update(nodes.event)
    nodes.waited.update(nodes.event)
    nodes.called.update(lambda: nodes.heard.append(2))
    nodes.embedded.update(nodes.child)
    instance = nodes.graph.instantiate()
    instance.launch(stream)
    stream.sync()
    assert view(nodes.buffers[0].handle, np.int32, 17)[[0, 4, 16]].tolist() == [11, 0, 0x03030303]
    assert view(nodes.buffers[1].handle, np.int32, 4)[:2].tolist() == [10, 10]
    assert nodes.heard == [2]


def test_instances_change(nodes: Nodes, stream: Stream, add: Kernel) -> None:
    instance = nodes.graph.instantiate()
    start = int(nodes.buffers[0].handle)
    instance[nodes.launched].update(config=SHAPE, kernel=add, args=(nodes.buffers[0], np.int32(4), np.int32(5)))
    instance[nodes.filled].update(dst=start + 64, value=4, width=4)
    instance[nodes.copied].update(dst=nodes.buffers[1], src=nodes.buffers[0], size=4)
    instance[nodes.embedded].update(nodes.child)
    instance[nodes.recorded].update(nodes.event)
    instance[nodes.waited].update(nodes.event)
    instance[nodes.called].update(lambda: nodes.heard.append(3))
    for node in (nodes.launched, nodes.filled, nodes.copied):
        instance[node].disable()
        assert not instance[node].is_enabled
        instance[node].enable()
    instance.launch(stream)
    stream.sync()
    assert view(start, np.int32, 17)[[0, 16]].tolist() == [6, 0x04040404]
    assert nodes.heard == [3]
    instance.update(nodes.graph)
    instance.launch(stream)
    stream.sync()
    assert nodes.heard == [3, 1]


def test_nodes_and_edges_are_removed(device: Device, add: Kernel, stream: Stream) -> None:
    buffer = device.allocate(64, stream=stream)
    graph = GraphDefinition()
    first = graph.launch(SHAPE, add, buffer, np.int32(0), np.int32(0))
    second = first.memset(buffer, 1, 4)
    second.pred = set()
    assert graph.edges() == set()
    second.destroy()
    assert (graph.nodes(), second.is_valid) == ({first}, False)


def test_memory_of_captured_graphs(device: Device, stream: Stream) -> None:
    resource = GraphMemoryResource(device)
    builder = device.create_graph_builder().begin_building()
    buffer = resource.allocate(64, stream=builder)
    buffer.fill(1, stream=builder)
    address = int(buffer.handle)
    buffer.close(builder)
    instance = builder.end_building().complete()
    instance.launch(stream)
    stream.sync()
    assert (view(address, np.uint8, 64) == 1).all()
    assert read(resource.attributes)["used_mem_current"] == 0
    resource.trim()
