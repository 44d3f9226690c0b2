"""Images that announce more than there is."""

from __future__ import annotations

import ctypes
import mmap
import struct

import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error


def announcing(nbytes: int) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, nbytes) + b"." * 48


@pytest.mark.parametrize("nbytes", [100, 1 << 20, (1 << 30) + 1, 1 << 60, (1 << 64) - 1])
def test_a_fatbin_that_announces_more_than_can_be_read(ctx: object, nbytes: int) -> None:  # noqa: ARG001
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    page = mmap.PAGESIZE
    memory = library.mmap(
        None, 2 * page, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
    )
    assert library.mprotect(memory + page, page, 0) == 0
    image = announcing(nbytes)
    start = memory + page - len(image)
    ctypes.memmove(start, image, len(image))
    assert driver.cuModuleLoadData(start)[0] == Error.CUDA_ERROR_INVALID_IMAGE
    assert library.munmap(ctypes.c_void_p(memory), ctypes.c_size_t(2 * page)) == 0
