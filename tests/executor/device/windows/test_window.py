"""Memory of a window: kernels find it, copies fill what kernels can only read, and no page outlives its allocations."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device import device_memory
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.windows.gpu_window import GpuWindow
from kaas.executor.device.windows.pages import PAGE_BYTES
from kaas.executor.device.windows.software_window import SoftwareWindow
from kaas.executor.device.windows.window import ClientWindow, SharedPages


@pytest.fixture
def device(softgpu: tuple[int, ...]) -> Iterator[OpenDevice]:  # noqa: ARG001 - it is loaded
    opened = open_device("software", 2)
    yield opened
    opened.close()


@pytest.fixture(params=[SoftwareWindow, GpuWindow])
def window(device: OpenDevice, request: pytest.FixtureRequest) -> Iterator[ClientWindow]:
    with device.context:
        made = request.param(device.pages, device.info().memory_bytes)
        yield made
        made.close()


@pytest.fixture(params=[SoftwareWindow, GpuWindow])
def windows(device: OpenDevice, request: pytest.FixtureRequest) -> Iterator[list[ClientWindow]]:
    with device.context:
        made = [request.param(device.pages, device.info().memory_bytes) for _ in range(3)]
        yield made
        for window in made:
            window.close()


def seen(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(address))


def test_memory_of_both_heaps_begins_as_zeros_and_is_given_back(device: OpenDevice, window: ClientWindow) -> None:
    free_bytes = device.free_bytes()
    written, read = window.written.allocate(3 * PAGE_BYTES), window.read.allocate(1000)
    assert device.free_bytes() == free_bytes - 4 * PAGE_BYTES
    assert not seen(written, 3 * PAGE_BYTES).any()
    seen(written, 3 * PAGE_BYTES)[:] = 7
    seen(window.read.written_at(read), 1000)[:] = 9
    assert (seen(read, 1000) == 9).all()
    window.written.free(written)
    window.read.free(read)
    assert device.free_bytes() == free_bytes
    again = window.written.allocate(PAGE_BYTES)
    assert not seen(again, PAGE_BYTES).any()
    window.written.free(again)


def test_small_memory_shares_pages(window: ClientWindow) -> None:
    places = [window.read.allocate(100) for _ in range(50)]
    assert window.read.used_bytes == PAGE_BYTES
    assert all(place % 256 == 0 for place in places)
    for place in places:
        window.read.free(place)
    assert window.read.used_bytes == 0


def test_pages_are_used_again_and_hold_nothing_of_another_client(
    device: OpenDevice, windows: list[ClientWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = windows
    places = [first.written.allocate(2 * PAGE_BYTES), first.read.allocate(PAGE_BYTES)]
    shared = shared_of(first, 2 * PAGE_BYTES)
    writable = [places[0], first.read.written_at(places[1]), shared.start]
    for address, nbytes in zip(writable, (2 * PAGE_BYTES, PAGE_BYTES, 2 * PAGE_BYTES), strict=True):
        seen(address, nbytes)[:] = 7
    for heap, address in zip(first.heaps, places, strict=True):
        heap.free(address)
    shared.free(shared.start)
    monkeypatch.setattr(driver, "cuMemCreate", lambda *_: pytest.fail("a page is made"))
    address, read, shared = (
        second.written.allocate(2 * PAGE_BYTES),
        second.read.allocate(PAGE_BYTES),
        shared_of(second, PAGE_BYTES, 256),
    )
    assert second.reaches(shared)
    assert not seen(address, 2 * PAGE_BYTES).any()
    assert not seen(read, PAGE_BYTES).any()
    assert not seen(second.seen_at(shared.start, shared), 2 * PAGE_BYTES).any()
    second.written.free(address)
    second.read.free(read)
    for place in shared.places:
        shared.free(place)
    free_bytes = device_memory.free_bytes()
    device.pages.trim()
    assert device_memory.free_bytes() == free_bytes + 5 * PAGE_BYTES == device.free_bytes()


def test_a_device_without_memory_refuses_and_loses_nothing(device: OpenDevice, window: ClientWindow) -> None:
    free_bytes = device.free_bytes()
    with pytest.raises(OutOfDeviceMemory):
        window.written.allocate(free_bytes + PAGE_BYTES)
    assert device.free_bytes() == free_bytes
    assert window.written.used_bytes == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draws=st.lists(st.tuples(st.booleans(), st.integers(0, 100)), max_size=30))
def test_allocations_never_overlap(window: ClientWindow, draws: list[tuple[bool, int]]) -> None:
    heap, live = window.read, dict[int, int]()
    sizes = [1, 255, 256, 257, 5000, PAGE_BYTES - 1, PAGE_BYTES + 1]
    try:
        for frees, number in draws:
            if live and frees:
                address = sorted(live)[number % len(live)]
                del live[address]
                heap.free(address)
            else:
                nbytes = sizes[number % len(sizes)]
                live[heap.allocate(nbytes)] = nbytes
            spans = sorted((address, address + nbytes) for address, nbytes in live.items())
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
            pages = {page for start, end in spans for page in range(start // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)}
            assert len(pages) * PAGE_BYTES <= heap.used_bytes <= (len(pages) + len(live)) * PAGE_BYTES
    finally:
        for address in live:
            heap.free(address)
    assert heap.used_bytes == 0


def shared_of(window: ClientWindow, *sizes: int) -> SharedPages:
    """Return the memory of a tuple of constants of these sizes, which this window reads."""
    keys = [b"%d" % number for number in range(len(sizes))]
    placed = list(window.place(dict(zip(keys, sizes, strict=True)), dict.fromkeys(keys, b"tuple")))
    (shared,) = {home for _, home, _ in placed}
    assert isinstance(shared, SharedPages)
    assert [address for _, _, address in placed] == shared.places
    return shared


def test_constants_that_several_clients_name_are_on_the_device_once(
    device: OpenDevice, windows: list[ClientWindow]
) -> None:
    free_bytes = device.free_bytes()
    shared = shared_of(windows[0], PAGE_BYTES, 1000, PAGE_BYTES)
    taken_bytes = free_bytes - device.free_bytes()
    assert taken_bytes == 3 * PAGE_BYTES
    for number, address in enumerate(shared.places):
        seen(shared.written_at(address), 1000)[:] = number + 1
    for window in windows[:2]:
        assert window.reaches(shared)
        for number, address in enumerate(shared.places):
            assert (seen(window.seen_at(address, shared), 1000) == number + 1).all()
            assert window.read.written_at(window.seen_at(address, shared)) != address, "it is not a client's own memory"
    assert device.free_bytes() == free_bytes - taken_bytes
    for address in shared.places:
        shared.free(address)
    assert device.free_bytes() == free_bytes


def test_pages_go_with_the_last_object_in_them(device: OpenDevice, windows: list[ClientWindow]) -> None:
    shared = shared_of(windows[0], PAGE_BYTES, PAGE_BYTES + 256, 256)
    assert windows[1].reaches(shared)
    free_bytes = device.free_bytes()
    first, second, third = shared.places
    shared.free(second)
    assert device.free_bytes() == free_bytes + PAGE_BYTES, "the last of its pages has another object"
    seen(shared.written_at(third), 256)[:] = 3
    assert (seen(windows[1].seen_at(third, shared), 256) == 3).all()
    assert windows[2].reaches(shared), "a window that comes later"
    assert (seen(windows[2].seen_at(third, shared), 256) == 3).all()
    shared.free(third)
    shared.free(first)
    assert device.free_bytes() == free_bytes + 3 * PAGE_BYTES


def test_a_window_goes_and_the_others_still_read(windows: list[ClientWindow]) -> None:
    shared = shared_of(windows[0], 2 * PAGE_BYTES)
    (address,) = shared.places
    seen(shared.written_at(address), 100)[:] = 7
    assert windows[1].reaches(shared)
    windows.pop(0).close()
    assert (seen(windows[0].seen_at(address, shared), 100) == 7).all()
    shared.free(address)


def test_a_device_without_memory_for_shared_objects_loses_nothing(
    device: OpenDevice, windows: list[ClientWindow]
) -> None:
    free_bytes = device.free_bytes()
    with pytest.raises(OutOfDeviceMemory):
        shared_of(windows[0], free_bytes, PAGE_BYTES)
    assert device.free_bytes() == free_bytes


def test_small_objects_lie_beside_each_other_in_the_window_of_their_client(windows: list[ClientWindow]) -> None:
    placed = list(windows[0].place(dict.fromkeys([b"a", b"b", b"c"], 1000), {b"a": b"t", b"b": b"t"}))
    assert {home for _, home, _ in placed} == {windows[0].read}
    assert not windows[1].reaches(windows[0].read)
    for _, home, address in placed:
        home.free(address)


def test_a_process_that_can_map_no_more_copies_instead(
    windows: list[ClientWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = shared_of(windows[0], 3 * PAGE_BYTES)
    mapped, real = [0], driver.cuMemMap

    def no_third(*args: Any) -> Any:
        mapped[0] += 1
        return (driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY,) if mapped[0] == 3 else real(*args)

    monkeypatch.setattr(driver, "cuMemMap", no_third)
    assert not windows[1].reaches(shared)
    assert windows[1].reaches(shared), "the next time there is room"
    shared.free(*shared.places)
