"""Arrays of other libraries by the DLPack protocol: where their bytes lie, without a copy and without their library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kaas.errors import NotContiguous
from kaas.ktask.dtypes import DLPACK_DTYPES

if TYPE_CHECKING:
    import numpy as np

_HOST, _CUDA, _PAGE_LOCKED, _MANAGED = 1, 2, 3, 13  # kinds of device (DLDeviceType)
_VERSION = (1, 0)
_NAMES = (b"dltensor_versioned", b"dltensor")


class _Header(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_kind", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Header),
    )


class _Unversioned(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Header), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.argtypes, _is_capsule.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = (ctypes.py_object, ctypes.c_char_p), ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array without gaps, in C order.

    Fields:
        dtype: the name of the dtype; for one that no buffer can have, its DLPack code in words.
        device: the CUDA device on which it lies; None: in host memory.
        owner: the object that keeps the memory alive.
    """

    address: int
    shape: tuple[int, ...]
    nbytes: int
    dtype: str
    device: int | None
    owner: Any

    def host_bytes(self) -> np.ndarray[Any, Any]:
        """Return the same memory, which must be the host's, as a flat read-only array of bytes."""
        import numpy as np

        assert self.device is None, "the host cannot read it"
        return np.asarray(_TensorBytes(self)) if self.nbytes else np.empty(0, np.uint8)


class _TensorBytes:
    """An object with NumPy's array interface: an array of it keeps the memory alive."""

    def __init__(self, tensor: Tensor) -> None:
        self.owner = tensor.owner
        self.__array_interface__ = {
            "data": (tensor.address, True),
            "shape": (tensor.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def is_exporter(value: Any) -> bool:
    """Return True if an object is to be taken by this protocol, which NumPy's own arrays do not need.

    A `Tensor` counts too: it is exported already, and any stream may read it.
    """
    import numpy as np

    return (hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)) or isinstance(value, Tensor)


def device_of(name: str, value: Any) -> int | None:
    """Return the `Tensor.device` of an array that is not exported yet. name: that of the input, for errors.

    Raises:
        NotContiguous: it lies neither in host memory nor on a CUDA device, or it does not say.
    """
    if isinstance(value, Tensor):
        return value.device
    try:
        kind, ordinal = value.__dlpack_device__()
    except Exception as error:
        raise _not_exported(name, value, error) from error
    if int(kind) in (_HOST, _PAGE_LOCKED):
        return None
    if int(kind) in (_CUDA, _MANAGED):
        return int(ordinal)
    raise NotContiguous(
        f"input {name!r}: {type(value).__name__} lies on a device of DLPack's kind {int(kind)}; copy it to the host",
        buffer=name,
    )


def tensor_of(name: str, value: Any, stream: int | None = None) -> Tensor:
    """Return the memory of an array that its library exports by DLPack.

    Args:
        name: of the input, for errors.
        value: the array.
        stream: of an array on a CUDA device: the stream that will read it, which the exporter makes wait for its own.
            Libraries have a current stream for each thread: call this in the thread that gives the array.

    Raises:
        NotContiguous: the array has gaps or another order than C, or its library does not export it.
    """
    if isinstance(value, Tensor):
        return value
    device = device_of(name, value)
    capsule = _export(name, value, stream if device is not None else None)
    header = _header(name, value, capsule)
    shape = tuple(header.shape[axis] for axis in range(header.ndim))
    strides = tuple(header.strides[axis] for axis in range(header.ndim)) if header.strides else None
    count = 1
    for extent in shape:
        count *= extent
    if count and strides is not None and not _is_contiguous(shape, strides):
        raise NotContiguous(
            f"input {name!r} is not contiguous (shape {shape}, strides {strides} in elements)", buffer=name
        )
    bits = header.dtype_bits * header.dtype_lanes
    dtype = DLPACK_DTYPES.get((header.dtype_code, bits)) if header.dtype_lanes == 1 else None
    return Tensor(
        (header.data or 0) + header.byte_offset,
        shape,
        -(-count * bits // 8),
        dtype or f"DLPack {header.dtype_code}/{header.dtype_bits}x{header.dtype_lanes}",
        device,
        capsule,
    )


def _export(name: str, value: Any, stream: int | None) -> Any:
    """Return a capsule. No library takes it over here, so the end of the capsule frees its memory."""
    options = {} if stream is None else {"stream": stream}
    try:
        try:
            return value.__dlpack__(max_version=_VERSION, **options)
        except TypeError:  # written before version 1
            return value.__dlpack__(**options)
    except Exception as error:
        raise _not_exported(name, value, error) from error


def _not_exported(name: str, value: Any, error: Exception) -> NotContiguous:
    return NotContiguous(f"input {name!r}: {type(value).__name__} is not exported: {error}", buffer=name)


def _header(name: str, value: Any, capsule: Any) -> _Header:
    versioned, plain = _NAMES
    if _is_capsule(capsule, versioned):
        managed = _Versioned.from_address(_pointer(capsule, versioned))
        if managed.major == _VERSION[0]:
            return managed.tensor  # type: ignore[no-any-return]
    elif _is_capsule(capsule, plain):
        return _Header.from_address(_pointer(capsule, plain))
    raise NotContiguous(f"input {name!r}: {type(value).__name__} exports no DLPack tensor of version 1", buffer=name)


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


# --- the other way: memory of this process for other libraries

READ_ONLY = 1
"""The flag of version 1 (DLPACK_FLAG_BITMASK_READ_ONLY)."""
_CODES = {name: codes for codes, name in DLPACK_DTYPES.items()}
_exported: dict[int, tuple[Any, ...]] = {}
"""By the address of an exported tensor: what must live until its consumer deletes it."""
_end = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda managed: _exported.pop(managed, None) and None)
_ended_type = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_is_named = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_managed_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, _ended_type)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def _delete_unused(capsule: int) -> None:
    """Delete the tensor of a capsule that ends, unless a consumer has renamed the capsule and taken the tensor."""
    for name in _NAMES:
        if _is_named(capsule, name):
            _exported.pop(_managed_in(capsule, name), None)


_unused = _ended_type(_delete_unused)


def exported(tensor: Tensor, *, versioned: bool) -> Any:
    """Return a read-only tensor of a CUDA device as a capsule, which keeps its owner alive until a consumer is done.

    versioned: as of version 1, which can say that it is read-only; the device must refuse writes in any case.
    """
    code, bits = _CODES[tensor.dtype]
    extents = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
    strides, step = (ctypes.c_int64 * len(tensor.shape))(), 1
    for axis in reversed(range(len(tensor.shape))):
        strides[axis] = step
        step *= tensor.shape[axis]
    axes = len(tensor.shape), code, bits, 1, extents, strides, 0
    header = _Header(tensor.address, _CUDA, tensor.device, *axes)
    deleter = ctypes.cast(_end, ctypes.c_void_p)
    managed: Any = _Unversioned(header, None, deleter)
    if versioned:
        managed = _Versioned(*_VERSION, None, deleter, READ_ONLY, header)
    _exported[ctypes.addressof(managed)] = managed, extents, strides, tensor
    return _new_capsule(ctypes.addressof(managed), _NAMES[0 if versioned else 1], _unused)
