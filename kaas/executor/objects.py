"""Objects on their way to kernels: fetched, in page-locked host memory, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaas.executor.device.device_memory import DeviceHeap, HostMemory


@dataclass(frozen=True, slots=True)
class CachedObject:
    """An object on the device.

    Fields:
        dtype, shape: None: plain bytes, which fit every buffer.
        home: the memory from which it is allocated.
    """

    address: int
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    home: DeviceHeap


@dataclass(frozen=True, slots=True)
class HostObject:
    """An object in page-locked host memory; its fields are as in `CachedObject`."""

    memory: HostMemory
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class FetchedObject:
    """An object that was fetched because no tier has it; its fields are as in `CachedObject`."""

    data: memoryview
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


InputObject = CachedObject | HostObject | FetchedObject
