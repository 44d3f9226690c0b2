"""An array on a device that other libraries take without a copy, and can only read."""

from __future__ import annotations

from typing import Any

import numpy as np

from kaas.ktask.arguments import Buffer
from kaas.ktask.dlpack import Tensor, exported

_CUDA = 2
"""DLPack's kind of device."""


class DeviceArray:
    """An array on the device of this process, in C order and read-only: a kernel that writes there loses the device.

    Numba and CuPy take it by `__cuda_array_interface__`, `torch.from_dlpack`, `cupy.from_dlpack` and inputs of
    `kaas.run_local` by DLPack. Its memory stays mapped until the last array of the same function, and the last that a
    library has made of one, is gone; the end waits for the device's work.

    Fields:
        shape, dtype, nbytes: of the array.
    """

    __slots__ = ("_tensor",)

    def __init__(self, buffer: Buffer, address: int, device: int, owner: object) -> None:
        """Describe memory. owner: keeps it mapped."""
        self._tensor = Tensor(address, buffer.shape, buffer.nbytes, buffer.dtype, device, owner)

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self._tensor.shape

    @property
    def dtype(self) -> str:
        """The name of the element type, as of a `kaas.Buffer`."""
        return self._tensor.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self._tensor.nbytes

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3. Arrays of bfloat16 and float8 have none, since it has no names for these types."""
        if self.dtype.startswith(("bfloat", "float8")):
            raise AttributeError(f"the CUDA array interface has no {self.dtype}: use from_dlpack")
        data = self._tensor.address if self.nbytes else 0, True
        return {"shape": self.shape, "typestr": np.dtype(self.dtype).str, "data": data, "strides": None, "version": 3}

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CUDA, self._tensor.device or 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Return a capsule. Raise BufferError for a copy, or for another device."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("the array is exported where it is, and without a copy")
        return exported(self._tensor, versioned=max_version is not None and max_version[0] >= 1)

    def __repr__(self) -> str:
        return f"<kaas.DeviceArray {self.dtype}{list(self.shape)} on device {self._tensor.device}>"
