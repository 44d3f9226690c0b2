"""Other libraries' arrays for readers in other threads: copies in host memory, and arrays whose work has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import softgpu
from kaas.ktask.dlpack import Tensor, device_of, is_exporter, tensor_of
from kaas.ktask.dtypes import DTYPE_BYTES, numpy_dtype
from kaas.ktask.request import View

if TYPE_CHECKING:
    import numpy as np

    from kaas.executor.device.device import OpenDevice
    from kaas.executor.device.streams import Stream


def on_host(name: str, value: Any) -> Any:
    """Return the content of another library's array, or of a View of one, as a NumPy array.

    The array shares host memory, and is a copy of memory on a CUDA device of this process. If NumPy lacks the dtype, it
    has plain bytes. Any other value is returned unchanged. `name` is the input's name, for errors.

    Raises:
        NotContiguous, DeviceUnavailable
    """
    if isinstance(value, View):
        source = on_host(name, value.source)
        return value if source is value.source else View(source, value.offset_bytes)
    if not is_exporter(value):
        return value
    device = device_of(name, value)
    if device is not None:
        tensor, data = _copied(name, value, device)
    else:
        tensor = tensor_of(name, value)
        data = tensor.host_bytes()
    if tensor.dtype not in DTYPE_BYTES:
        return data
    return data.view(numpy_dtype(tensor.dtype)).reshape(tensor.shape)


def at_rest(name: str, value: Any, device: OpenDevice) -> Any:
    """Return a value that any thread and stream may read; an array on a CUDA device, after the work that makes it.

    An array on `device` stays there, as a Tensor; of one on another device the result is a copy in host memory. Any
    other value is returned unchanged. `name` is the input's name, for errors.

    Raises:
        NotContiguous, DeviceUnavailable
    """
    if not is_exporter(value):
        return value
    match device_of(name, value):
        case None:
            return value
        case device.ordinal:
            with _reader(device) as stream:
                return tensor_of(name, value, stream.number)
    return on_host(name, value)


def _copied(name: str, value: Any, ordinal: int) -> tuple[Tensor, np.ndarray[Any, Any]]:
    import numpy as np

    from kaas.executor.device.device import open_device

    device = open_device("software" if softgpu.loaded_devices() else "gpu", ordinal)
    try:
        with _reader(device) as stream:
            tensor = tensor_of(name, value, stream.number)
            data = np.empty(tensor.nbytes, np.uint8)
            stream.copy_out(data, tensor.address, tensor.nbytes)
    finally:
        device.close()
    return tensor, data


@contextmanager
def _reader(device: OpenDevice) -> Iterator[Stream]:
    """Give a new stream, whose work has ended afterwards."""
    with device.context:
        stream = device.stream()
        try:
            yield stream
            stream.synchronize()
        finally:
            stream.close()
