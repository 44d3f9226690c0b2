"""Device memory with constants of functions, which processes of this machine map, each constant once.

A process that wants constants connects first, and says its lease: a secret of its own. Then it asks for constants under
this lease, and gets the descriptor of their memory over the connection. It has them as long as it is connected, so
the end of the process ends that too.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from kaas.errors import KaasError, OutOfDeviceMemory
from kaas.executor.cache.tiers import granules
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_memory import sealed_file
from kaas.ktask.request import RawBytes
from kaas.wire.connections.peer import peer_of
from kaas.worker.held.terms import LEASE_BYTES, HeldEntry, HeldTuple, address_of

WAITING = 1024
"""Connections that this process has not looked at yet."""
PAGE_BYTES = 2 << 20
"""The unit of device memory that is shared (cuMemGetAllocationGranularity)."""
HELD_AT_MOST = 256
"""Memories of a device: each takes a descriptor."""


@dataclass(slots=True, eq=False)
class _Memory:
    """Memory with a tuple of constants. users: the connections of processes that have its file."""

    file: int
    layout: HeldTuple
    users: list[socket.socket] = field(default_factory=list)


class ConstantsHolder:
    """The holder of one device. For one thread.

    Fields:
        name: of its socket.
    """

    def __init__(self, device: OpenDevice, limit_bytes: int) -> None:
        """Hold nothing yet. device: open. limit_bytes: of the memory, which is no more than the device's in any case.

        Raises:
            OSError: this process has no descriptor left.
        """
        self.name = secrets.token_hex(16)
        self._device = device
        self._limit_bytes = min(limit_bytes, device.info().memory_bytes)
        self._memories: dict[bytes, _Memory] = {}  # the one that was used last at the end
        self._leases: dict[bytes, socket.socket] = {}
        self._silent: list[socket.socket] = []
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(address_of(self.name))
        self._listening.listen(WAITING)
        self._listening.setblocking(False)

    def found(self, lease: bytes, key: bytes) -> HeldTuple | None:
        """Give constants to the process with a lease, if they are here, and return their layout.

        Raises:
            KaasError: no process with this lease is connected, or it has ended.
        """
        memory = self._memories.pop(key, None)
        if memory is None:
            return None
        self._memories[key] = memory
        self._give(lease, memory)
        return memory.layout

    def hold(self, lease: bytes, key: bytes, values: Sequence[RawBytes]) -> HeldTuple:
        """Make memory of constants that are not here yet, and give it to the process with a lease.

        Raises:
            OutOfDeviceMemory: what processes have leaves no room. KaasError: as of `found`.
        """
        entries, end = [], 0
        for data, dtype, shape in values:
            entries.append(HeldEntry(end, len(data), dtype, shape))
            end += granules(len(data))
        layout = HeldTuple(entries, -(-end // PAGE_BYTES) * PAGE_BYTES)
        self._make_room(layout.whole_bytes)
        places = [(entry.at_bytes, data) for entry, (data, _, _) in zip(entries, values, strict=True)]
        with self._device.context:
            file = sealed_file(places, layout.whole_bytes, self._device.ordinal, self._device.info().name)
        memory = self._memories[key] = _Memory(file, layout)
        self._give(lease, memory)
        return layout

    def close(self) -> None:
        """Close all files and connections."""
        self._listening.close()
        for each in [*self._leases.values(), *self._silent]:
            each.close()
        while self._memories:
            self._let_go(next(iter(self._memories)))

    def _give(self, lease: bytes, memory: _Memory) -> None:
        self._hear()
        connection = self._leases.pop(lease, None)
        if connection is None:
            raise KaasError("no process with this lease is connected")
        try:
            socket.send_fds(connection, [b"+"], [memory.file])
        except OSError as error:
            connection.close()
            raise KaasError(f"the process that wants constants has ended: {error}") from error
        memory.users.append(connection)

    def _hear(self) -> None:
        """Take in new connections and their leases, and forget those whose process has ended."""
        with suppress(BlockingIOError):
            while True:
                connection, _ = self._listening.accept()
                connection.setblocking(False)
                if _of_this_user(connection):
                    self._silent.append(connection)
                else:
                    connection.close()
        self._leases = {lease: each for lease, each in self._leases.items() if not _closed(each)}
        silent, self._silent = self._silent, []
        for each in silent:
            try:
                lease = each.recv(LEASE_BYTES)
            except BlockingIOError:
                self._silent.append(each)
            except OSError:
                each.close()
            else:
                if len(lease) == LEASE_BYTES:
                    self._leases[lease] = each
                else:
                    each.close()

    def _make_room(self, whole_bytes: int) -> None:
        """Let go of constants that no process has, those used longest ago first, as far as room is needed."""
        self._hear()
        leaving = []
        excess_bytes = sum(each.layout.whole_bytes for each in self._memories.values()) + whole_bytes
        excess_bytes -= self._limit_bytes
        excess = len(self._memories) + 1 - HELD_AT_MOST
        for key, memory in self._memories.items():
            if excess_bytes <= 0 and excess <= 0:
                break
            memory.users = [each for each in memory.users if not _closed(each)]
            if not memory.users:
                leaving.append(key)
                excess_bytes -= memory.layout.whole_bytes
                excess -= 1
        if excess_bytes > 0 or excess > 0:
            name = self._device.info().name
            raise OutOfDeviceMemory(
                f"{name}: {whole_bytes} bytes of constants are wanted, and eTasks have the others of "
                f"{self._limit_bytes} bytes",
                device=name,
                needed_bytes=whole_bytes,
                free_bytes=max(0, whole_bytes - excess_bytes),
            )
        for key in leaving:
            self._let_go(key)

    def _let_go(self, key: bytes) -> None:
        memory = self._memories.pop(key)
        for each in memory.users:
            each.close()
        os.close(memory.file)


def _of_this_user(connection: socket.socket) -> bool:
    """Return True if the other end is of the same user: the names of these sockets are open to all users."""
    _, user = peer_of(connection)
    return user == os.getuid()


def _closed(connection: socket.socket) -> bool:
    """Return True if the other end is closed; then this one is, too."""
    try:
        open_still = bool(connection.recv(1))
    except BlockingIOError:
        return False
    except OSError:
        open_still = False
    if not open_still:
        connection.close()
    return not open_still
