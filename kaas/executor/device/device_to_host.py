"""Copies outputs to host memory: large ones in pieces, which the device fills and the host empties in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kaas.errors import OutOfDeviceMemory
from kaas.executor.device.device import OpenDevice
from kaas.executor.device.device_memory import HostMemory
from kaas.executor.device.streams import EventPair, Stream

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

CHUNK_BYTES = 4 << 20
"""Larger outputs travel in pieces of this size. A slot takes twice as much page-locked memory for them."""
_CHUNKS = 2


@dataclass(slots=True)
class _OutputChunk:
    """Page-locked memory, and the part of an output that is copied to it."""

    memory: HostMemory
    events: EventPair
    target: Bytes | None = None

    def empty(self) -> None:
        """Wait for the copy, if there is one, and copy its bytes to the output."""
        if self.target is not None:
            self.events.synchronize()
            self.target[:] = self.memory.data[: self.target.size]
            self.target = None


class DeviceToHost:
    """The copies of one slot's outputs, on its stream, so that they run in parallel with other slots' kernels."""

    def __init__(self, device: OpenDevice, stream: Stream) -> None:
        self._device = device
        self._stream = stream
        self._chunks: list[_OutputChunk] = []

    def copy(self, outputs: Iterable[tuple[int, Bytes]]) -> None:
        """Copy from each address to its array as many bytes as the array has, and wait for the stream.

        The arrays are of bytes, since bfloat16 and float8 arrays have no buffer protocol.
        """
        large: list[tuple[int, Bytes]] = []
        for address, target in outputs:
            if target.nbytes > CHUNK_BYTES:
                large.append((address, target))
            else:
                self._stream.copy_out(target, address, target.nbytes)
        if large:
            self._copy_large(large)
        self._stream.synchronize()

    def close(self) -> None:
        """Free the page-locked memory and the events."""
        while self._chunks:
            chunk = self._chunks.pop()
            chunk.events.close()
            chunk.memory.close()

    def _copy_large(self, outputs: Iterable[tuple[int, Bytes]]) -> None:
        free = self._free_chunks()
        if not free:
            for address, target in outputs:
                self._stream.copy_out(target, address, target.nbytes)
            return
        travelling: deque[_OutputChunk] = deque()
        for address, piece in _pieces(outputs):
            chunk = free.pop() if free else travelling.popleft()
            chunk.empty()
            self._stream.copy_out(chunk.memory.address, address, piece.size)
            chunk.events.stop(self._stream)
            chunk.target = piece
            travelling.append(chunk)
        for chunk in travelling:
            chunk.empty()

    def _free_chunks(self) -> list[_OutputChunk]:
        """Return all chunks, without parts of failed requests; none if the driver locks no memory."""
        try:
            while len(self._chunks) < _CHUNKS:
                self._chunks.append(_OutputChunk(self._device.allocate_host(CHUNK_BYTES), EventPair()))
        except OutOfDeviceMemory:
            self.close()
        for chunk in self._chunks:
            chunk.target = None
        return self._chunks.copy()


def _pieces(outputs: Iterable[tuple[int, Bytes]]) -> Iterator[tuple[int, Bytes]]:
    for address, target in outputs:
        for start in range(0, target.size, CHUNK_BYTES):
            yield address + start, target[start : start + CHUNK_BYTES]
