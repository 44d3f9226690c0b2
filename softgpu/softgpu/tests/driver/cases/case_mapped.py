"""Memory mapped by hand: reserved addresses, handles of memory, access, and cuda.core's resource over them."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, ObjectCode, VirtualMemoryResource, launch

from softgpu.tests.driver.calls import Error, Gate, fails, ok, synchronize, view
from softgpu.tests.driver.fake import IMAGE
from softgpu.tests.driver.mistakes import failure_message, run_unseen

pytestmark = pytest.mark.usefixtures("ctx")

WHOLE = 2 << 20
READ = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
NONE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_NONE
INVALID = Error.CUDA_ERROR_INVALID_VALUE


def properties(ordinal: int = 0) -> driver.CUmemAllocationProp:
    made = driver.CUmemAllocationProp()
    made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    made.location.id = ordinal
    return made


def access(flags: Any, ordinal: int = 0) -> list[driver.CUmemAccessDesc]:
    made = driver.CUmemAccessDesc()
    made.location = properties(ordinal).location
    made.flags = flags
    return [made]


def free_bytes() -> int:
    return int(ok(driver.cuMemGetInfo())[0])


@pytest.fixture
def memory() -> Iterator[Any]:
    made = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    yield made
    driver.cuMemRelease(made)


@pytest.fixture
def addresses() -> Iterator[Any]:
    """Two units, reserved; whatever is mapped at the start of either is unmapped in the end."""
    made = ok(driver.cuMemAddressReserve(2 * WHOLE, 0, 0, 0))
    yield made
    for part in (made, int(made) + WHOLE):
        driver.cuMemUnmap(part, WHOLE)
    ok(driver.cuMemAddressFree(made, 2 * WHOLE))


def test_granularity_and_properties(memory: Any) -> None:
    for option in driver.CUmemAllocationGranularity_flags:
        assert ok(driver.cuMemGetAllocationGranularity(properties(), option)) == WHOLE
    told = ok(driver.cuMemGetAllocationPropertiesFromHandle(memory))
    assert (told.type, told.location.id) == (properties().type, 0)
    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    assert ok(driver.cuDeviceGetAttribute(attribute, 0)) == 1


def test_mapped_memory_is_an_allocation(memory: Any, addresses: Any) -> None:
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    fails(INVALID, driver.cuMemsetD32, addresses, 7, 16)  # no device may access it yet
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
    assert ok(driver.cuMemGetAccess(properties().location, addresses)) == int(WRITE)
    assert ok(driver.cuMemGetAccess(properties(1).location, addresses)) == int(NONE)
    ok(driver.cuMemsetD32(addresses, 7, WHOLE // 4))
    read = np.zeros(WHOLE // 4, np.uint32)
    ok(driver.cuMemcpyDtoH(read, addresses, WHOLE))
    assert (read == 7).all()
    base, size = ok(driver.cuMemGetAddressRange(int(addresses) + 512))
    assert (int(base), size) == (int(addresses), WHOLE)
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert ok(driver.cuPointerGetAttribute(kind, addresses)) == driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
    fails(INVALID, driver.cuMemFree, addresses)
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(NONE), 1))
    fails(INVALID, driver.cuMemsetD32, addresses, 7, 16)


def test_memory_is_mapped_twice_and_keeps_its_bytes_after_an_unmap(memory: Any, addresses: Any) -> None:
    second = int(addresses) + WHOLE
    for address in (addresses, second):
        ok(driver.cuMemMap(address, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(addresses, 2 * WHOLE, access(WRITE), 1))
    ok(driver.cuMemsetD32(addresses, 5, 16))
    synchronize()
    assert view(second, np.uint32, 16).tolist() == [5] * 16
    ok(driver.cuMemsetD8(addresses, 9, 2 * WHOLE))  # neighbours are one allocation
    synchronize()
    ok(driver.cuMemUnmap(addresses, WHOLE))
    assert ok(driver.cuMemGetAddressRange(second))[1] == WHOLE
    assert view(second, np.uint8, 4).tolist() == [9] * 4


def test_memory_that_is_mapped_elsewhere_brings_the_pages_of_the_host(memory: Any, addresses: Any) -> None:
    """No access at the new place is a page fault, which takes longer than to write the page."""
    places = int(addresses), int(addresses) + WHOLE
    faults = []
    for number, place in enumerate(places * 2):
        ok(driver.cuMemMap(place, WHOLE, 0, memory, 0))
        ok(driver.cuMemSetAccess(place, WHOLE, access(WRITE), 1))
        assert ctypes.string_at(place, 4) == bytes([number] * 4)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        ctypes.memset(place, number + 1, WHOLE)
        faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        ok(driver.cuMemUnmap(place, WHOLE))
    assert max(faults[1:]) < faults[0] / 10
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(READ), 1))
    assert ctypes.string_at(int(addresses), WHOLE) == bytes([4]) * WHOLE


def test_memory_exists_while_a_handle_or_a_mapping_holds_it(addresses: Any) -> None:
    before = free_bytes()
    memory = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    assert free_bytes() == before - WHOLE
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemRelease(memory))
    fails(INVALID, driver.cuMemRelease, memory)
    fails(INVALID, driver.cuMemGetAllocationPropertiesFromHandle, memory)
    again = ok(driver.cuMemRetainAllocationHandle(addresses))
    ok(driver.cuMemUnmap(addresses, WHOLE))
    assert free_bytes() == before - WHOLE
    ok(driver.cuMemRelease(again))
    assert free_bytes() == before
    fails(INVALID, driver.cuMemRetainAllocationHandle, addresses)


def test_memory_that_stays_in_the_process_takes_one_descriptor_and_neighbours_one_mapping(
    addresses: Any,
) -> None:
    made = [ok(driver.cuMemCreate(WHOLE, properties(), 0))]
    open_before = len(os.listdir("/proc/self/fd"))
    made += [ok(driver.cuMemCreate(WHOLE, properties(), 0)) for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == open_before
    start = int(addresses)
    for place, memory in zip((start, start + WHOLE), made, strict=False):
        ok(driver.cuMemMap(place, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(start, 2 * WHOLE, access(WRITE), 1))
    mappings = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "softgpu" in line]
    assert f"{start:x}-{start + 2 * WHOLE:x}" in mappings
    for memory in made:
        ok(driver.cuMemRelease(memory))


def memory_blocks() -> int:
    """The host's memory in files of the driver, in blocks of 512 bytes."""
    found = {os.stat(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_memory_file(fd)}
    return sum({info.st_ino: info.st_blocks for info in found}.values())


def is_memory_file(fd: str) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:softgpu")
    return False


@pytest.mark.parametrize("units", [1, 2])
def test_freed_memory_goes_back_to_the_host_and_new_memory_is_zeros(addresses: Any, units: int) -> None:
    before = memory_blocks()
    for _ in range(3):
        made = [ok(driver.cuMemCreate(units * WHOLE, properties(), 0)) for _ in range(2)]
        for memory in made:
            ok(driver.cuMemMap(addresses, units * WHOLE, 0, memory, 0))
            ok(driver.cuMemSetAccess(addresses, units * WHOLE, access(WRITE), 1))
            seen = view(addresses, np.uint8, units * WHOLE)
            assert not seen.any()
            seen[:] = 7
            ok(driver.cuMemUnmap(addresses, units * WHOLE))
        assert memory_blocks() == before + 2 * units * WHOLE // 512
        for memory in made:
            ok(driver.cuMemRelease(memory))
        assert memory_blocks() == before


def test_a_forked_child_leaves_the_memory_of_its_parent_alone(memory: Any, addresses: Any) -> None:
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
    seen = view(addresses, np.uint8, WHOLE)
    seen[:] = 7
    child = os.fork()
    if child == 0:  # it frees what it has inherited, and makes memory of its own
        statuses = [driver.cuMemUnmap(addresses, WHOLE)[0], driver.cuMemRelease(memory)[0]]
        status, own = driver.cuMemCreate(WHOLE, properties(), 0)
        statuses += [status, driver.cuMemMap(addresses, WHOLE, 0, own, 0)[0]]
        statuses += [driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1)[0]]
        clean = not any(map(int, statuses)) and not seen.any()
        seen[:] = 9
        os._exit(0 if clean else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (seen == 7).all()


def test_invalid_memory_and_reservations_are_refused(library: ctypes.CDLL) -> None:
    fails(INVALID, driver.cuMemCreate, WHOLE - 512, properties(), 0)
    fails(INVALID, driver.cuMemCreate, 0, properties(), 0)
    fails(INVALID, driver.cuMemCreate, WHOLE, properties(), 1)
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuMemCreate, WHOLE, properties(99), 0)
    fails(Error.CUDA_ERROR_OUT_OF_MEMORY, driver.cuMemCreate, 1 << 50, properties(), 0)
    shared = properties()
    shared.requestedHandleTypes = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_WIN32
    fails(Error.CUDA_ERROR_NOT_SUPPORTED, driver.cuMemCreate, WHOLE, shared, 0)
    for arguments in ((0, 0, 0, 0), (4096, 0, 0, 0), (WHOLE, 3, 0, 0), (WHOLE, 0, 0, 1)):
        fails(INVALID, driver.cuMemAddressReserve, *arguments)
    assert library.cuMemCreate(None, ctypes.c_size_t(WHOLE), None, ctypes.c_uint64(0)) == int(INVALID)
    assert library.cuMemAddressReserve(None, *map(ctypes.c_size_t, (WHOLE, 0, 0, 0))) == int(INVALID)


