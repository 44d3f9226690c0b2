"""Constants in device memory that executors of several clients map, and that none of them can write.

A process for each device makes this memory (`holder_process.py`). The pool has its files and counts their bytes, so the
end of that process takes nothing away. Only software devices have such memory.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kaas.config import Device
from kaas.errors import KaasError
from kaas.executor.cache.tiers import granules
from kaas.pool.executors.executor_connection import HeldPart
from kaas.pool.on_processes.holder_process import (
    DONE,
    ORDER_BYTES,
    REPLY_BYTES,
    HoldOrder,
    OrderedPart,
    encode_order,
)
from kaas.pool.on_processes.objects import HeldObject
from kaas.wire.connections.shared_memory import open_file
from kaas.wire.connections.stream import FILES_AT_MOST, close_all
from kaas.wire.messages import Block
from kaas.worker.process_orders import HolderOrders
from kaas.worker.processes import Child

HOLDER = "kaas.pool.on_processes.holder_process"
LEAST_BYTES = 1 << 20
"""Constants of one function that have fewer bytes together are copied to each executor, which takes no time."""
PAGE_BYTES = 2 << 20
"""The unit of device memory that is shared (cuMemGetAllocationGranularity)."""
HELD_AT_MOST = 256
"""Memories of a device: each takes a descriptor."""
READY_LIMIT_S = 5.0
"""Time for the start of a holder, after which values go another way while it goes on."""
MAKE_LIMIT_S, BYTES_PER_S = 2.0, 256 << 20
"""Time for a holder's answer: so long, and longer by its bytes. Without one it is ended, and values go another way."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _HeldConstants:
    """Memory with the constants of one function. workers: that have got its file, and may keep it until they end."""

    file: int
    whole_bytes: int
    parts: Sequence[HeldPart]
    workers: set[int] = field(default_factory=set)


