"""The holder of a device's constants gives each process those that it asks for, once, while there is room."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver

from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.device.device import OpenDevice, open_device
from kaas.executor.device.device_memory import HeldMemory
from kaas.executor.device.driver_errors import call
from kaas.ktask.request import RawBytes
from kaas.worker.held.constants_holder import PAGE_BYTES, ConstantsHolder
from kaas.worker.held.terms import LEASE_BYTES, address_of

PAGES = 4
LEASES = [bytes([number] * LEASE_BYTES) for number in range(8)]


@pytest.fixture
def device(softgpu: tuple[int, ...]) -> Iterator[OpenDevice]:  # noqa: ARG001 - its devices are loaded
    opened = open_device("software")
    yield opened
    opened.close()


@pytest.fixture
def holder(device: OpenDevice) -> Iterator[ConstantsHolder]:
    made = ConstantsHolder(device, PAGES * PAGE_BYTES)
    yield made
    made.close()


def connect(holder: ConstantsHolder, lease: bytes = b"") -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address_of(holder.name))
    if lease:
        connection.send(lease)
    return connection


def taken(connection: socket.socket) -> int:
    """The memory of the descriptor that a process gets, as its inode."""
    word, (file,), _, _ = socket.recv_fds(connection, 1, 1)
    assert word
    inode = os.fstat(file).st_ino
    os.close(file)
    return inode


def pages(count: int) -> list[RawBytes]:
    return [RawBytes(memoryview(bytes(count * PAGE_BYTES)), None, None)]


def test_values_lie_at_their_places_and_can_be_read(holder: ConstantsHolder, device: OpenDevice) -> None:
    values: list[np.ndarray[Any, Any]] = [
        np.arange(5, dtype=np.float32),
        np.empty(0, np.int8),
        np.full((3, 100), 7, np.int64),
    ]
    raw = [RawBytes(memoryview(each.tobytes()), each.dtype.name, each.shape) for each in values]
    connection = connect(holder, LEASES[0])
    layout = holder.hold(LEASES[0], b"key", raw)
    assert layout.whole_bytes == PAGE_BYTES
    assert [entry[1:] for entry in layout.entries] == [(each.nbytes, each.dtype.name, each.shape) for each in values]
    _, (file,), _, _ = socket.recv_fds(connection, 1, 1)
    memory = HeldMemory(file)
    os.close(file)
    with device.context:
        address = memory.take(layout.whole_bytes)
        for entry, value in zip(layout.entries, values, strict=True):
            assert entry.at_bytes % 256 == 0
            found = np.empty_like(value)
            call(
                driver.cuMemcpyDtoH, found.ctypes.data, address + entry.at_bytes, found.nbytes
            ) if found.nbytes else None
            np.testing.assert_array_equal(found, value)
        memory.free_idle()
    connection.close()


def test_each_process_gets_the_same_memory_once_it_is_connected(holder: ConstantsHolder) -> None:
    connections = [connect(holder, lease) for lease in LEASES[:3]]
    assert holder.found(LEASES[0], b"key") is None
    layout = holder.hold(LEASES[0], b"key", pages(1))
    for lease in LEASES[1:3]:
        assert holder.found(lease, b"key") == layout
    assert len({taken(each) for each in connections}) == 1
    for lease in (LEASES[0], LEASES[3]):  # used up, and of nobody
        with pytest.raises(KaasError):
            holder.found(lease, b"key")
    for each in connections:
        each.close()


def test_peers_that_say_nothing_or_nonsense_or_end_cost_nothing(holder: ConstantsHolder) -> None:
    silent, wrong, gone = connect(holder), connect(holder, b"short"), connect(holder, LEASES[1])
    gone.close()
    with pytest.raises(KaasError):
        holder.hold(LEASES[1], b"gone", pages(PAGES))
    mine = connect(holder, LEASES[0])
    holder.hold(LEASES[0], b"key", pages(PAGES))  # in the place of what the process that ended has not got
    taken(mine)
    silent.send(LEASES[2])  # late
    assert holder.found(LEASES[2], b"key") is not None
    for each in (silent, wrong, mine):
        each.close()


def test_another_user_of_the_machine_gets_nothing(holder: ConstantsHolder, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = connect(holder, LEASES[0])
    monkeypatch.setattr(os, "getuid", lambda: 12345)  # as the holder would see it
    with pytest.raises(KaasError):
        holder.hold(LEASES[0], b"key", pages(1))
    monkeypatch.undo()
    with pytest.raises(ConnectionResetError):
        stranger.recv(1)
    with connect(holder, LEASES[1]):
        assert holder.found(LEASES[1], b"key") is not None
    stranger.close()


def test_constants_that_no_process_has_make_room_the_unused_longest_first(holder: ConstantsHolder) -> None:
    for number, lease in enumerate(LEASES[:4]):
        with connect(holder, lease):
            holder.hold(lease, bytes([number]), pages(1))
    with connect(holder, LEASES[4]):
        assert holder.found(LEASES[4], b"\0") is not None  # so that it is the last to leave
    keeping = connect(holder, LEASES[5])
    holder.hold(LEASES[5], b"new", pages(2))
    with connect(holder, LEASES[6]):
        assert holder.found(LEASES[6], b"\1") is None
        assert holder.found(LEASES[6], b"\2") is None
        assert holder.found(LEASES[6], b"\0") is not None
    with connect(holder, LEASES[7]), pytest.raises(OutOfDeviceMemory) as raised:
        holder.hold(LEASES[7], b"large", pages(3))
    assert (raised.value.needed_bytes, raised.value.free_bytes) == (3 * PAGE_BYTES, 2 * PAGE_BYTES)
    keeping.close()
