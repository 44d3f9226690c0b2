"""Memory that goes to another process as a file descriptor, and descriptors that are no such memory.

NVIDIA's driver has no seals, and its descriptors are of a device: tests of the software GPU alone say so.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from softgpu.tests.driver.calls import Error, fails, ok, synchronize, view
from softgpu.tests.driver.holder import (
    CONSTANTS,
    FD,
    READ,
    WHOLE,
    WRITE,
    allow,
    exported,
    holder,
    imported,
    properties,
    put,
)
from softgpu.windows import seal_handle

pytestmark = pytest.mark.usefixtures("ctx")

INVALID = Error.CUDA_ERROR_INVALID_VALUE
LABEL = struct.pack("16siiiiQ8x", b"softgpu memory", 1, 1, 1, 0, 0)  # pinned memory of device 0, by a descriptor
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


@pytest.fixture
def addresses() -> Iterator[list[int]]:
    """Four places for two megabytes; what is mapped there is unmapped in the end."""
    made = ok(driver.cuMemAddressReserve(4 * WHOLE, 0, 0, 0))
    places = [int(made) + i * WHOLE for i in range(4)]
    yield places
    for place in places:
        driver.cuMemUnmap(place, WHOLE)
    ok(driver.cuMemAddressFree(made, 4 * WHOLE))


@pytest.fixture
def memory() -> Iterator[Any]:
    made = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    yield made
    ok(driver.cuMemRelease(made))


@pytest.fixture
def descriptor(memory: Any) -> Iterator[int]:
    made = exported(memory)
    yield made
    os.close(made)


def test_an_import_is_the_same_memory(memory: Any, addresses: list[int]) -> None:
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    assert ok(driver.cuDeviceGetAttribute(attribute, 0)) == 1
    there, here = addresses[:2]
    descriptor = exported(memory)
    again = imported(descriptor)
    os.close(descriptor)  # the handle has one of its own
    put(there, memory, WRITE)
    put(here, again, WRITE)
    ok(driver.cuMemsetD32(there, 7, WHOLE // 4))
    ok(driver.cuMemsetD32(here, 8, 1))
    read = np.zeros(WHOLE // 4, np.uint32)
    for place in (there, here):
        ok(driver.cuMemcpyDtoH(read, place, WHOLE))
        assert read[0] == 8
        assert (read[1:] == 7).all()
    told = ok(driver.cuMemGetAllocationPropertiesFromHandle(again))
    assert (told.type, told.requestedHandleTypes) == (properties().type, FD)
    assert (told.location.type, told.location.id) == (properties().location.type, 0)
    allowed = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES
    assert ok(driver.cuPointerGetAttribute(allowed, here)) == int(FD)
    retained = ok(driver.cuMemRetainAllocationHandle(here))
    for _ in range(2):
        ok(driver.cuMemRelease(retained))
    fails(INVALID, driver.cuMemGetAllocationPropertiesFromHandle, again)
    assert view(here, np.uint32, 1)[0] == 8  # while it is mapped


def test_a_descriptor_names_memory_of_its_device() -> None:
    made = ok(driver.cuMemCreate(WHOLE, properties(1), 0))
    descriptor = exported(made)
    again = imported(descriptor)
    assert ok(driver.cuMemGetAllocationPropertiesFromHandle(again)).location.id == 1
    os.close(descriptor)
    for one in (made, again):
        ok(driver.cuMemRelease(one))


def test_a_device_is_charged_once_for_all_handles_of_memory(addresses: list[int]) -> None:
    before = free_bytes()
    made = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    descriptor = exported(made)
    first, second = imported(descriptor), imported(descriptor)
    put(addresses[0], second, READ)
    assert free_bytes() == before - WHOLE
    for one in (made, first, second):
        ok(driver.cuMemRelease(one))
        assert free_bytes() == before - WHOLE
    ok(driver.cuMemUnmap(addresses[0], WHOLE))
    os.close(descriptor)
    assert free_bytes() == before


def test_an_import_that_finds_no_room() -> None:
    """Software GPU: a process learns of memory when it imports it. On a GPU its bytes are in use from the beginning."""
    made = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    descriptor = exported(made)
    ok(driver.cuMemRelease(made))
    rest = ok(driver.cuMemCreate(free_bytes() // WHOLE * WHOLE, properties(), 0))
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemImportFromShareableHandle, descriptor, FD)
    ok(driver.cuMemRelease(rest))
    ok(driver.cuMemRelease(imported(descriptor)))
    os.close(descriptor)


def test_what_is_not_exported(memory: Any, library: ctypes.CDLL) -> None:
    plain = properties()
    plain.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    private = ok(driver.cuMemCreate(WHOLE, plain, 0))
    fails(INVALID, driver.cuMemExportToShareableHandle, private, FD, 0)
    ok(driver.cuMemRelease(private))
    fails(INVALID, driver.cuMemExportToShareableHandle, private, FD, 0)
    fails(INVALID, driver.cuMemExportToShareableHandle, memory, FD, 1)
    types = driver.CUmemAllocationHandleType
    fails(INVALID, driver.cuMemExportToShareableHandle, memory, types.CU_MEM_HANDLE_TYPE_NONE, 0)
    fails(
        Error.CUDA_ERROR_NOT_SUPPORTED, driver.cuMemExportToShareableHandle, memory, types.CU_MEM_HANDLE_TYPE_WIN32, 0
    )
    fails(Error.CUDA_ERROR_NOT_SUPPORTED, driver.cuMemImportFromShareableHandle, 0, types.CU_MEM_HANDLE_TYPE_WIN32)
    handle = ctypes.c_uint64(int(memory))
    assert library.cuMemExportToShareableHandle(None, handle, 1, ctypes.c_uint64(0)) == int(INVALID)
    assert library.cuMemImportFromShareableHandle(None, None, 1) == int(INVALID)


def file_of_memory(nbytes: int, seals: int, label: bytes = b"") -> int:
    made = os.memfd_create("another's", os.MFD_ALLOW_SEALING)
    os.ftruncate(made, nbytes)
    os.pwrite(made, label, max(0, nbytes - len(LABEL)))
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def refuses(library: ctypes.CDLL, descriptor: int, why: str) -> None:
    """Asserts that a descriptor is refused for this reason, and that nothing stays of it."""
    before = free_bytes(), os.listdir("/proc/self/fd")
    fails(INVALID, driver.cuMemImportFromShareableHandle, descriptor, FD)
    library.softgpu_last_error.restype = ctypes.c_char_p
    assert why in library.softgpu_last_error().decode()
    assert (free_bytes(), os.listdir("/proc/self/fd")) == before


def test_descriptors_of_other_things(library: ctypes.CDLL, tmp_path: Path) -> None:
    closed = os.memfd_create("gone")
    os.close(closed)
    for none in (closed, 1 << 40, (1 << 64) - 1):
        refuses(library, none, "cannot be used")
    read, write = os.pipe()
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with socket.socket(socket.AF_UNIX) as link:
        for other in (link.fileno(), read, write, plain):
            refuses(library, other, "no memory file")
    for one in (read, write, plain):
        os.close(one)


def test_files_of_memory_that_are_not_the_drivers(library: ctypes.CDLL) -> None:
    """Software GPU. None may shrink: an access behind its end would end this process (SIGBUS)."""
    whole = WHOLE + len(LABEL)
    huge = os.memfd_create("of huge pages", os.MFD_HUGETLB | os.MFD_ALLOW_SEALING)
    fcntl.fcntl(huge, fcntl.F_ADD_SEALS, SIZE_SEALS)
    refuses(library, huge, "no memory file")
    os.close(huge)
    cases = [
        (whole, 0, LABEL, "not sealed"),
        (whole, fcntl.F_SEAL_GROW, LABEL, "not sealed"),
        (whole + 512, SIZE_SEALS, LABEL, "no memory of a software GPU"),
        (WHOLE, SIZE_SEALS, LABEL, "no memory of a software GPU"),
        (len(LABEL), SIZE_SEALS, LABEL, "no memory of a software GPU"),
        (0, SIZE_SEALS, b"", "no memory of a software GPU"),
        (whole, SIZE_SEALS, b"", "no memory of a software GPU"),
    ]
    for nbytes, seals, content, why in cases:
        other = file_of_memory(nbytes, seals, content)
        refuses(library, other, why)
        os.close(other)
    other = file_of_memory(whole, SIZE_SEALS, LABEL.replace(struct.pack("ii", 1, 0), struct.pack("ii", 1, 99)))
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuMemImportFromShareableHandle, other, FD)
    os.close(other)
    good = file_of_memory(whole, SIZE_SEALS, LABEL)
    ok(driver.cuMemRelease(imported(good)))
    os.close(good)


def test_the_size_of_memory_never_changes(descriptor: int) -> None:
    """Software GPU."""
    assert changes(descriptor) == WAYS.keys() - {"shrink", "grow"}


def only_reads(memory: Any, place: int) -> None:
    """Asserts that a handle gives no access that writes, at this place nor at any other."""
    put(place, memory, READ)
    fails(INVALID, lambda: allow(place, WRITE))
    assert ok(driver.cuMemGetAccess(properties().location, place)) == int(READ)
    values = np.ones(4, np.uint32)
    fails(INVALID, driver.cuMemcpyHtoD, place, values, values.nbytes)
    fails(INVALID, driver.cuMemsetD32, place, 7, 4)
    ok(driver.cuMemcpyDtoH(values, place, values.nbytes))
    assert not values.any()
    ok(driver.cuMemUnmap(place, WHOLE))
    ok(driver.cuMemMap(place, WHOLE, 0, memory, 0))
    fails(INVALID, lambda: allow(place, WRITE))


def test_a_descriptor_that_is_read_only_gives_memory_that_is_only_read(
    library: ctypes.CDLL, descriptor: int, addresses: list[int]
) -> None:
    """Software GPU."""
    reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    again = imported(reading)
    os.close(reading)
    only_reads(again, addresses[0])
    assert seal_handle(library, int(again)) == int(Error.CUDA_ERROR_NOT_PERMITTED)
    writing = imported(descriptor)  # another one gives more
    put(addresses[1], writing, WRITE)
    ok(driver.cuMemRelease(again))
    ok(driver.cuMemRelease(writing))


def test_sealed_memory_is_written_where_it_was_mapped_before(
    library: ctypes.CDLL, memory: Any, addresses: list[int]
) -> None:
    """Software GPU."""
    ok(driver.cuMemMap(addresses[0], WHOLE, 0, memory, 0))
    for _ in range(2):
        assert seal_handle(library, int(memory)) == 0
    descriptor = exported(memory)
    again = imported(descriptor)
    only_reads(memory, addresses[1])
    only_reads(again, addresses[2])
    ok(allow(addresses[0], WRITE))
    ok(driver.cuMemsetD32(addresses[0], 7, 4))
    synchronize()
    ok(allow(addresses[2], READ))
    assert view(addresses[2], np.uint32, 4).tolist() == [7] * 4
    ok(driver.cuMemRelease(again))
    os.close(descriptor)
    assert seal_handle(library, 0) == int(INVALID)


def punch_hole(file: int) -> None:
    """Turn bytes into zeros."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size_and_punch_hole = 3
    if libc.fallocate(file, keep_size_and_punch_hole, ctypes.c_int64(0), ctypes.c_int64(4096)) != 0:
        raise OSError(ctypes.get_errno(), "fallocate")


