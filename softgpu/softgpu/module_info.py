"""The description of an image before any of its kernels is compiled."""

from __future__ import annotations

import msgspec


class RefusedCode(msgspec.Struct, frozen=True, tag="refusal"):
    """The reason why an image or a kernel cannot be compiled. result: a CUresult."""

    result: int
    message: str


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
    """A variable of the module. offset, size: in bytes, among all variables."""

    name: str
    offset: int
    size: int
    managed: bool


class ModuleInfo(msgspec.Struct, frozen=True, tag="module"):
    """The kernels and variables of an image.

    Fields:
        data_bytes: of all variables. data: (offset, bytes) of initial values; the rest is zeros.
        pointers: (offset of a 64-bit pointer, offset of its target).
        sources: (first PTX line, source file, line in it).
    """

    kernels: tuple[KernelInfo, ...]
    globals: tuple[GlobalInfo, ...]
    data_bytes: int
    data: tuple[tuple[int, bytes], ...]
    pointers: tuple[tuple[int, int], ...]
    sources: tuple[tuple[int, str, int], ...] = ()


# made here: threads that first decode one type at the same time may end the process (msgspec 0.22)
MODULES: msgspec.msgpack.Decoder[ModuleInfo | RefusedCode] = msgspec.msgpack.Decoder(ModuleInfo | RefusedCode)
"""Reads the description of an image in the cache."""