def test_invalid_mappings_are_refused(memory: Any, addresses: Any) -> None:
    start = int(addresses)
    for arguments in (
        (start + 512, WHOLE, 0, memory, 0),
        (start, 512, 0, memory, 0),
        (start, WHOLE, WHOLE, memory, 0),
        (start, 2 * WHOLE, 0, memory, 0),
        (start + 2 * WHOLE, WHOLE, 0, memory, 0),
        (start, WHOLE, 0, 0, 0),
    ):
        fails(INVALID, driver.cuMemMap, *arguments)
    fails(INVALID, driver.cuMemUnmap, start, WHOLE)
    fails(INVALID, driver.cuMemSetAccess, start, WHOLE, access(WRITE), 1)
    fails(INVALID, driver.cuMemGetAccess, properties().location, start)
    ok(driver.cuMemMap(start, WHOLE, 0, memory, 0))
    fails(INVALID, driver.cuMemMap, start, WHOLE, 0, memory, 0)
    fails(INVALID, driver.cuMemUnmap, start, 2 * WHOLE)
    fails(INVALID, driver.cuMemAddressFree, start, 2 * WHOLE)
    fails(INVALID, driver.cuMemAddressFree, start, WHOLE)
    fails(Error.CUDA_ERROR_INVALID_DEVICE, driver.cuMemSetAccess, start, WHOLE, access(WRITE, 99), 1)


