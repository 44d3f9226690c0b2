"""The driver with a compiler whose kernels are C functions (kernels.c), loaded into this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

from softgpu import open_library
from softgpu.build import build, driver_sources

DEVICE_BYTES = (64 << 20, 32 << 20)
KERNELS = Path(__file__).with_name("kernels.c")
IMAGE = b".version 8.0 // the compiler of kernels.c offers all its kernels, whatever the text\0"


def build_fake() -> Path:
    sources = [path for path in driver_sources() if not path.name.startswith(("runner", "rt_"))]  # see kernels.c
    return build([*sources, KERNELS])


def load_fake() -> ctypes.CDLL:
    """Builds and loads the driver; two devices of DEVICE_BYTES."""
    library = open_library(build_fake())
    library.sg_test_compiler.restype = ctypes.c_void_p
    sizes = (ctypes.c_uint64 * len(DEVICE_BYTES))(*DEVICE_BYTES)
    assert library.softgpu_configure(len(DEVICE_BYTES), sizes, library.sg_test_compiler()) == 0
    return library
