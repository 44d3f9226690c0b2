"""The description of an image before any of its kernels is compiled."""

from __future__ import annotations

import msgspec


class KernelInfo(msgspec.Struct, frozen=True):
    """The same as sg_kernel_info in abi.h.

    parameters: (offset, size) in bytes of each. refusal: a sentence about what is unsupported; "": the kernel can run.
    """

    name: str
    parameters: tuple[tuple[int, int], ...]
    shared_bytes: int
    local_bytes: int
    max_threads: int
    registers: int
    const_bytes: int
    refusal: str = ""


class GlobalInfo(msgspec.Struct, frozen=True):
    """A variable of the module. offset, size: in bytes, in the module's data."""

    name: str
    offset: int
    size: int
    managed: bool


class ModuleInfo(msgspec.Struct, frozen=True, tag="module"):
    """The kernels and variables of an image, and the variables' initial bytes (`data`)."""

    kernels: tuple[KernelInfo, ...]
    globals: tuple[GlobalInfo, ...]
    data: bytes
    pointers: tuple[tuple[int, int], ...]  # (offset of a 64-bit pointer in data, offset in data of its target)
    sources: tuple[tuple[int, str, int], ...] = ()  # (first PTX line, source file, line in it)