def test_only_read(memory: Any, addresses: Any) -> None:
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(READ), 1))
    read = np.ones(4, np.uint32)
    ok(driver.cuMemcpyDtoH(read, addresses, read.nbytes))
    assert not read.any()
    fails(INVALID, driver.cuMemcpyHtoD, addresses, read, read.nbytes)
    fails(INVALID, driver.cuMemsetD32, addresses, 7, 4)
    fails(INVALID, driver.cuStreamWriteValue32, 0, addresses, 7, 0)
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
    ok(driver.cuMemsetD32(addresses, 7, 4))
    ok(driver.cuMemcpyDtoH(read, addresses, read.nbytes))
    assert (read == 7).all()


def test_memory_that_is_mapped_twice_can_be_written_at_one_place_and_read_at_both(memory: Any, addresses: Any) -> None:
    there, here = int(addresses), int(addresses) + WHOLE
    for place, flags in ((there, WRITE), (here, READ)):
        ok(driver.cuMemMap(place, WHOLE, 0, memory, 0))
        ok(driver.cuMemSetAccess(place, WHOLE, access(flags), 1))
    ok(driver.cuMemsetD32(there, 9, 4))
    read = np.ones(4, np.uint32)
    ok(driver.cuMemcpyDtoH(read, here, read.nbytes))
    assert (read == 9).all()
    fails(INVALID, driver.cuMemcpyHtoD, here, read, read.nbytes)


def test_unmapping_and_changes_of_access_wait_for_no_work(memory: Any, addresses: Any) -> None:
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
    stream, gate = ok(driver.cuStreamCreate(1)), Gate()
    gate.hold(stream)
    gate.note(stream)
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(READ), 1))
    ok(driver.cuMemUnmap(addresses, WHOLE))
    ok(driver.cuMemRelease(memory))
    assert not gate.reached.is_set()
    gate.open.set()
    synchronize()
    assert gate.reached.is_set()


