"""The whole software GPU through cuda.core: PTX from nvcc, compiled, launched, captured and replayed on two devices."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, launch

import softgpu as software
from softgpu.tests.driver import calls
from softgpu.tests.driver.calls import NO_STREAM, Error, Kernels, fails, ok, view

PTX = Path(__file__).with_name("kernels") / "steps.ptx"
COUNT = 100_000


class Station:
    """One software device with the kernels of steps.cu loaded."""

    def __init__(self, ordinal: int) -> None:
        self.device = Device(ordinal)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.code = ObjectCode.from_ptx(PTX.read_bytes())

    def put(self, values: np.ndarray) -> tuple[Any, np.ndarray]:
        """The values in device memory, and a view of them there."""
        buffer = self.device.allocate(values.nbytes, stream=self.stream)
        seen = view(buffer.handle, values.dtype, values.size)
        seen[:] = values
        return buffer, seen

    def launch(self, target: Any, name: str, grid: int, block: int, *args: Any, shared: int = 0) -> None:
        launch(target, LaunchConfig(grid=grid, block=block, shmem_size=shared), self.code.get_kernel(name), *args)


@pytest.fixture(params=[0, 1])
def station(softgpu: tuple[int, ...], request: pytest.FixtureRequest) -> Station:
    assert len(softgpu) > request.param
    return Station(request.param)


def test_vecadd(station: Station) -> None:
    random = np.random.default_rng(1)
    a, b = random.random(COUNT, np.float32), random.random(COUNT, np.float32)
    (da, _), (db, _), (dc, c) = station.put(a), station.put(b), station.put(np.zeros_like(a))
    station.launch(station.stream, "vecadd", -(-COUNT // 256), 256, da, db, dc, np.int32(COUNT))
    station.stream.sync()
    np.testing.assert_array_equal(c, a + b)


def test_a_captured_graph(station: Station) -> None:
    x, seen = station.put(np.ones(1000, np.float32))
    builder = station.device.create_graph_builder().begin_building()
    for factor in (2, 3):
        station.launch(builder, "scale", 4, 256, x, np.float32(factor), np.int32(1000))
    graph = builder.end_building().complete()
    graph.launch(station.stream)
    graph.launch(station.stream)
    station.stream.sync()
    assert (seen == 36).all()


def test_shared_memory_and_a_barrier(station: Station) -> None:
    x, seen = station.put(np.arange(256, dtype=np.int32))
    station.launch(station.stream, "reverse", 1, 256, x, shared=1024)
    station.stream.sync()
    assert (seen == np.arange(256)[::-1]).all()


def test_globals_of_each_device_and_each_load(softgpu: tuple[int, ...]) -> None:
    """A library used on two devices has its variables twice; so has one that is loaded twice."""
    text = PTX.read_bytes() + b"\0"
    ok(driver.cuInit(0))
    seen = []
    first = second = None
    for ordinal in range(len(softgpu)):
        here = Station(ordinal)
        first, second = first or Kernels(text), second or Kernels(text)
        out, value = here.put(np.zeros(1, np.int32))
        for kernels in (first, first, second):
            args = ((int(out.handle),), (ctypes.c_void_p,))
            ok(driver.cuLaunchKernel(kernels["count"], 1, 1, 1, 1, 1, 1, 0, here.stream.handle, args, 0))
            here.stream.sync()
            seen.append(int(value[0]))
    assert seen == [5, 6, 5] * len(softgpu)


def test_a_trap_stays_in_its_context(softgpu: tuple[int, ...]) -> None:
    station = Station(len(softgpu) - 1)
    context = ok(driver.cuCtxCreate(None, 0, 0))
    kernels = Kernels(PTX.read_bytes() + b"\0")
    assert calls.launch(kernels["stop"], (), ()) == Error.CUDA_SUCCESS
    assert driver.cuCtxSynchronize()[0] in (Error.CUDA_ERROR_LAUNCH_FAILED, Error.CUDA_ERROR_ILLEGAL_INSTRUCTION)
    assert "kernel stop" in software.last_error()
    assert driver.cuStreamSynchronize(NO_STREAM)[0] != Error.CUDA_SUCCESS
    ok(driver.cuCtxDestroy(context))
    station.device.set_current()
    ok(driver.cuCtxSynchronize())
    fails(Error.CUDA_ERROR_INVALID_CONTEXT, driver.cuCtxSetCurrent, context)


def test_an_illegal_address_stays_in_its_context(softgpu: tuple[int, ...]) -> None:
    station = Station(len(softgpu) - 1)
    context = ok(driver.cuCtxCreate(None, 0, 0))
    kernels = Kernels(PTX.read_bytes() + b"\0")
    buffer = ok(driver.cuMemAlloc(512))
    args = ((8, int(buffer), int(buffer), 1), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int))
    ok(driver.cuLaunchKernel(kernels["vecadd"], 1, 1, 1, 1, 1, 1, 0, 0, args, 0))
    fails(Error.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuCtxSynchronize)
    said = software.last_error()
    assert "kernel vecadd: illegal access in block (0, 0, 0), warp 0: 0x8, " in said
    assert "before the nearest buffer (" in said
    fails(Error.CUDA_ERROR_ILLEGAL_ADDRESS, driver.cuStreamSynchronize, NO_STREAM)
    assert software.last_error() == said
    ok(driver.cuCtxDestroy(context))
    station.device.set_current()
    ok(driver.cuCtxSynchronize())


def test_threads_compile_and_launch_side_by_side(softgpu: tuple[int, ...]) -> None:
    """Each thread has a block shape of its own, so that all of them compile."""
    station = Station(len(softgpu) - 1)
    context = ok(driver.cuCtxGetCurrent())
    kernel = station.code.get_kernel("scale")

    def run(number: int) -> bool:
        ok(driver.cuCtxSetCurrent(context))
        here = Station(station.device.device_id)
        x, seen = here.put(np.ones(5000, np.float32))
        block = 32 * (number + 3)
        for _ in range(5):
            shape = LaunchConfig(grid=-(-5000 // block), block=block)
            launch(here.stream, shape, kernel, x, np.float32(2), np.int32(5000))
        here.stream.sync()
        return bool((seen == 32).all())

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(run, range(8)))


def test_unsupported_code_is_refused_when_loaded(station: Station) -> None:
    text = PTX.read_text().replace("add.f32", "add.f99")
    with pytest.raises(Exception, match="CUDA_ERROR"):
        ObjectCode.from_ptx(text.encode()).get_kernel("vecadd")
    assert "add.f99" in software.last_error()
    assert station.code.get_kernel("vecadd")


@pytest.mark.usefixtures("softgpu")
def test_cuda_core_gets_bus_ids_from_the_runtime_library() -> None:
    names = []
    for ordinal in range(2):
        station = Station(ordinal)
        buffer, seen = station.put(np.arange(COUNT, dtype=np.float32))
        station.launch(station.stream, "scale", COUNT // 256 + 1, 256, buffer, np.float32(2), np.uint32(COUNT))
        station.device.sync()
        np.testing.assert_array_equal(seen, 2 * np.arange(COUNT, dtype=np.float32))
        names.append(station.device.pci_bus_id)
    assert names == [ok(driver.cuDeviceGetPCIBusId(13, ordinal))[:12].decode() for ordinal in range(2)]
    assert len(set(names)) == 2