class Holder:
    """The shared memory of one software device. Use an object of this class from one event loop only.

    Args:
        device, parts: as of `HolderOrders`. limit_bytes: of the memory, besides that of its part. start_limit_s: for
            the process.
    """

    def __init__(self, device: Device, parts: int, limit_bytes: int, start_limit_s: float) -> None:
        self._device, self._parts, self._limit_bytes = device, parts, limit_bytes
        self._start_limit_s = start_limit_s
        self._capacity_bytes: int | None = None
        self._held: dict[bytes, _HeldConstants] = {}  # the one that was used last at the end
        self._coming: dict[bytes, asyncio.Task[None]] = {}
        self._process: HolderProcess | None = None
        self._turn = asyncio.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes of device memory that it has."""
        return sum(held.whole_bytes for held in self._held.values())

    def parts(self, worker: int, constants: HeldObject) -> Sequence[HeldPart]:
        """Return the constants for a worker, which has them until it ends; nothing if they are not held."""
        held = self._held.pop(constants.binary(), None)
        if held is None:
            return ()
        self._held[constants.binary()] = held
        held.workers.add(worker)
        return held.parts

    def lacks(self, constants: Any) -> bool:
        """Return True for constants that are not held, and are worth it."""
        return (
            constants is not None and constants.constants_bytes >= LEAST_BYTES and constants.binary() not in self._held
        )

    async def hold(self, constants: HeldObject) -> None:
        """Hold constants, if there is room and the process makes the memory in time."""
        key = constants.binary()
        if key not in self._coming:
            self._coming[key] = task = asyncio.create_task(self._hold(constants))
            task.add_done_callback(lambda _: self._coming.pop(key))
        await asyncio.shield(self._coming[key])

    def left(self, worker: int) -> None:
        """Take in that a worker has ended, and its mappings with it."""
        for held in self._held.values():
            held.workers.discard(worker)

    def close(self) -> None:
        """End the process, and close all files."""
        self._end()
        while self._held:
            os.close(self._held.popitem()[1].file)

    async def _hold(self, constants: HeldObject) -> None:
        async with self._turn:
            try:
                try:
                    await self._made(constants)
                except ConnectionError:  # the process has been killed
                    self._end()
                    await self._made(constants)
            except KaasError as error:
                _log.info("constants are not shared: %s", error)
            except (OSError, TimeoutError) as error:
                _log.warning("constants are not shared: the holder of device memory gives no answer (%r)", error)
                self._end()

    async def _made(self, constants: HeldObject) -> None:
        places, whole_bytes = laid_out(constants.blocks)
        if self._capacity_bytes is not None and not self._make_room(whole_bytes):
            return
        process = self._started()
        ready_bytes = await process.ready()
        if self._capacity_bytes is None:
            self._capacity_bytes = min(ready_bytes, self._limit_bytes)
            if not self._make_room(whole_bytes):
                return
        async with asyncio.timeout(MAKE_LIMIT_S + whole_bytes / BYTES_PER_S):
            file = await process.make(constants.blocks, places, whole_bytes)
        parts = [
            HeldPart(file, at, block.nbytes, whole_bytes) for at, block in zip(places, constants.blocks, strict=True)
        ]
        self._held[constants.binary()] = _HeldConstants(file, whole_bytes, parts)

    def start(self) -> None:
        """Start the process, so that constants need not wait for that."""
        with suppress(KaasError):  # the constants tell
            self._started()

    def _started(self) -> HolderProcess:
        if self._process is None or self._process.ended:
            self._end()
            self._process = HolderProcess(self._device, self._parts, self._start_limit_s)
        return self._process

    def _make_room(self, whole_bytes: int) -> bool:
        """Let go of constants that no worker has, those used longest ago first, as far as room is needed.

        Return False if they are not enough; then all stay.
        """
        assert self._capacity_bytes is not None, "the process has told it"
        excess_bytes = self.held_bytes + whole_bytes - self._capacity_bytes
        excess = len(self._held) + 1 - HELD_AT_MOST
        leaving = []
        for key, held in self._held.items():
            if excess_bytes <= 0 and excess <= 0:
                break
            if not held.workers:
                leaving.append(key)
                excess_bytes -= held.whole_bytes
                excess -= 1
        if excess_bytes > 0 or excess > 0:
            return False
        for key in leaving:
            os.close(self._held.pop(key).file)
        return True

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


class HolderProcess:
    """The process that makes the memory, one after the other."""

    def __init__(self, device: Device, parts: int, start_limit_s: float) -> None:
        """Start it.

        Raises:
            KaasError: no process can be started.
        """
        self._link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            with other:
                orders, files = HolderOrders(device, parts, other.fileno()), (other.fileno(),)
                self._child = Child(HOLDER, orders, {"CUDA_VISIBLE_DEVICES": ""}, files)
            self._child.on_end(loop, lambda _: None, group=True)
        except BaseException:
            self._link.close()
            raise
        self._ready = loop.create_task(self._child.ready())
        self._overdue = loop.call_later(start_limit_s, self._late)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.process.pid

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._child.process.returncode is not None

    def _late(self) -> None:
        if not self._ready.done():
            self._child.kill_group()

    async def ready(self) -> int:
        """Wait until it has its device, and return the bytes of its part.

        Raises:
            KaasError: the process did not start, or it has not started yet.
        """
        try:
            async with asyncio.timeout(READY_LIMIT_S):
                return int(await asyncio.shield(self._ready))
        except TimeoutError:
            raise KaasError("the holder of device memory has not started yet") from None

    async def make(self, blocks: Sequence[Block], places: Sequence[int], whole_bytes: int) -> int:
        """Return a file with memory in which each block has its place.

        Raises:
            KaasError: the memory cannot be made. OSError: the process has ended, or a block is gone.
        """
        files = {(block.pid, block.fd): block for block in blocks}
        numbers = {file: number for number, file in enumerate(files)}
        values = [
            OrderedPart(numbers[block.pid, block.fd], block.offset_bytes, block.nbytes, at)
            for block, at in zip(blocks, places, strict=True)
        ]
        order = encode_order(HoldOrder(whole_bytes, values))
        if len(files) > FILES_AT_MOST or len(order) > ORDER_BYTES:
            raise KaasError(f"one order does not hold {len(values)} values in {len(files)} files")
        opened: list[int] = []
        try:
            opened.extend(map(open_file, files.values()))
            socket.send_fds(self._link, [order], opened)
        finally:
            close_all(opened)
        await self._readable()
        reply, received, _, _ = socket.recv_fds(self._link, REPLY_BYTES, 1)
        if not reply:
            raise ConnectionError("it has ended")
        if reply != DONE:
            raise KaasError(reply.decode(errors="replace"))
        return received[0]

    async def _readable(self) -> None:
        loop, link = asyncio.get_running_loop(), self._link.fileno()
        readable = asyncio.Event()
        loop.add_reader(link, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(link)

    def end(self) -> None:
        """End it."""
        self._overdue.cancel()
        if not self.ended:
            self._child.kill_group()
        asyncio.get_running_loop().remove_reader(self._link.fileno())
        self._ready.add_done_callback(lambda start: start.cancelled() or start.exception())
        self._link.close()


def laid_out(blocks: Sequence[Block]) -> tuple[list[int], int]:
    """Return the places of values in held memory, and its bytes."""
    places, end = [], 0
    for block in blocks:
        places.append(end)
        end += granules(block.nbytes)
    return places, -(-end // PAGE_BYTES) * PAGE_BYTES
