"""Objects on their way to kernels: fetched, in page-locked host memory, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kaas.executor.device.device_memory import HeldMemory, HostMemory, ObjectHome


@dataclass(frozen=True, slots=True)
class CachedObject:
    """An object on the device.

    Fields:
        dtype, shape: None: plain bytes, which fit every buffer.
        home: the memory in which it lies.
    """

    address: int
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    home: ObjectHome


@dataclass(frozen=True, slots=True)
class HostObject:
    """An object in page-locked host memory; its fields are as in `CachedObject`."""

    memory: HostMemory
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A value in device memory that the pool holds, from an offset in it on. whole_bytes: of the memory."""

    memory: HeldMemory
    offset_bytes: int
    nbytes: int
    whole_bytes: int


@dataclass(frozen=True, slots=True)
class FetchedObject:
    """An object that was fetched because no tier has it; its fields are as in `CachedObject`.

    data: its bytes, or where it is held: kernels read it there, and it takes no room of this executor's.
    """

    data: memoryview | HeldValue
    nbytes: int
    dtype: str | None
    shape: tuple[int, ...] | None = None


InputObject = CachedObject | HostObject | FetchedObject