def map_shared(file: int) -> None:
    mmap.mmap(file, WHOLE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()


WAYS: dict[str, Callable[[int], object]] = {
    "write": lambda file: os.pwrite(file, b"\xff" * 16, 0),
    "map": map_shared,
    "punch": punch_hole,
    "seal": lambda file: fcntl.fcntl(file, fcntl.F_ADD_SEALS, SIZE_SEALS),
    "shrink": lambda file: os.ftruncate(file, 0),
    "grow": lambda file: os.ftruncate(file, 1 << 30),
}


def changes(descriptor: int) -> set[str]:
    """The ways in which a process of the same user can change a file by its descriptor, which it opens once more."""
    opened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    found = set()
    for file in (descriptor, opened):
        for name, way in WAYS.items():
            with contextlib.suppress(OSError):
                way(file)
                found.add(name)
    os.close(opened)
    return found


@pytest.mark.processes
def test_sealed_memory_of_another_process_cannot_be_changed(addresses: list[int]) -> None:
    """Software GPU."""
    with holder("sealed") as other:
        shared = imported(other.descriptor)
        put(addresses[0], shared, READ)
        assert view(addresses[0], np.uint32, 4).tolist() == list(CONSTANTS)
        fails(INVALID, lambda: allow(addresses[0], WRITE))
        ok(driver.cuMemMap(addresses[1], WHOLE, 0, shared, 0))
        fails(INVALID, lambda: allow(addresses[1], WRITE))
        assert changes(other.descriptor) == set()
        again = imported(exported(shared))
        ok(driver.cuMemMap(addresses[2], WHOLE, 0, again, 0))
        fails(INVALID, lambda: allow(addresses[2], WRITE))
        assert other.constants() == list(CONSTANTS)
        for one in (shared, again):
            ok(driver.cuMemRelease(one))


@pytest.mark.processes
def test_two_processes_write_the_same_memory(addresses: list[int]) -> None:
    with holder("open") as other:
        shared = imported(other.descriptor)
        put(addresses[0], shared, WRITE)
        ok(driver.cuMemsetD32(addresses[0], 9, 4))
        synchronize()
        assert other.constants() == [9] * 4
        ok(driver.cuMemRelease(shared))


@pytest.mark.processes
@pytest.mark.parametrize("first", ["before", "after"])
def test_memory_outlives_the_process_that_made_it(addresses: list[int], first: str) -> None:
    before = free_bytes()
    with holder("open") as other:
        shared = imported(other.descriptor) if first == "after" else None
        other.kill()
        shared = shared or imported(other.descriptor)
        put(addresses[0], shared, WRITE)
        assert view(addresses[0], np.uint32, 4).tolist() == list(CONSTANTS)
        ok(driver.cuMemsetD32(addresses[0], 9, 4))
        synchronize()
        assert free_bytes() == before - WHOLE
        ok(driver.cuMemRelease(shared))
    assert view(addresses[0], np.uint32, 4).tolist() == [9] * 4
    ok(driver.cuMemUnmap(addresses[0], WHOLE))
    assert free_bytes() == before
