"""A model's constants as a safetensors file, and the dtypes of its format for those of buffers.

The format lacks a few dtypes of buffers. Arrays of these are bytes there, with one dimension more for the bytes of an
element, and the caller keeps their dtypes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, TensorSpec, deserialize, serialize_file

from kaas.ktask.dtypes import DTYPE_BYTES, dtype_name, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

RESERVED = "__metadata__"
"""A name that no array can have."""

_DTYPES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BF16": "bfloat16",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""The format's dtypes -> those of buffers."""
_FOREIGN = DTYPE_BYTES.keys() - _DTYPES.values()


def foreign(arrays: Mapping[str, Array]) -> dict[str, str]:
    """Return the dtypes of those arrays whose dtype safetensors lacks, by name."""
    found = {name: str(dtype_name(array.dtype)) for name, array in sorted(arrays.items())}
    return {name: dtype for name, dtype in found.items() if dtype in _FOREIGN}


def write(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Write a file, the same for the same arrays. They are contiguous, of our dtypes, and none has the reserved name.

    Raises:
        OSError
    """
    lacking = foreign(arrays)
    specs = {name: _spec(array, name in lacking) for name, array in arrays.items()}
    try:
        serialize_file(specs, path)
    except SafetensorError as error:  # it stands for an error of the system: the specs were checked before
        raise OSError(str(error)) from error


def _spec(array: Array, as_bytes: bool) -> TensorSpec:
    dtype, shape = ("uint8", (*array.shape, array.itemsize)) if as_bytes else (array.dtype.name, array.shape)
    return TensorSpec(dtype=dtype, shape=shape, data_ptr=array.ctypes.data, data_len=array.nbytes)


def arrays_of(data: bytes, dtypes: Mapping[str, str]) -> dict[str, Array]:
    """Return the arrays of a file, read-only.

    Args:
        data: the bytes of the file.
        dtypes: of those whose dtype safetensors lacks, by name.

    Raises:
        safetensors.SafetensorError: data is no such file, or a part of one.
        ValueError: its tensors are no arrays of buffers' dtypes.
    """
    tensors = dict(deserialize(data))
    unknown = dtypes.keys() - tensors.keys()
    if unknown:
        raise ValueError(f"no tensor {min(unknown)!r}, for which a dtype is given")
    return {name: _array(name, tensors[name], dtypes.get(name)) for name in sorted(tensors)}


def _array(name: str, tensor: Mapping[str, Any], foreign_dtype: str | None) -> Array:
    import numpy as np

    dtype, shape = _DTYPES.get(tensor["dtype"]), tensor["shape"]
    if dtype is None:
        raise ValueError(f"tensor {name!r} is of dtype {tensor['dtype']!r}, which no buffer has")
    if foreign_dtype is not None:
        if foreign_dtype not in _FOREIGN:
            raise ValueError(f"tensor {name!r} cannot be of dtype {foreign_dtype!r} in bytes")
        if dtype != "uint8" or shape[-1:] != [DTYPE_BYTES[foreign_dtype]]:
            raise ValueError(f"tensor {name!r} is {dtype}{shape}: no bytes of {foreign_dtype}")
        dtype, shape = foreign_dtype, shape[:-1]
    array: Array = np.frombuffer(tensor["data"], numpy_dtype(dtype)).reshape(shape)
    array.flags.writeable = False
    return array
