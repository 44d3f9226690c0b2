"""Programs that use cuda.core."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.core import (
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ObjectCode,
    PinnedMemoryResource,
    StreamOptions,
    launch,
)
from cuda.core.graph import GraphBuilder, GraphDefinition

from softgpu.tests.driver.calls import view
from softgpu.tests.driver.fake import IMAGE

pytestmark = pytest.mark.usefixtures("library")

SHAPE = LaunchConfig(grid=1, block=32)


class Setting:
    """A device, a stream, kernels, and an array of 100 integers on the device."""

    def __init__(self) -> None:
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.code = ObjectCode.from_ptx(IMAGE[:-1])
        self.add = self.code.get_kernel("add")
        self.buffer = self.device.allocate(400, stream=self.stream)
        self.seen = view(self.buffer.handle, np.int32, 100)
        self.seen[:] = 0

    def adding(self, amount: int) -> tuple[Any, ...]:
        """Arguments of a launch that adds amount to the first ten."""
        return (SHAPE, self.add, self.buffer, np.int32(10), np.int32(amount))


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_devices_and_their_properties(setting: Setting) -> None:
    assert [device.device_id for device in Device.get_all_devices()] == [0, 1]
    properties = setting.device.properties
    names = [name for name in dir(properties) if not name.startswith("_")]
    assert all(getattr(properties, name) is not None for name in names)
    assert tuple(setting.device.compute_capability) == (8, 0)


def test_buffers(setting: Setting) -> None:
    setting.seen[:] = 3
    other = setting.device.allocate(400, stream=setting.stream)
    setting.buffer.copy_to(other, stream=setting.stream)
    setting.stream.sync()
    assert (view(other.handle, np.int32, 100) == 3).all()
    other.fill(0, stream=setting.stream)
    other.copy_to(setting.buffer, stream=setting.stream)
    setting.stream.sync()
    assert (setting.seen == 0).all()
    assert (other.is_device_accessible, other.is_host_accessible, other.device_id) == (True, False, 0)
    other.close(setting.stream)


def test_a_pool_with_a_limit(setting: Setting) -> None:
    pool = DeviceMemoryResource(setting.device, DeviceMemoryResourceOptions(max_size=1 << 20))
    buffer = pool.allocate(1000, stream=setting.stream)
    assert pool.attributes.used_mem_current == 1024
    with pytest.raises(Exception, match="OUT_OF_MEMORY"):
        pool.allocate(2 << 20, stream=setting.stream)
    buffer.close(setting.stream)
    assert (pool.attributes.used_mem_current, pool.attributes.used_mem_high) == (0, 1024)
    pool.close()


@pytest.mark.parametrize("make", [PinnedMemoryResource, LegacyPinnedMemoryResource])
def test_pinned_memory(setting: Setting, make: Callable[[], Any]) -> None:
    buffer = make().allocate(64, stream=setting.stream)
    assert (buffer.is_host_accessible, buffer.is_device_accessible) == (True, True)
    view(buffer.handle, np.uint8, 64)[:] = 1
    buffer.close(setting.stream)


def test_streams_and_events(setting: Setting) -> None:
    other = setting.device.create_stream(options=StreamOptions(nonblocking=True, priority=-1))
    start = setting.stream.record(options=EventOptions(timing_enabled=True))
    other.wait(start)
    launch(other, *setting.adding(1))
    end = other.record(options=EventOptions(timing_enabled=True))
    end.sync()
    assert (end.is_done, other.is_nonblocking, other.priority) == (True, True, -1)
    assert end - start > 0
    assert (setting.seen[:10] == 1).all()


def test_kernels(setting: Setting) -> None:
    assert [(argument.offset, argument.size) for argument in setting.add.arguments_info] == [(0, 8), (8, 4), (12, 4)]
    assert setting.add.attributes.max_threads_per_block == 1024
    assert setting.add.occupancy.max_active_blocks_per_multiprocessor(128, 0) == 16
    with pytest.raises(Exception, match="NOT_FOUND"):
        setting.code.get_kernel("subtract")


def test_a_captured_fork(setting: Setting) -> None:
    builder = setting.device.create_graph_builder().begin_building()
    launch(builder, *setting.adding(1))
    left, right = builder.split(2)
    launch(left, *setting.adding(10))
    launch(right, *setting.adding(100))
    joined = GraphBuilder.join(left, right)
    launch(joined, *setting.adding(1000))
    graph = joined.end_building().complete()
    graph.upload(setting.stream)
    graph.launch(setting.stream)
    setting.stream.sync()
    assert (setting.seen[:10] == 1111).all()
    assert (setting.seen[10:] == 0).all()


def test_updating_and_embedding_captures(setting: Setting) -> None:
    seen: list[int] = []

    def building(amount: int) -> GraphBuilder:
        builder = setting.device.create_graph_builder().begin_building()
        builder.callback(lambda: seen.append(amount))
        launch(builder, *setting.adding(amount))
        return builder.end_building()

    first, second = building(1), building(50)
    graph = first.complete()
    graph.launch(setting.stream)
    graph.update(second)
    graph.launch(setting.stream)
    outer = setting.device.create_graph_builder().begin_building()
    outer.embed(first)
    outer.end_building().complete().launch(setting.stream)
    setting.stream.sync()
    assert seen == [1, 50, 1]
    assert setting.seen[0] == 52


def test_a_graph_by_definition(setting: Setting, tmp_path: Path) -> None:
    start = int(setting.buffer.handle)
    graph = GraphDefinition()
    first = graph.launch(*setting.adding(1))
    second = first.launch(*setting.adding(2))
    filled = first.memset(start + 200, 7, 20)
    copied = graph.join(second, filled).memcpy(start + 300, start, 40)
    assert len(graph.nodes()) == 5
    assert set(first.succ) == {second, filled}
    instance = graph.instantiate()
    instance.launch(setting.stream)
    setting.stream.sync()
    assert setting.seen[0] == setting.seen[75] == 3
    assert setting.seen[50] == 0x07070707
    instance[first].update(config=SHAPE, kernel=setting.add, args=(setting.buffer, np.int32(10), np.int32(60)))
    instance[filled].update(dst=start + 200, value=9, width=20, height=1, pitch=0)
    instance[copied].update(dst=start + 300, src=start, size=4)
    instance.launch(setting.stream)
    setting.stream.sync()
    assert setting.seen[75:77].tolist() == [65, 3]
    assert setting.seen[50] == 0x09090909
    graph.debug_dot_print(str(tmp_path / "graph.dot"))


def test_two_devices_in_turn(setting: Setting) -> None:
    far = Device(1)
    far.set_current()
    stream = far.create_stream()
    buffer = far.allocate(400, stream=stream)
    view(buffer.handle, np.int32, 100)[:] = 0
    launch(stream, SHAPE, setting.add, buffer, np.int32(10), np.int32(4))
    stream.sync()
    assert (view(buffer.handle, np.int32, 10) == 4).all()
    assert buffer.device_id == 1
    buffer.close(stream)
    setting.device.set_current()
    assert (setting.seen == 0).all()
