"""Arrays as other libraries export them by DLPack: NumPy's capsules, with what else a test wants written into them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from kaas.ktask.dlpack import _Header, _header

if TYPE_CHECKING:
    from kaas.executor.device.device import OpenDevice


class Exporter:
    """An array of no library, which only DLPack can read.

    Args:
        array: its memory; bytes of any dtype that NumPy exports.
        device: (kind, ordinal) to claim. fields: of DLTensor to overwrite, for instance data or dtype_code.
        old: know nothing of version 1.
    """

    def __init__(self, array: Any, device: tuple[int, int] = (1, 0), *, old: bool = False, **fields: Any) -> None:
        self.array = np.asarray(array)
        self.device = device
        self.old = old
        self.fields = fields
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if self.old and options:
            raise TypeError(f"__dlpack__ takes no {', '.join(options)}")
        self.streams.append(stream)
        capsule = self.array.__dlpack__(**options)
        header: _Header = _header("exported", self, capsule)
        header.device_kind, header.device_id = self.device
        for name, value in self.fields.items():
            setattr(header, name, value)
        return capsule


class DeviceArray(Exporter):
    """A copy of an array in the memory of a device."""

    def __init__(self, device: OpenDevice, ordinal: int, array: Any, **fields: Any) -> None:
        super().__init__(array, (2, ordinal), **fields)
        with device.context:
            self.address = device.allocate(self.array.nbytes)
            stream = device.stream()
            stream.copy_in(self.address, self.array, self.array.nbytes)
            stream.synchronize()
            stream.close()
        self.fields.setdefault("data", self.address)


def strides(*values: int) -> Any:
    """Strides in elements, as a field of an Exporter's."""
    return ctypes.cast((ctypes.c_int64 * len(values))(*values), ctypes.POINTER(ctypes.c_int64))
