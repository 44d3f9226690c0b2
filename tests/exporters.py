"""Arrays as other libraries export them by DLPack: NumPy's capsules, with what else a test wants written into them."""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from cuda.bindings import driver

from kaas.ktask.dlpack import _Header, _header
from softgpu.tests.driver.calls import ok

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


class Producer(DeviceArray):
    """An array that another stream makes when it is exported, so that the reading stream must wait."""

    def __init__(self, device: OpenDevice, ordinal: int, array: Any) -> None:
        super().__init__(device, ordinal, np.zeros_like(array))
        with device.context:
            self._ours = (device, device.stream())
        self._result = array

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        assert stream is not None
        device, ours = self._ours
        with device.context:
            made = ok(driver.cuEventCreate(0))
            ours.copy_in(self.address, self._result, self._result.nbytes)
            ok(driver.cuEventRecord(made, ours.handle))
            ok(driver.cuStreamWaitEvent(driver.CUstream(stream), made, 0))
            ok(driver.cuEventDestroy(made))
        return super().__dlpack__(stream=stream, **options)


class InThreads(Producer):
    """An array of a library that has a current stream for each thread, as PyTorch and CuPy do: only the thread that
    made the array has the stream of the work."""

    def __init__(self, device: OpenDevice, ordinal: int, array: Any) -> None:
        super().__init__(device, ordinal, array)
        self._thread = threading.get_ident()

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if threading.get_ident() == self._thread:
            return super().__dlpack__(stream=stream, **options)
        return DeviceArray.__dlpack__(self, stream=stream, **options)


def strides(*values: int) -> Any:
    """Strides in elements, as a field of an Exporter's."""
    return ctypes.cast((ctypes.c_int64 * len(values))(*values), ctypes.POINTER(ctypes.c_int64))
