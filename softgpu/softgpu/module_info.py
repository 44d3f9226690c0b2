"""What is known of an image before any of its kernels is compiled."""

from __future__ import annotations

import msgspec


class KernelInfo(msgspec.Struct, frozen=True):
    """As sg_kernel_info in abi.h: (offset, size) in bytes of each parameter. refusal: what in it has no code here, a
    sentence; "": it can run."""

    name: str
    parameters: tuple[tuple[int, int], ...]
    shared_bytes: int
    local_bytes: int
    max_threads: int
    registers: int
    const_bytes: int
    refusal: str = ""


class GlobalInfo(msgspec.Struct, frozen=True):
    name: str
    offset: int
    size: int
    managed: bool


class ModuleInfo(msgspec.Struct, frozen=True):
    """What a program may ask about an image, and how its variables start out."""

    kernels: tuple[KernelInfo, ...]
    globals: tuple[GlobalInfo, ...]
    data: bytes
    pointers: tuple[tuple[int, int], ...]  # 64-bit places in data: the offset in data that each points to
    sources: tuple[tuple[int, str, int], ...] = ()  # from a line of the PTX on the file and the line there
