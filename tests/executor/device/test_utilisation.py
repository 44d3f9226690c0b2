"""The utilisation of a GPU is NVML's figure; where NVML has none, the device has none."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import cuda.bindings
import pytest
from cuda.bindings import driver, nvml

from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.driver_errors import call


class Nvml:
    """NVML of one GPU, which its bus address finds."""

    NvmlError = nvml.NvmlError

    def __init__(self, bus_id: str, busy: list[int]) -> None:
        self.bus_id, self.busy, self.begun = bus_id, iter(busy), 0

    def init_v2(self) -> None:
        self.begun += 1

    def device_get_handle_by_pci_bus_id_v2(self, bus_id: str) -> int:
        if bus_id != self.bus_id:
            raise nvml.NotFoundError(6)
        return 7

    def device_get_utilization_rates(self, gpu: int) -> SimpleNamespace:
        assert gpu == 7
        for busy in self.busy:
            return SimpleNamespace(gpu=busy, memory=0)
        raise nvml.NotSupportedError(3)


@pytest.fixture
def gpu(softgpu: tuple[int, ...]) -> Iterator[OpenDevice]:  # noqa: ARG001
    """The software device, which takes itself for a GPU."""
    call(driver.cuInit, 0)
    handle = call(driver.cuDeviceGet, 0)
    device = OpenDevice("gpu", handle, call(driver.cuDevicePrimaryCtxRetain, handle), None)
    yield device
    device.close()


def bus_of(number: int) -> str:
    text: bytes = call(driver.cuDeviceGetPCIBusId, 64, call(driver.cuDeviceGet, number))
    return text.split(b"\0")[0].decode()


def test_a_gpu_has_the_figure_of_nvml(gpu: OpenDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Nvml(bus_of(0), [75, 0, 100])
    monkeypatch.setattr(cuda.bindings, "nvml", there)
    assert [gpu.utilisation() for _ in range(3)] == [0.75, 0.0, 1.0]
    assert there.begun == 1


def test_a_part_of_a_gpu_has_no_figure_and_is_asked_once(gpu: OpenDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.bindings, "nvml", Nvml(bus_of(0), []))
    assert gpu.utilisation() is None
    monkeypatch.setattr(cuda.bindings, "nvml", Nvml(bus_of(0), [50]))
    assert gpu.utilisation() is None


def test_a_gpu_that_nvml_does_not_know_has_no_figure(gpu: OpenDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda.bindings, "nvml", Nvml("another", [50]))
    assert gpu.utilisation() is None


def test_a_machine_without_nvml_and_a_software_device_have_no_figure(gpu: OpenDevice) -> None:
    try:
        nvml.init_v2()
    except RuntimeError:
        assert gpu.utilisation() is None
    assert open_device("software").utilisation() is None
