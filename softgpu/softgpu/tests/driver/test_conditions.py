"""Conditional nodes through cuda.core, with conditions that PTX from nvcc sets."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from cuda.core.graph import GraphDefinition

import softgpu as software
from softgpu.tests.driver.calls import Error, Kernels, fails, ok, view
from softgpu.tests.driver.calls import launch as launch_now

PTX = Path(__file__).with_name("kernels") / "conditions.ptx"
SHAPE = LaunchConfig(grid=1, block=1)


class Setting:
    """Two integers on the device: x, which decides, and y, which the bodies change."""

    def __init__(self) -> None:
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        code = ObjectCode.from_ptx(PTX.read_bytes())
        self.kernels = {name: code.get_kernel(name) for name in ("decide", "add")}
        self.buffer = self.device.allocate(8, stream=self.stream)
        self.x, self.y = view(self.buffer.handle, np.int32, 2), view(int(self.buffer.handle) + 4, np.int32, 1)

    def decide(self, condition: Any, change: int) -> tuple[Any, ...]:
        return (SHAPE, self.kernels["decide"], condition, self.buffer, np.int32(change))

    def add(self, amount: int) -> tuple[Any, ...]:
        return (SHAPE, self.kernels["add"], np.uint64(int(self.buffer.handle) + 4), np.int32(amount))

    def run(self, graph: Any, x: int) -> int:
        """y after a launch."""
        self.x[:] = x, 0
        graph.launch(self.stream)
        self.stream.sync()
        return int(self.y[0])


@pytest.fixture
def setting(softgpu: tuple[int, ...]) -> Setting:
    assert softgpu
    return Setting()


def test_by_definition(setting: Setting) -> None:
    graph = GraphDefinition()
    chosen, again, which = (graph.create_condition(default_value=value) for value in (0, 1, 0))
    node = graph.launch(*setting.decide(chosen, 0)).if_else(chosen)
    node.then.launch(*setting.add(1000))
    node.else_.launch(*setting.add(2000))
    picked = node.launch(*setting.decide(which, 0)).switch(which, 3)
    for case, body in enumerate(picked.branches):
        body.launch(*setting.add(100 * case))
    loop = picked.while_loop(again)
    loop.body.launch(*setting.add(1)).launch(*setting.decide(again, -1))
    assert loop.condition == again
    instance = graph.instantiate()
    assert [setting.run(instance, x) for x in (2, 1, 5)] == [1202, 1101, 1005]
    x_is_1 = GraphDefinition()
    only = x_is_1.create_condition(default_value=1)
    x_is_1.if_then(only).then.launch(*setting.add(7))
    assert setting.run(x_is_1.instantiate(), 0) == 7


def test_by_capture(setting: Setting) -> None:
    builder = setting.device.create_graph_builder().begin_building()
    chosen, again, which = (builder.create_condition(default_value=value) for value in (0, 1, 0))
    launch(builder, *setting.decide(chosen, 0))
    for number, body in enumerate(builder.if_else(chosen)):
        body.begin_building()
        launch(body, *setting.add(1000 * (number + 1)))
        body.end_building()
    launch(builder, *setting.decide(which, 0))
    for case, body in enumerate(builder.switch(which, 3)):
        body.begin_building()
        launch(body, *setting.add(100 * case))
        body.end_building()
    loop = builder.while_loop(again).begin_building()
    launch(loop, *setting.add(1))
    launch(loop, *setting.decide(again, -1))
    loop.end_building()
    launch(builder, *setting.add(10_000))
    instance = builder.end_building().complete()
    assert [setting.run(instance, x) for x in (2, 1, 5)] == [11202, 11101, 11005]


def test_a_condition_outside_its_graph(softgpu: tuple[int, ...]) -> None:
    assert softgpu
    context = ok(driver.cuCtxCreate(None, 0, 0))
    kernels = Kernels(PTX.read_bytes() + b"\0")
    address = ok(driver.cuMemAlloc(4))
    ok(driver.cuMemsetD32(address, 0, 1))
    launch_now(kernels["decide"], (7, address, 1), (ctypes.c_uint64, None, ctypes.c_int), block=(1, 1, 1))
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuCtxSynchronize)
    assert "no conditional node of this launch has handle 0x7" in software.last_error()
    ok(driver.cuCtxDestroy(context))
