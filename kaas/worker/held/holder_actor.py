"""The actor that holds constants on a device, for eTasks of a pool on Ray. It runs no code of programs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError, RayTaskError

from kaas.config import Device
from kaas.errors import InputFailed, KaasError
from kaas.ktask.arguments import Buffer
from kaas.ktask.request import raw_bytes
from kaas.wire.outputs import InputLost
from kaas.wire.resident import Resident
from kaas.worker.held.terms import HeldTuple

if TYPE_CHECKING:
    from kaas.worker.held.constants_holder import ConstantsHolder

_UNREAD = Buffer("constants", 1)
"""Stands in errors for the constants, whose names the holder does not know."""


class HolderActor:
    """The holder of one device, while its pool's process lives."""

    def __init__(self, device: Device, visible: str, limit_bytes: int) -> None:
        """
        Args:
            visible: CUDA_VISIBLE_DEVICES of the workers on this device. limit_bytes: of the memory.
        """
        self._device = device
        self._visible = visible
        self._limit_bytes = limit_bytes
        self._holder: ConstantsHolder | None = None

    def start(self) -> str:
        """Open the device, and return the name of the holder's socket.

        Raises:
            DeviceUnavailable
        """
        from kaas.executor.device import software
        from kaas.executor.device.device import open_device
        from kaas.worker.held.constants_holder import ConstantsHolder

        os.environ["CUDA_VISIBLE_DEVICES"] = self._visible
        if self._device.kind == "software":
            software.load(self._device)
        device = open_device(self._device.kind, memory_bytes=self._device.memory_bytes)
        self._holder = ConstantsHolder(device, self._limit_bytes)
        return self._holder.name

    def hold(self, lease: bytes, key: bytes, constants: Sequence[Any]) -> HeldTuple:
        """Give a process constants, which are held once under their key.

        constants: one reference to them, in a list, so that Ray passes on the reference. They are complete.

        Raises:
            InputFailed: a value cannot be had. OutOfDeviceMemory, KaasError: as of `ConstantsHolder`.
        """
        from kaas.executor.device.host_arrays import on_host

        assert self._holder is not None, "the pool has started it"
        found = self._holder.found(lease, key)
        if found is not None:
            return found
        values = [_value(entry) for entry in _value(constants[0])]
        return self._holder.hold(lease, key, [raw_bytes(_UNREAD, on_host("constants", value)) for value in values])


def _value(value: Any) -> Any:
    try:
        if isinstance(value, ray.ObjectRef):
            value = ray.get(value)
        return value.here() if isinstance(value, Resident) else value
    except (RayError, KaasError, InputLost) as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        raise InputFailed(f"constants failed: {cause}", reason=str(cause)) from None
