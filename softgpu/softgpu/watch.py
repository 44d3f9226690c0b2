"""Calls of the driver about regions of memory, running kernels and refused calls."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

NAMES_BYTES = 64 << 10


def describe_regions(library: ctypes.CDLL, address: int, nbytes: int, regions: Sequence[tuple[str, int, int]]) -> int:
    """Do the work of `describe` for a driver that `open_library` has loaded, and return a CUresult."""
    count = len(regions)
    offsets = (ctypes.c_uint64 * count)(*(offset for _, offset, _ in regions))
    sizes = (ctypes.c_uint64 * count)(*(size for _, _, size in regions))
    names = (ctypes.c_char_p * count)(*(name.encode() for name, _, _ in regions))
    call = library.softgpu_regions
    call.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, *[ctypes.c_void_p] * 3]
    return int(call(address, nbytes, count, offsets, sizes, names))


def running_kernels(library: ctypes.CDLL, device: int) -> tuple[str, ...]:
    """Do the work of `running` for a driver that `open_library` has loaded."""
    call = library.softgpu_running
    call.restype = ctypes.c_size_t
    call.argtypes = [ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(NAMES_BYTES)
    count: int = call(device, buffer, NAMES_BYTES)
    return tuple(buffer.raw[:count].decode(errors="replace").split("\n")) if count else ()


def take_refused(library: ctypes.CDLL) -> tuple[str, ...]:
    """Do the work of `refused_calls` for a driver that `open_library` has loaded."""
    call = library.softgpu_refused
    call.restype = ctypes.c_size_t
    call.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    buffer = ctypes.create_string_buffer(NAMES_BYTES)
    count: int = call(buffer, NAMES_BYTES)
    return tuple(buffer.raw[:count].decode().split())
