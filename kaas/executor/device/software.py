"""What a `kaas.Device` asks of the software GPU, in the software GPU's own words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import softgpu
from kaas.config import SOFTWARE_GPU_BYTES, Device
from kaas.errors import DeviceUnavailable, InvalidConfig
from softgpu import build


def check(device: Device) -> None:
    """What the device itself cannot check, since it does not know the software GPU's types.

    Raises:
        InvalidConfig
    """
    if not isinstance(device.model, softgpu.Model | None):
        raise InvalidConfig(f"a device's model is a softgpu.Model, not {device.model!r}", field="model")
    if not all(isinstance(fault, softgpu.Fault) for fault in device.faults):
        raise InvalidConfig(f"a device's faults are softgpu.Faults, not {device.faults!r}", field="faults")


def load(device: Device, count: int = 1) -> None:
    """Gives this process its software devices, count of them, each as described.

    A process gets them once. A device that only says how much memory it wants is content with those that are there.

    Raises:
        InvalidConfig
        DeviceUnavailable: they are there already and others than these, or a real driver works here.
    """
    check(device)
    undemanding = device == Device(device.kind, device.memory_bytes, speed=device.speed)
    if undemanding and softgpu.loaded_devices():
        return
    described = softgpu.Device(device.memory_bytes or SOFTWARE_GPU_BYTES, device.model, device.faults)
    with unavailable():
        softgpu.load([described] * count, memcheck=device.memcheck)
        if device.strict is not None:
            softgpu.set_strict(device.strict)


def prepare() -> None:
    """Do what `load` needs other programs for, in a process that may start none later.

    Raises:
        DeviceUnavailable: no C compiler, or a real driver works here.
    """
    with unavailable():
        softgpu.prepare()


def driver_library() -> Path:
    """Return the path of the software GPU's driver library. It is compiled if that is not done yet.

    Raises:
        DeviceUnavailable: no C compiler.
    """
    with unavailable():
        return build.build()


@contextmanager
def unavailable() -> Iterator[None]:
    """Raise an error of the software GPU as `DeviceUnavailable`."""
    try:
        yield
    except (softgpu.SoftgpuError, OSError) as error:
        raise DeviceUnavailable(str(error)) from None
