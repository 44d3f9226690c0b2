"""A thread's stay in a device's context."""

from __future__ import annotations

from types import TracebackType

from kaas.errors import DeviceLost
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.monitor import DeviceMonitor


class DeviceContext:
    """The device's context, for the calling thread, and the end of everything once the device is lost."""

    __slots__ = ("_device", "_gate")

    def __init__(self, device: OpenDevice, gate: DeviceMonitor) -> None:
        self._device = device
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.check()
        self._device.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, DeviceLost):
            self._gate.lose(error)
        else:
            self._device.leave()