@pytest.mark.parametrize("work", ["copy", "set", "wait for a value", "write of a value"])
def test_work_that_reaches_unmapped_memory_fails_its_context(
    library: ctypes.CDLL, memory: Any, addresses: Any, work: str
) -> None:
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
    stream, gate = ok(driver.cuStreamCreate(1)), Gate()
    gate.hold(stream)
    if work == "copy":
        ok(driver.cuMemcpyDtoDAsync(int(addresses) + 4096, addresses, 8, stream))
    elif work == "set":
        ok(driver.cuMemsetD32Async(addresses, 7, 16, stream))
    elif work == "wait for a value":
        ok(driver.cuStreamWaitValue32(stream, addresses, 7, driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ))
    else:
        ok(driver.cuStreamWriteValue32(stream, addresses, 7, 0))
    ok(driver.cuMemUnmap(addresses, WHOLE))
    gate.open.set()
    message = failure_message(library, Error.CUDA_ERROR_ILLEGAL_ADDRESS)
    assert f"a {work}: illegal access: 0x{int(addresses):x}" in message.replace("a stream's write", "a write")


def test_strict_mode_finds_work_that_nothing_orders_before_the_unmapping(
    library: ctypes.CDLL, strict: Callable[[int], None], addresses: Any
) -> None:
    strict(0)
    main = ok(driver.cuStreamCreate(1))
    for waits in (True, False):
        memory = ok(driver.cuMemCreate(WHOLE, properties(), 0))
        ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
        ok(driver.cuMemRelease(memory))
        ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
        ok(driver.cuMemsetD32Async(addresses, 7, 16, main))
        run_unseen(main)
        if waits:
            ok(driver.cuStreamSynchronize(main))
            ok(driver.cuMemUnmap(addresses, WHOLE))
    fails(Error.CUDA_ERROR_LAUNCH_FAILED, driver.cuMemUnmap, addresses, WHOLE)
    sentence = failure_message(library)
    assert "the freeing by the host" in sentence
    assert "a set in stream" in sentence


def test_strict_mode_poisons_mapped_memory(strict: Callable[[int], None], addresses: Any) -> None:
    strict(0)
    memory = ok(driver.cuMemCreate(WHOLE, properties(), 0))
    ok(driver.cuMemMap(addresses, WHOLE, 0, memory, 0))
    ok(driver.cuMemRelease(memory))
    ok(driver.cuMemSetAccess(addresses, WHOLE, access(WRITE), 1))
    assert view(addresses, np.uint8, 4).tolist() == [255] * 4


def grow(device: Device, *, in_place: bool) -> None:
    resource = VirtualMemoryResource(device)
    stream, add = device.create_stream(), ObjectCode.from_ptx(IMAGE[:-1]).get_kernel("add")
    buffer = resource.allocate(WHOLE, stream=stream)
    view(buffer.handle, np.float32, 8)[:] = np.arange(8)
    after = int(buffer.handle) + WHOLE
    taken = ok(driver.cuMemAddressReserve(WHOLE, 0, after, 0)) if not in_place else None
    start = int(buffer.handle)
    grown = resource.modify_allocation(buffer, 2 * WHOLE)
    if not in_place:
        assert int(grown.handle) != start
        ok(driver.cuMemAddressFree(taken, WHOLE))
    assert grown.size == 2 * WHOLE
    assert ok(driver.cuMemGetAddressRange(int(grown.handle)))[1] == 2 * WHOLE
    assert view(grown.handle, np.float32, 8).tolist() == list(range(8))
    end = int(grown.handle) + WHOLE - 64  # over both parts
    view(end, np.int32, 32)[:] = 1
    launch(stream, LaunchConfig(grid=1, block=32), add, np.uint64(end), np.int32(32), np.int32(4))
    stream.sync()
    assert view(end, np.int32, 32).tolist() == [5] * 32
    address = int(grown.handle)
    grown.close()
    fails(Error.CUDA_ERROR_NOT_FOUND, driver.cuMemGetAddressRange, address)


@pytest.mark.alone
def test_cuda_core_grows_a_buffer() -> None:
    device = Device(0)
    device.set_current()
    grow(device, in_place=True)
    grow(device, in_place=False)
