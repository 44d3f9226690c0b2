"""Loads the software GPU as a `kaas.Device` describes it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import softgpu
from kaas.config import SOFTWARE_GPU_BYTES, Device
from kaas.errors import DeviceUnavailable, InvalidConfig


def check(device: Device) -> None:
    """Check fields of a device's description that have types of softgpu. Raise InvalidConfig if one is wrong.

    `kaas.Device` cannot check them, since it does not know these types.
    """
    if not isinstance(device.model, softgpu.Model | None):
        raise InvalidConfig(f"a device's model is a softgpu.Model, not {device.model!r}", field="model")
    if not all(isinstance(fault, softgpu.Fault) for fault in device.faults):
        raise InvalidConfig(f"a device's faults are softgpu.Faults, not {device.faults!r}", field="faults")
    if device.sms is not None and device.sms > softgpu.MAX_SMS:
        raise InvalidConfig(f"a software device has at most {softgpu.MAX_SMS} sms, not {device.sms}", field="sms")


def _model(device: Device) -> softgpu.Model | None:
    """Return the model of a device's time, or the environment's, with the multiprocessors of its description."""
    fields = {name: getattr(device, name) for name in ("sms", "blocks_per_sm") if getattr(device, name) is not None}
    if not fields:
        return device.model
    path = os.environ.get(softgpu.MODEL_VARIABLE)
    return replace(device.model or (softgpu.Model.from_file(path) if path else softgpu.Model()), **fields)


def load(device: Device, count: int = 1) -> None:
    """Load `count` software devices into this process, each as described.

    A process loads its devices once. If they are loaded and the description only has a memory size, they stay.

    Raises:
        InvalidConfig
        DeviceUnavailable: other devices are loaded already, or a real driver works in this process.
    """
    check(device)
    undemanding = device == Device(device.kind, device.memory_bytes, speed=device.speed)
    if undemanding and softgpu.loaded_devices():
        return
    described = softgpu.Device(device.memory_bytes or SOFTWARE_GPU_BYTES, _model(device), device.faults)
    with unavailable():
        softgpu.load([described] * count, memcheck=device.memcheck)
        if device.strict is not None:
            softgpu.set_strict(device.strict)


def prepare() -> None:
    """Run the programs that `load` needs now, for a process that must not start programs later.

    Raises:
        DeviceUnavailable: no C compiler, or a real driver works in this process.
    """
    with unavailable():
        softgpu.prepare()


@contextmanager
def unavailable() -> Iterator[None]:
    """Raise an error of the software GPU as `DeviceUnavailable`."""
    try:
        yield
    except (softgpu.SoftgpuError, OSError) as error:
        raise DeviceUnavailable(str(error)) from None
