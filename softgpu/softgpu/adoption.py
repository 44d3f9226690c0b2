"""Memory of a device that outlives the process: in a file which another process keeps, and the next one adopts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from softgpu import _check, _present

UNIT_BYTES = 2 << 20
"""The unit in which memory is adopted."""


def adopt(file: int, offsets: Sequence[int], device: int = 0) -> list[int]:
    """Make a memory file (memfd_create) the physical memory of a device that has none yet.

    Memory of cuMemCreate that cannot be exported lies there from now on, at the `offset` of its handle. So a process
    that has the file keeps the bytes after the end of this one, and gives them to the next.

    Args:
        file: its descriptor, which may be closed afterwards. No other process may use it for a device meanwhile.
        offsets: of units (2 MB) in the file that stay as they are. All others become zeros.
        device: its ordinal.

    Returns:
        A handle for each of the units, as of cuMemCreate.

    Raises:
        SoftgpuError: the device has physical memory already, or less memory than these units take, or the file has no
            such units. The file is unchanged then, or has become zeros in part beside the units.
    """
    library = _present().library
    call = library.softgpu_adopt
    call.argtypes = [ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p]
    wanted, made = (ctypes.c_uint64 * len(offsets))(*offsets), (ctypes.c_uint64 * len(offsets))()
    _check(library, call(device, file, wanted, len(offsets), made))
    return list(made)


def offset(memory: Any) -> int:
    """Return the place of memory, given by its handle, in the file of its device.

    Raises:
        SoftgpuError: it is no live handle, or of memory that can be exported.
    """
    library = _present().library
    call = library.softgpu_offset
    call.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
    found = ctypes.c_uint64()
    _check(library, call(int(memory), ctypes.byref(found)))
    return found.value
