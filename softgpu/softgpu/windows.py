"""Calls of the driver about windows, and about memory that is sealed."""

from __future__ import annotations

import ctypes


def new_window(library: ctypes.CDLL, nbytes: int) -> tuple[int, int]:
    """Return a CUresult, and the base of a new window."""
    base = ctypes.c_uint64()
    call = library.softgpu_window
    call.argtypes = [ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
    return int(call(nbytes, ctypes.byref(base))), base.value


def free_window(library: ctypes.CDLL, base: int) -> int:
    """Free a window, and return a CUresult."""
    call = library.softgpu_window_free
    call.argtypes = [ctypes.c_uint64]
    return int(call(base))


def confine(library: ctypes.CDLL, base: int) -> int:
    """Confine the images that this thread loads next to a window, or to none (0). Return a CUresult."""
    call = library.softgpu_confine
    call.argtypes = [ctypes.c_uint64]
    return int(call(base))


def seal_handle(library: ctypes.CDLL, memory: int) -> int:
    """Do the work of `seal` for a driver that `open_library` has loaded, and return a CUresult."""
    call = library.softgpu_seal
    call.argtypes = [ctypes.c_uint64]
    return int(call(memory))
